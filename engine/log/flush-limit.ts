/**
 * Waits for the disk: lmdb may resolve a write before the disk has it, and after a failed commit no later one settles. So there is a
 * limit, and beyond it, or after a commit that the disk refused, the process must end, for what is on disk is unknown.
 */
import { EngineError } from '../errors.ts'

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
    const timeout = Promise.withResolvers<never>()
    const timer = setTimeout(
      () => timeout.reject(this.#failed(`the disk has not taken a write of the log within ${this.#timeoutMs} ms`)),
      this.#timeoutMs,
    )
    try {
      const { flushed = write } = write as Promise<boolean> & { flushed?: Promise<unknown> }
      await Promise.race([Promise.all([write, flushed]), timeout.promise])
    } catch (cause) {
      if (cause instanceof EngineError) throw cause
      if (isRefused(cause)) throw this.#failed('the disk has refused a write of the log')
      throw new EngineError(
        'LOG_APPEND_FAILED',
        `the log could not be written: ${cause instanceof Error ? cause.message : String(cause)}`,
        {},
        { cause },
      )
    } finally {
      clearTimeout(timer)
    }
  }

  /** For each write that nobody waits for, because a later one is waited for: it may be in a commit of its own, which the disk refuses. */
  watch(write: Promise<boolean>): void {
    write.catch((cause: unknown) => {
      if (isRefused(cause)) this.#failed('the disk has refused a write of the log')
    })
  }

  #failed(text: string): EngineError {
    const error = new EngineError('LOG_FLUSH_FAILED', text)
    if (!this.#hasEnded) this.#onFatal(error)
    this.#hasEnded = true
    return error
  }
}

/** Whether lmdb could not commit a write. Why not it tells by a promise of its own, which would count as unheard. */
function isRefused(cause: unknown): boolean {
  if (!(cause instanceof Error) || !('commitError' in cause)) return false
  if (cause.commitError instanceof Promise) cause.commitError.catch(() => undefined)
  return true
}
