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

/** Counts the receives that wait for messages of a sink; there may be `max_waiting` of them. */
export class WaitingPlaces {
  readonly #taken = new Map<string, number>()

  /** @returns gives the place back. @throws EngineError TOO_MANY_WAITING */
  take({ id, max_waiting: max }: Pick<Sink, 'id' | 'max_waiting'>): Disposable {
    const taken = this.#taken.get(id) ?? 0
    if (taken >= max)
      throw new EngineError('TOO_MANY_WAITING', `${taken} receive requests already wait for messages of this sink (max_waiting)`, { max })
    this.#taken.set(id, taken + 1)
    return {
      [Symbol.dispose]: () => {
        const left = (this.#taken.get(id) ?? 1) - 1
        if (left > 0) this.#taken.set(id, left)
        else this.#taken.delete(id)
      },
    }
  }
}

/** Holds the receives that wait for messages at the moment, so that all can be ended. */
export class OpenReceives {
  readonly #open = new Set<ReceiveCall>()
  /** the places of receives that are held for a sink that is off, where no actor counts them */
  readonly held = new WaitingPlaces()
  #stopping = false

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

/** One receive and its connection, until the answer is written or the client has gone. */
export class ReceiveCall {
  readonly #abort = new AbortController()
  /** aborted when the client goes, or its wait is ended */
  readonly signal: AbortSignal = this.#abort.signal
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
