/**
 * Where decoding stands: the order key of the message that comes next (docs/rules.md, rule 1), and whether the log has it already.
 * Counts every insert, update, delete, truncate and transactional logical message between Begin and Commit.
 */
import { EngineError } from '../errors.ts'
import type { Reached } from '../log/log.ts'
import type { Lsn } from '../lsn.ts'
import { comparePositions, ORIGIN, PART, type Position } from '../position.ts'
import { historyAt, type Incarnation, type Landmark } from './history.ts'
import type { PackTransaction } from './packing.ts'

/** The place of a run in its stream. */
export class Cursor {
  readonly #incarnations: readonly Incarnation[]
  readonly #durable: Position
  readonly #landmark: Landmark | undefined
  #history = 0
  #transaction: PackTransaction | undefined
  #next = 0
  #durableIdx = -1
  /** the last message that was handled whole: an append never claims more */
  #completed: Reached

  /**
   * @param durable how far the log has everything: messages up to there are decoded and not appended (docs/rules.md, rule 12)
   * @param landmark is shown each transaction that begins
   */
  constructor(incarnations: readonly Incarnation[], durable: Reached | undefined, landmark?: Landmark) {
    this.#incarnations = incarnations
    this.#durable = durable?.position ?? ORIGIN
    this.#completed = durable ?? { position: ORIGIN }
    this.#landmark = landmark
  }

  get history(): number {
    return this.#history
  }
  get isInTransaction(): boolean {
    return this.#transaction !== undefined
  }
  get transaction(): PackTransaction {
    if (!this.#transaction) throw new EngineError('MESSAGE_MALFORMED', 'Postgres sent a change outside of a transaction')
    return this.#transaction
  }

  begin(lsn: Lsn, xid: number, commitTimeUs: number): void {
    if (this.#transaction) throw new EngineError('MESSAGE_MALFORMED', 'Postgres began a transaction within another one')
    const transaction = { lsn, xid, commitTimeUs }
    this.#landmark?.begin(transaction)
    this.#history = historyAt(this.#incarnations, lsn)
    this.#transaction = transaction
    this.#next = 0
    const durable = this.#durable
    if (this.#history !== durable.history) this.#durableIdx = this.#history < durable.history ? Infinity : -1
    else this.#durableIdx = lsn < durable.lsn ? Infinity : lsn === durable.lsn ? durable.idx : -1
  }

  commit(): void {
    this.settle()
    if (!this.#transaction) throw new EngineError('MESSAGE_MALFORMED', 'Postgres sent a commit outside of a transaction')
    this.#transaction = undefined
  }

  /** Index of the message that comes next, within its transaction. */
  get idx(): number {
    return this.#next
  }

  /** Position of the message that comes next. */
  get position(): Position {
    return { history: this.#history, lsn: this.transaction.lsn, idx: this.#next, part: PART.row }
  }

  /** Whether the log holds the message that comes next. */
  get isDurable(): boolean {
    return this.#next <= this.#durableIdx
  }

  /** The next message was handled; all it brought is with the packs. */
  complete(): void {
    this.#next++
  }

  /** The last message that was counted, in which transaction: not after each one, for it costs objects. */
  settle(): Reached {
    if (this.#transaction && this.#next > 0) {
      const { lsn, xid, commitTimeUs } = this.#transaction
      const position = { history: this.#history, lsn, idx: this.#next - 1, part: PART.row }
      if (comparePositions(position, this.#completed.position) > 0) this.#completed = { position, transaction: { xid, commitTimeUs } }
    }
    return this.#completed
  }
}
