/** What is left on the disk of the log: appends stop at a reserve, so that commits and trims still work (correctness 27). */
import { statfs } from 'node:fs/promises'
import { EngineError } from '../errors.ts'

const MB = 1024 * 1024
const LOOK_EVERY_MS = 1000
const LOOK_EVERY_BYTES = 64 * MB
/** So much above the reserve, and at least a quarter of it, space counts as short. */
const SHORT_BYTES = 64 * MB

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
    const text = `${freeMb} MB are left on the disk of the log, of which ${reserveMb} MB are kept in reserve`
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
