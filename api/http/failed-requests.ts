/**
 * Tells the log of requests that we could not serve. One that is to be sent again is expected, and whoever moves a
 * partition or restarts a database has thousands of them: one short line for each code every few seconds, with how many
 * there were, and the rest for those who debug. What nobody expects has its stack.
 */
import { isRetryable, errorText } from '../../engine/errors.ts'
import type { Logger } from '../../engine/logger.ts'
import type { ErrorBody } from './error-answers.ts'

const TOLD_EVERY_MS = 10_000

/** Says in the log which requests failed, and how many. */
export class FailedRequests {
  readonly #logger: Logger
  readonly #clock: () => number
  /** by code: when it was told last, and how many have come since */
  readonly #putOff = new Map<string, { toldAt: number; since: number }>()

  /** @param clock monotonic milliseconds */
  constructor(logger: Logger, clock = () => performance.now()) {
    this.#logger = logger
    this.#clock = clock
  }

  /** A request was answered with a status of 500 or above. */
  add(error: unknown, code: ErrorBody['code'], request: Readonly<{ method: string; path: string | undefined }>): void {
    if (!isRetryable(error)) return void this.#logger.error({ err: error, code, ...request }, 'a request failed')
    const known = this.#putOff.get(code) ?? { toldAt: -Infinity, since: 0 }
    this.#putOff.set(code, known)
    known.since++
    const fields = { code, ...request, reason: errorText(error) }
    if (this.#clock() - known.toldAt < TOLD_EVERY_MS) return void this.#logger.debug(fields, 'a request was put off')
    this.#logger.warn({ ...fields, requests: known.since }, 'requests are put off: whoever sent them should try again')
    known.toldAt = this.#clock()
    known.since = 0
  }
}
