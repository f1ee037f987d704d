/**
 * Node's HTTP module, and the parts of undici that are used here, each without what comes along with it: the ES module of
 * `node:http` also names WebSocket, for which Node loads a fetch of its own, and the index of undici loads caches, mocks and
 * another fetch. Together they are 150 ms of CPU at each start.
 */
import { createRequire } from 'node:module'
import type { Server } from 'node:net'
import type * as Undici from 'undici'

/** The parts of Node's HTTP module that are used here. */
export const { createServer, validateHeaderName, validateHeaderValue } = process.getBuiltinModule('node:http')

/** Makes a server that speaks TLS. */
export const createTlsServer = process.getBuiltinModule('node:https').createServer

/** Gives the URL at which a listening server is reached, such as "http://127.0.0.1:7376"; of one that speaks TLS it begins with https. */
export function urlOf(server: Server): string {
  const at = server.address()
  if (at === null || typeof at === 'string') throw new TypeError('the server listens on no port')
  return `${'setSecureContext' in server ? 'https' : 'http'}://${at.family === 'IPv6' ? `[${at.address}]` : at.address}:${at.port}`
}

const load = createRequire(import.meta.url)
/** A client of undici, which is one connection to a server. */
export type Client = Undici.Client
/** Makes a connection to a server. */
export const Client = load('undici/lib/dispatcher/client.js') as typeof Undici.Client
/** Makes what opens sockets for clients. */
export const buildConnector = load('undici/lib/core/connect.js') as typeof Undici.buildConnector

/** Opens a pool of connections. All of undici is loaded with the first one, for only processes of a cluster need it. */
export const openPool = (origin: string, options: Undici.Pool.Options): Undici.Pool =>
  new (load('undici') as typeof Undici).Pool(origin, options)
