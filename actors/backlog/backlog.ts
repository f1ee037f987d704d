/**
 * The bound of a sink's unacknowledged backlog. A sink that is full calls for relief, with its name as the cause, until it
 * has drained to nine tenths: the gate of its source is held, or its new messages are dropped. What frees it is the trim
 * behind the clients' acks, which needs nothing that the relief stops.
 */

/** What is done while a sink is full. */
export interface Relief {
  /** @returns ends it */
  hold(cause: string): (() => void) | Promise<() => void>
}

export type BacklogOf = Readonly<{ sinkId: string; name: string; maxBytes: number; relief: Relief; bytes: number }>

/** @returns the sinks that are bound at the moment and whose backlog is at least a share of what it may be */
export type LargeBacklogs = (share: number) => Promise<readonly BacklogOf[]>

const EVERY_MS = 200
const RELEASE_AT = 0.9
const MB = 1024 * 1024

export class BacklogGuard implements Disposable {
  readonly #large: LargeBacklogs
  readonly #holds = new Map<string, { relief: Relief; release: () => void }>()
  readonly #failed: (error: unknown) => void
  #timer: NodeJS.Timeout | undefined
  #ended = false

  constructor(large: LargeBacklogs, failed: (error: unknown) => void) {
    this.#large = large
    this.#failed = failed
    this.#timer = setTimeout(() => void this.#look(), EVERY_MS)
  }

  /** Looks at every backlog once. */
  async check(): Promise<void> {
    const large = await this.#large(RELEASE_AT)
    for (const [id, hold] of this.#holds) {
      // drained, deleted, no longer bound in this way, or its source was started anew
      if (!large.some(({ sinkId, relief }) => sinkId === id && relief === hold.relief)) this.#release(id)
    }
    for (const { sinkId, name, maxBytes, relief, bytes } of large) {
      if (this.#holds.has(sinkId) || bytes < maxBytes) continue
      const cause = `the backlog of sink "${name}" is full (${Math.round(bytes / MB)} of ${Math.round(maxBytes / MB)} MB)`
      this.#holds.set(sinkId, { relief, release: await relief.hold(cause) })
      if (this.#ended) this.#release(sinkId)
    }
  }

  /** Whether the sink is full. */
  isFull(sinkId: string): boolean {
    return this.#holds.has(sinkId)
  }

  [Symbol.dispose](): void {
    clearTimeout(this.#timer)
    this.#timer = undefined
    this.#ended = true
    for (const id of this.#holds.keys()) this.#release(id)
  }

  async #look(): Promise<void> {
    try {
      await this.check()
    } catch (error) {
      this.#failed(error)
    }
    this.#timer &&= setTimeout(() => void this.#look(), EVERY_MS)
  }

  #release(id: string): void {
    this.#holds.get(id)?.release()
    this.#holds.delete(id)
  }
}
