/**
 * The bound of a sink's unacknowledged backlog, and of what it keeps in the log of others' messages before it. A sink that is full
 * calls for relief, with its name as the cause, until it has drained to nine tenths: the gate of its source is held, or its new
 * messages are dropped. What frees it is the trim behind the clients' acks, which needs nothing that the relief stops.
 */
import { sizeText } from '../../engine/amounts.ts'

/** Does what its policy says while a sink is full, until it has drained. */
export interface Relief {
  /** @returns ends it */
  hold(cause: string): (() => void) | Promise<() => void>
}

/**
 * Names a bound of a sink that is full. own: that of its unfinished messages. others: that of messages that it doesn't take and has
 * not passed by.
 */
export type Filled = 'own' | 'others'

/** Describes how large a backlog of a sink is, and how large it may be. */
export type BacklogOf = Readonly<{ sinkId: string; name: string; maxBytes: number; relief: Relief; what: Filled; bytes: number }>

/** Gives the backlogs, of the sinks that are bound at the moment, that are at least this share of what they may be. */
type LargeBacklogs = (share: number) => Promise<readonly BacklogOf[]>

const EVERY_MS = 200
const RELEASE_AT = 0.9

/** Stops whatever fills the backlog of a sink when it is full, and lets it go on when the backlog has drained to nine tenths. */
export class BacklogGuard implements Disposable {
  readonly #large: LargeBacklogs
  readonly #holds = new Map<string, { full: BacklogOf; release: () => void }>()
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
      const { relief, what } = hold.full
      const now = large.find((each) => each.sinkId === id && each.relief === relief && each.what === what)
      if (now) hold.full = now
      else this.#release(id) // drained, deleted, no longer bound in this way, or its source was started anew
    }
    for (const each of large) {
      const { sinkId, relief, bytes, maxBytes } = each
      if (this.#holds.has(sinkId) || bytes < maxBytes) continue
      this.#holds.set(sinkId, { full: each, release: await relief.hold(causeOf(each)) })
      if (this.#ended) this.#release(sinkId)
    }
  }

  /** Tells which of its two bounds a sink has reached, and the bytes. @returns undefined: neither */
  full(sinkId: string): BacklogOf | undefined {
    return this.#holds.get(sinkId)?.full
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

function causeOf({ name, what, bytes, maxBytes }: BacklogOf): string {
  const sizes = `${sizeText(bytes)} of ${sizeText(maxBytes)}`
  if (what === 'own') return `the backlog of sink "${name}" is full (${sizes})`
  return `sink "${name}" has not passed messages of its stream that its actions leave out (${sizes})`
}
