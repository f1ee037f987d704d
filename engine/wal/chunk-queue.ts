/**
 * The chunks of a run, handled one after the other in the order they came. Handling one may have to wait for I/O: what
 * comes meanwhile is copied and held, and handled when the wait is over.
 */
import type { BusyShare } from '../busy-share.ts'
import type { Chunk } from './decode/chunk.ts'

type ChunkQueueOptions = Readonly<{
  /** may call `wait`. @param chunk valid during the call */
  handle: (chunk: Chunk) => void
  /** told what is waited for, and undefined when nothing is any more */
  waiting: (cause: string | undefined) => void
  failed: (error: unknown) => void
  /** gets the time that held chunks take */
  decoding: BusyShare
}>

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

  receive(chunk: Chunk): void {
    if (!this.#isWaiting) return this.#options.handle(chunk)
    this.#held.push(chunk.copy())
    this.#heldBytes += chunk.length
  }

  /** Only within `handle`: no further chunk is handled until `work` is done. */
  wait(cause: string, work: () => Promise<void>): void {
    this.#isWaiting = true
    this.#options.waiting(cause)
    this.#work = work().then(
      () => this.resume(),
      (error: unknown) => this.#options.failed(error),
    )
  }

  /** Settles when nothing is at work for a chunk, also after `stop`: what it writes to is in use until then. */
  get settled(): Promise<unknown> {
    return this.#work
  }

  resume(): void {
    if (this.#isStopped) return
    const { handle, decoding, waiting, failed } = this.#options
    this.#isWaiting = false
    const from = performance.now()
    try {
      let next = 0
      while (!this.#isWaiting && next < this.#held.length) {
        const chunk = this.#held[next++] as Chunk
        this.#heldBytes -= chunk.length
        handle(chunk)
        if (this.#isStopped) return
      }
      this.#held = this.#held.slice(next)
      decoding.add(from, performance.now())
    } catch (error) {
      return failed(error)
    }
    if (this.#isWaiting) return
    waiting(undefined)
    this.#idle.resolve()
    this.#idle = Promise.withResolvers()
  }

  /** Handles no chunk any more: what still comes is held, and gone with the run. */
  stop(): void {
    this.#isStopped = true
    this.#isWaiting = true
  }

  /** After `stop`: lets go of what is held. */
  clear(): void {
    this.#held = []
    this.#heldBytes = 0
  }
}
