/**
 * The client's side of one receive: knows whether the client is still there and whether the answer reached the
 * connection. A client that leaves while it waits frees its place and takes nothing; messages whose answer could not be
 * written go back at once. A stop of the service ends the wait, and the client gets an empty answer.
 */
import type { ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { EngineError } from '../../engine/errors.ts'
import type { Sink } from '../../engine/state/resources.ts'
import type { Receipt } from '../../actors/sink/running-sink.ts'

/** The receives that wait for messages at the moment. */
export class OpenReceives {
  readonly #open = new Set<ReceiveCall>()
  /** those that are held for a sink that is off, by its id */
  readonly #held = new Map<string, number>()
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

  /** Counts one that is held for a sink that is off, where no actor counts it. @throws EngineError TOO_MANY_WAITING */
  hold({ id, max_waiting: max }: Pick<Sink, 'id' | 'max_waiting'>): Disposable {
    const held = this.#held.get(id) ?? 0
    if (held >= max) throw new EngineError('TOO_MANY_WAITING', `${held} receives wait for messages of this sink already`, { max })
    this.#held.set(id, held + 1)
    return {
      [Symbol.dispose]: () => {
        const left = (this.#held.get(id) as number) - 1
        if (left > 0) this.#held.set(id, left)
        else this.#held.delete(id)
      },
    }
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
