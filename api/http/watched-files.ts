/**
 * Files that a setting names, which are read at the start and again every five seconds: who renews them restarts nothing. New ones that can't
 * be used, as in the middle of a renewal, change nothing: those of before count, and the log says what is wrong once they stay so.
 */
import { readFileSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import { EngineError, errorText } from '../../engine/errors.ts'
import type { Logger } from '../../engine/logger.ts'

const LOOK_EVERY_MS = 5_000

/** A file, and the variable that names it. */
export type NamedFile = Readonly<{ variable: string; file: string }>

/** @property check throws where the texts of the files can't be used @property refused what the log says of new ones that can't be used */
type WatchedFilesOptions = Readonly<{
  files: readonly NamedFile[]
  check: (texts: readonly string[]) => void
  refused: string
  logger: Pick<Logger, 'error'>
  /** only tests look more often */
  lookEveryMs?: number | undefined
}>

/** Some files that only count together, in the order in which they were named. */
export class WatchedFiles implements Disposable {
  readonly #options: WatchedFilesOptions
  readonly #timer: NodeJS.Timeout
  readonly #listeners = new Set<() => void>()
  #texts: readonly string[]
  /** why the files can't be used, and how often that was found */
  #refusal: Readonly<{ reason: string; times: number }> | undefined

  /** @throws EngineError SETTING_INVALID: a file can't be read, and whatever `check` throws */
  constructor(options: WatchedFilesOptions) {
    this.#options = options
    this.#texts = options.files.map(readNamed)
    options.check(this.#texts)
    let isLooking = false
    this.#timer = setInterval(() => {
      if (isLooking) return
      isLooking = true
      void this.#look().finally(() => (isLooking = false))
    }, options.lookEveryMs ?? LOOK_EVERY_MS).unref()
  }

  /** The contents of the files as they were when all of them were last read and accepted. */
  get texts(): readonly string[] {
    return this.#texts
  }

  /** From now on a listener hears when there are new texts. */
  watch(listener: () => void): void {
    this.#listeners.add(listener)
  }

  [Symbol.dispose](): void {
    clearInterval(this.#timer)
  }

  async #look(): Promise<void> {
    try {
      const texts = await Promise.all(this.#options.files.map(({ file }) => readFile(file, 'utf8')))
      if (texts.some((text, i) => text !== this.#texts[i])) {
        this.#options.check(texts)
        this.#texts = texts
        for (const listener of this.#listeners) listener()
      }
      this.#refusal = undefined
    } catch (error) {
      this.#tellRefusal(errorText(error))
    }
  }

  /** One file may be written some moments before another: what is wrong twice is told, and once. */
  #tellRefusal(reason: string): void {
    const times = this.#refusal?.reason === reason ? this.#refusal.times + 1 : 1
    this.#refusal = { reason, times }
    if (times === 2) this.#options.logger.error({ reason }, this.#options.refused)
  }
}

/** @throws EngineError SETTING_INVALID */
function readNamed({ variable, file }: NamedFile): string {
  try {
    return readFileSync(file, 'utf8')
  } catch (cause) {
    throw new EngineError('SETTING_INVALID', `${variable}: ${errorText(cause)}`, { variables: variable }, { cause })
  }
}
