/**
 * Clients without a token. One of them may have so many connections and so many requests under way and no more, so that it
 * takes the room of all others neither by opening connections and saying nothing nor by asking on and on without reading
 * the answers. Clients are told apart by their address, of IPv6 by its network. What a proxy sends for clients with tokens
 * isn't counted, however much.
 */
import type { ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { clientNetwork } from '../../engine/net/ip-address.ts'

/** The most connections and requests that one client may have open. */
type Most = Readonly<{ connections: number; requests: number }>

/** Counts what clients without a token have open, and says whether they may have more. */
export class Strangers {
  readonly #most: Most
  /** the client of each connection on which no request with a token has come yet, by its other end: with TLS it is one socket that comes, and another one on which requests do */
  readonly #open = new Map<string, string>()
  readonly #connections = new Counts()
  readonly #requests = new Counts()

  constructor(most: Most) {
    this.#most = most
  }

  /** A connection has come. @returns false: it has gone, or is one too many and was closed */
  take(socket: Socket): boolean {
    const client = clientOf(socket)
    if (client === undefined || !this.#connections.add(client, this.#most.connections)) {
      socket.destroy()
      return false
    }
    const end = otherEnd(socket)
    this.#forget(end) // a former connection with the same port, whose end was not told yet
    this.#open.set(end, client)
    socket.once('close', () => this.#forget(end)) // it has no other end any more
    return true
  }

  /** A request with a token has come on it, or one that another process of the cluster has signed; or it has ended. */
  know(socket: Socket): void {
    this.#forget(otherEnd(socket))
  }

  #forget(end: string): void {
    const client = this.#open.get(end)
    if (client === undefined) return
    this.#open.delete(end)
    this.#connections.remove(client)
  }

  /** A request without a token has come. @param address of its client @returns false: it is one too many, so its connection was closed and it gets no answer */
  admit(socket: Socket, response: ServerResponse, address = socket.remoteAddress): boolean {
    const client = address === undefined ? undefined : clientNetwork(address)
    if (client === undefined || !this.#requests.add(client, this.#most.requests)) {
      socket.destroy()
      return false
    }
    response.once('close', () => this.#requests.remove(client)) // also of an answer that never went out
    return true
  }
}

/** @returns undefined: it has gone */
const clientOf = ({ remoteAddress }: Socket): string | undefined => (remoteAddress === undefined ? undefined : clientNetwork(remoteAddress))

const otherEnd = ({ remoteAddress, remotePort }: Socket): string => `${remoteAddress} ${remotePort}`

/** How much of a kind each client has. */
class Counts {
  readonly #of = new Map<string, number>()

  /** @returns false: it has as much as it may */
  add(client: string, most: number): boolean {
    const count = this.#of.get(client) ?? 0
    if (count >= most) return false
    this.#of.set(client, count + 1)
    return true
  }

  remove(client: string): void {
    const left = (this.#of.get(client) ?? 0) - 1
    if (left > 0) this.#of.set(client, left)
    else this.#of.delete(client)
  }
}
