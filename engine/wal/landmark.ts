/**
 * Whether the server's past is the one that the log knows. A slot that stands below the log's last transaction sends that
 * transaction again: its commit must come at the same LSN, with the same xid and commit time. A server that was put back
 * to an earlier state and written to since has another one there, or none (correctness 37).
 *
 *  L1. Until it came nothing is appended, because it all stands below, and nothing is confirmed: a past that turns out to
 *      be another one is still whole in the slot.
 */
import type { EngineError } from '../errors.ts'
import { formatLsn, type Lsn } from '../lsn.ts'

/** A transaction as its Begin names it. */
export type TransactionName = Readonly<{ lsn: Lsn; xid: number; commitTimeUs: number }>

export class Landmark {
  readonly #expected: TransactionName | undefined
  readonly #otherPast: (found: string) => EngineError
  #isAhead: boolean

  /**
   * @param expected undefined: the slot stands above all that the log has, or what the log has is not known by name
   * @param otherPast makes the error of what was found instead
   */
  constructor(expected: TransactionName | undefined, otherPast: (found: string) => EngineError) {
    this.#expected = expected
    this.#otherPast = otherPast
    this.#isAhead = expected !== undefined
  }

  /** The transaction has yet to come. */
  get isAhead(): boolean {
    return this.#isAhead
  }

  /** A transaction begins. @throws EngineError that of `otherPast` */
  begin({ lsn, xid, commitTimeUs }: TransactionName): void {
    const expected = this.#expected
    if (!this.#isAhead || !expected || lsn < expected.lsn) return
    if (lsn > expected.lsn) throw this.#missed(expected)
    if (xid !== expected.xid || commitTimeUs !== expected.commitTimeUs)
      throw this.#otherPast(`at ${formatLsn(lsn)} stands transaction ${named({ xid, commitTimeUs })}, which was ${named(expected)}`)
    this.#isAhead = false
  }

  /** Everything that committed below `lsn` has been sent. @throws EngineError that of `otherPast` */
  pass(lsn: Lsn): void {
    if (this.#isAhead && this.#expected && lsn > this.#expected.lsn) throw this.#missed(this.#expected)
  }

  #missed(expected: TransactionName): EngineError {
    return this.#otherPast(`at ${formatLsn(expected.lsn)} there is no transaction ${named(expected)} any more`)
  }
}

const named = ({ xid, commitTimeUs }: Omit<TransactionName, 'lsn'>): string => `${xid} of ${new Date(commitTimeUs / 1000).toISOString()}`
