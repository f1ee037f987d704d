/**
 * Keeps how far each source's stream is durable in all partitions, and where these end: at once in memory, in the state database
 * every second and before it is confirmed to the server (docs/rules.md, rules 12 and 37).
 */
import { comparePositions } from '../../position.ts'
import type { Progress, Reached, TopicName } from '../log.ts'
import type { SecondMemory } from './second-memory.ts'

const SAVE_EVERY_MS = 1_000

/** Keeps the progress of all sources of this process. */
export class ProgressKeeper implements AsyncDisposable {
  readonly #memory: SecondMemory
  readonly #notice: (text: string, error?: unknown) => void
  readonly #reached = new Map<string, Reached>()
  /** by source, where the partitions end that were appended to since the last save, by "topic/partition" */
  readonly #ends = new Map<string, Map<string, number>>()
  /** by source, the last save that was begun; never rejects */
  readonly #saving = new Map<string, Promise<void>>()
  #timer: NodeJS.Timeout | undefined
  #closed = false

  constructor(memory: SecondMemory, notice: (text: string, error?: unknown) => void) {
    this.#memory = memory
    this.#notice = notice
  }

  /** Everything up to the position is durable. */
  reached({ source, ...reached }: Progress): void {
    this.#reached.set(source, reached)
    if (!this.#closed) this.#timer ??= setTimeout(() => void this.#save(), SAVE_EVERY_MS).unref()
  }

  /** A partition has everything below `next`. */
  ends(source: string, topic: TopicName, partition: number, next: number): void {
    const ends = this.#ends.get(source) ?? new Map<string, number>()
    this.#ends.set(source, ends.set(`${topic}/${partition}`, next))
  }

  async of(source: string): Promise<Reached | undefined> {
    const reached = this.#reached.get(source)
    const saved = await this.#memory.progress(source)
    if (!reached || !saved) return reached ?? saved
    return comparePositions(reached.position, saved.position) > 0 ? reached : saved
  }

  /** Forgets how far a source is, and what has not been saved of where its partitions end. @throws EngineError STATE_UNAVAILABLE */
  async forget(source: string): Promise<void> {
    this.#reached.delete(source)
    this.#ends.delete(source)
    await this.#saving.get(source) // else it would be there again
    await this.#memory.dropProgress(source)
  }

  /** Saves what one source has reached, with all that is being saved already. @throws EngineError STATE_UNAVAILABLE */
  async flush(source: string): Promise<void> {
    const former = this.#saving.get(source)
    const saving = (former ?? Promise.resolve()).then(() => this.#saveReached(source))
    const settled = saving.catch(() => undefined)
    this.#saving.set(source, settled)
    try {
      await saving
    } finally {
      if (this.#saving.get(source) === settled) this.#saving.delete(source)
    }
  }

  async #saveReached(source: string): Promise<void> {
    const reached = this.#reached.get(source)
    if (!reached) return
    const ends = this.#ends.get(source)
    this.#ends.delete(source)
    try {
      await this.#memory.saveProgress(source, reached, ends ?? new Map())
    } catch (error) {
      if (ends) this.#ends.set(source, new Map([...ends, ...(this.#ends.get(source) ?? [])]))
      throw error
    }
    if (this.#reached.get(source) === reached) this.#reached.delete(source)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed = true
    clearTimeout(this.#timer)
    await this.#save()
  }

  async #save(): Promise<void> {
    this.#timer = undefined
    for (const source of [...this.#reached.keys()]) {
      try {
        await this.flush(source)
      } catch (error) {
        this.#notice('the progress of a source could not be saved', error)
        if (!this.#closed) this.#timer ??= setTimeout(() => void this.#save(), SAVE_EVERY_MS).unref()
      }
    }
  }
}
