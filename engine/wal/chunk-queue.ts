/**
 * The chunks of a run, handled one after the other in the order they came. Handling one may have to wait for I/O: what
 * comes meanwhile is copied and held, and handled when the wait is over.
 */
import type { BusyShare } from '../busy-share.ts'
import type { Chunk } from './decode/chunk.ts'

/** Says what has to be over before the next chunk is handled. @property cause for people */
export type Wait = Readonly<{ cause: string; done: Promise<void> }>

type ChunkQueueOptions = Readonly<{
  /** @param chunk valid during the call. @returns what to wait for; undefined: nothing */
  handle: (chunk: Chunk) => Wait | undefined
  /** gets the cause of each wait, and undefined when it is over */
  waiting: (cause: string | undefined) => void
  failed: (error: unknown) => void
  /** gets the time that held chunks take */
  decoding: BusyShare
}>

/** Hands chunks on in their order, and holds them while something is waited for. */
export class ChunkQueue {
  readonly #options: ChunkQueueOptions
  #isWaiting = true
  #isStopped = false
  #held: Chunk[] = []
  #heldBytes = 0
  #work: Promise<unknown> = Promise.resolve()
  #idle = Promise.withResolvers<void>()

  /** Holds what comes until `resume`. */
  constructor(options: ChunkQueueOptions) {
    this.#options = options
  }

  /** Settles when what came so far is handled; never, if that fails. */
  async handled(): Promise<void> {
    while (!this.isIdle) await this.#idle.promise
  }

  /** Nothing is held or waited for. */
  get isIdle(): boolean {
    return !this.#isWaiting && this.#held.length === 0
  }
  get heldBytes(): number {
    return this.#heldBytes
  }

  /** Handles a chunk that comes, or holds a copy of it. */
  receive(chunk: Chunk): void {
    if (this.#isStopped) return
    if (this.#isWaiting) {
      this.#held.push(chunk.copy())
      this.#heldBytes += chunk.length
      return
    }
    const wait = this.#options.handle(chunk)
    if (wait) this.#wait(wait)
  }

  #wait({ cause, done }: Wait): void {
    this.#isWaiting = true
    this.#options.waiting(cause)
    this.#work = done.then(
      () => this.resume(),
      (error: unknown) => this.#options.failed(error),
    )
  }

  /** Settles when nothing is at work for a chunk, also after `stop`: what it writes to is in use until then. */
  get settled(): Promise<unknown> {
    return this.#work
  }

  /** Handles what is held. */
  resume(): void {
    if (this.#isStopped) return
    const { handle, decoding, waiting, failed } = this.#options
    this.#isWaiting = false
    const from = performance.now()
    try {
      let handled = 0
      for (const chunk of this.#held) {
        this.#heldBytes -= chunk.length
        handled++
        const wait = handle(chunk)
        if (wait) this.#wait(wait)
        if (this.#isStopped) return
        if (this.#isWaiting) break
      }
      this.#held = this.#held.slice(handled)
      decoding.add(from, performance.now())
    } catch (error) {
      return failed(error)
    }
    if (this.#isWaiting) return
    waiting(undefined)
    this.#idle.resolve()
    this.#idle = Promise.withResolvers()
  }

  /** Handles no chunk any more: what is held, and what still comes, is gone with the run. */
  stop(): void {
    this.#isStopped = true
    this.#isWaiting = true
    this.#held = []
    this.#heldBytes = 0
  }
}
