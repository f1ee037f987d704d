/**
 * Node's HTTP module, and the parts of undici that are used here, each without what comes along with it: the ES module of
 * `node:http` also names WebSocket, for which Node loads a fetch of its own, and the index of undici loads caches, mocks and
 * another fetch. Together they are 150 ms of CPU at each start.
 */
import { createRequire } from 'node:module'
import type * as Undici from 'undici'

export const { createServer, validateHeaderName, validateHeaderValue } = process.getBuiltinModule('node:http')

const load = createRequire(import.meta.url)
export type Client = Undici.Client
export const Client = load('undici/lib/dispatcher/client.js') as typeof Undici.Client
export const buildConnector = load('undici/lib/core/connect.js') as typeof Undici.buildConnector

/** All of undici is loaded with the first one: only processes of a cluster ask each other. */
export const openPool = (origin: string, options: Undici.Pool.Options): Undici.Pool =>
  new (load('undici') as typeof Undici).Pool(origin, options)
