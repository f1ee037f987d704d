/** The disk of the embedded log: what is left on it, and whether it takes what is written. */
import { statfs } from 'node:fs/promises'
import { MB } from '../amounts.ts'
import { EngineError, errorText } from '../errors.ts'
import { within } from '../within.ts'

const LOOK_EVERY_MS = 1000
const LOOK_EVERY_BYTES = 64 * MB
/** Space counts as short when less than this, or less than a quarter of the reserve, is free above the reserve. */
const SHORT_BYTES = 64 * MB

/** Asks what is left on the disk: appends stop at a reserve, so that commits and trims still work (docs/rules.md, rule 27). */
export class DiskRoom {
  readonly #folder: string
  readonly #reserveBytes: (fileSystemBytes: number) => number
  #seen = { at: -Infinity, enough: true, spare: Infinity, freeMb: 0, reserveMb: 0 }
  #appendedSince = 0
  /** a look that others may wait for */
  #asked: Promise<unknown> | undefined

  /** @param reserveBytes what is kept free on a file system of so many bytes */
  constructor(folder: string, reserveBytes: (fileSystemBytes: number) => number) {
    this.#folder = folder
    this.#reserveBytes = reserveBytes
  }

  /** @param bytes about to be appended. @throws EngineError LOG_DISK_FULL */
  async require(bytes: number): Promise<void> {
    this.#appendedSince += bytes
    if (this.#seen.enough && this.#appendedSince < LOOK_EVERY_BYTES && this.#isFresh()) return
    const { enough } = await this.#look()
    if (!enough) throw this.#full()
  }

  /** For what can wait: space must not get short by it. @throws EngineError LOG_DISK_FULL */
  async requireToSpare(bytes: number): Promise<void> {
    const { spare } = await this.#look()
    if (spare <= bytes) throw this.#full()
  }

  /**
   * Short before it bites: space that is freed inside the file is used again only by what is appended after that. Hundreds of
   * readers ask at the same time, and get the answer of one look.
   */
  async isShort(): Promise<boolean> {
    if (!this.#isFresh()) await (this.#asked ??= this.#look().finally(() => (this.#asked = undefined)))
    return this.#seen.spare <= 0
  }

  #full(): EngineError {
    const { freeMb, reserveMb } = this.#seen
    const text = `the disk of the log has ${freeMb} MB free, and Tailrace keeps ${reserveMb} MB of it free`
    return new EngineError('LOG_DISK_FULL', text, { freeMb, reserveMb })
  }

  #isFresh(): boolean {
    return performance.now() - this.#seen.at < LOOK_EVERY_MS
  }

  async #look() {
    const { bavail, blocks, bsize } = await statfs(this.#folder)
    const free = bavail * bsize
    const reserve = this.#reserveBytes(blocks * bsize)
    this.#appendedSince = 0
    this.#seen = {
      at: performance.now(),
      enough: free > reserve,
      spare: free - reserve - Math.max(SHORT_BYTES, reserve / 4),
      freeMb: Math.round(free / MB),
      reserveMb: Math.round(reserve / MB),
    }
    return this.#seen
  }
}

/**
 * Waits for the disk: lmdb may resolve a write before the disk has it, and after a failed commit no later one settles. So there is a
 * limit, and beyond it, or after a commit that the disk refused, the process must end, for what is on disk is unknown.
 */
export class FlushLimit {
  readonly #timeoutMs: number
  readonly #onFatal: (error: EngineError) => void
  #hasEnded = false

  constructor({ timeoutMs, onFatal }: Readonly<{ timeoutMs: number; onFatal: (error: EngineError) => void }>) {
    this.#timeoutMs = timeoutMs
    this.#onFatal = onFatal
  }

  /** Waits until the disk has a write, and with it all writes before it. */
  async flushed(write: Promise<boolean>): Promise<void> {
    try {
      const { flushed = write }: LmdbWrite = write
      const late = () => this.#failed(`the disk did not finish a write of the log within ${this.#timeoutMs} ms`)
      await within(this.#timeoutMs, Promise.all([write, flushed]), late)
    } catch (cause) {
      if (cause instanceof EngineError) throw cause
      if (isRefused(cause)) throw this.#failed('the disk refused a write of the log')
      throw new EngineError('LOG_APPEND_FAILED', `the log could not be written: ${errorText(cause)}`, {}, { cause })
    }
  }

  /** For each write that nobody waits for, because a later one is waited for: it may be in a commit of its own, which the disk refuses. */
  watch(write: Promise<boolean>): void {
    write.catch((cause: unknown) => {
      if (isRefused(cause)) this.#failed('the disk refused a write of the log')
    })
  }

  #failed(text: string): EngineError {
    const error = new EngineError('LOG_FLUSH_FAILED', text)
    if (!this.#hasEnded) this.#onFatal(error)
    this.#hasEnded = true
    return error
  }
}

/** The promise of a write as lmdb gives it: `flushed` settles when the disk has the write. */
type LmdbWrite = Promise<boolean> & Readonly<{ flushed?: Promise<unknown> }>

/** Whether lmdb could not commit a write. Why not it tells by a promise of its own, which would count as unheard. */
function isRefused(cause: unknown): boolean {
  if (!(cause instanceof Error) || !('commitError' in cause)) return false
  if (cause.commitError instanceof Promise) cause.commitError.catch(() => undefined)
  return true
}
