/**
 * Connections on which no request with a token has come yet. One address may have so many of them and no more, so that it
 * can't take the room of all others by opening connections and saying nothing. What a proxy opens for clients with tokens
 * isn't counted, however many.
 */
import type { Socket } from 'node:net'

export class Strangers {
  readonly #max: number
  readonly #open = new Map<Socket, string>()
  readonly #counts = new Map<string, number>()

  /** @param max of one address */
  constructor(max: number) {
    this.#max = max
  }

  /** A connection has come; one too many is closed. */
  take(socket: Socket): void {
    const { remoteAddress: address } = socket
    if (address === undefined) return // it has gone
    const count = (this.#counts.get(address) ?? 0) + 1
    if (count > this.#max) return void socket.destroy()
    this.#open.set(socket, address)
    this.#counts.set(address, count)
    socket.once('close', () => this.know(socket))
  }

  /** A request with a token has come on it, or it has ended. */
  know(socket: Socket): void {
    const address = this.#open.get(socket)
    if (address === undefined) return
    this.#open.delete(socket)
    const left = (this.#counts.get(address) as number) - 1
    if (left > 0) this.#counts.set(address, left)
    else this.#counts.delete(address)
  }
}
