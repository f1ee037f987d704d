/**
 * The client's side of one receive: knows whether the client is still there and whether the answer reached the
 * connection. A client that leaves while it waits frees its place and takes nothing; messages whose answer could not be
 * written go back at once. A stop of the service ends the wait, and the client gets an empty answer.
 */
import type { ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import type { Receipt } from '../engine-port.ts'

/** The receives that wait for messages at the moment. */
export class OpenReceives {
  readonly #open = new Set<ReceiveCall>()
  #stopping = false

  get size(): number {
    return this.#open.size
  }
  get stopping(): boolean {
    return this.#stopping
  }

  begin(response: ServerResponse): ReceiveCall {
    const call = new ReceiveCall(response, () => this.#open.delete(call))
    this.#open.add(call)
    return call
  }

  /** Ends every wait; those that come later see `stopping`. */
  stop(): void {
    this.#stopping = true
    for (const call of this.#open) call.end()
  }
}

export class ReceiveCall {
  readonly #abort = new AbortController()
  readonly #response: ServerResponse
  /** the response lets go of it when it has ended */
  readonly #socket: Socket | null
  readonly #settled: () => void
  #receipt: Receipt | undefined
  #gone = false

  constructor(response: ServerResponse, settled: () => void) {
    this.#response = response
    this.#socket = response.socket
    this.#settled = settled
    // a response closes once, after its last byte was handed to the system or when the connection broke before that
    response.once('close', this.#onClose)
  }

  get signal(): AbortSignal {
    return this.#abort.signal
  }
  get gone(): boolean {
    return this.#gone
  }

  end(): void {
    this.#abort.abort()
  }

  /** The messages are the client's from now on, unless its connection breaks before the answer is written.
   *  @returns false: the client has gone, they went back */
  took(receipt: Receipt): boolean {
    this.#settled()
    if (this.#gone) {
      receipt.giveBack()
      return false
    }
    this.#receipt = receipt
    return true
  }

  failed(): void {
    this.#settled()
  }

  readonly #onClose = (): void => {
    this.#settled()
    // a socket that was destroyed ends its writes without having made them, and may pass for finished
    if (this.#response.writableFinished) return void (this.#socket?.destroyed === false && this.#receipt?.written?.())
    this.#gone = true
    if (this.#receipt) this.#receipt.giveBack()
    else this.end()
  }
}
