/**
 * What a workload knows it committed, in the words of the messages that have to come of it: the expectation the oracle
 * compares with. One transaction is one entry; its changes are in the order of the write-ahead log, with the commit_idx
 * each must carry.
 */
import type { Json, Row } from './json.ts'

export type Change = Readonly<{
  /** as in the message: without schema */
  table: string
  action: 'insert' | 'update' | 'delete'
  /** metadata.record_pks */
  key: readonly string[]
  /** an update that moved the row: the key it had */
  oldKey?: readonly string[]
  record: Row
  /** the columns of `changes` that must be there, with their values */
  changes: Row | null
  /** columns that `changes` may have besides: the parts of an old key that stayed the same */
  mayRepeat?: Row
  /** columns whose value the update left alone outside the line: the message has a placeholder for them */
  unchanged: readonly string[]
  /** counts every change and logical message of the transaction, wanted by the sink or not */
  idx: number
  annotations: Json
}>

export type Transaction = Readonly<{
  /** for failures: which of the workload's transactions this is */
  name: string
  /** the commit record starts within these positions of the write-ahead log */
  after: bigint
  before: bigint
  changes: readonly Change[]
}>

/** The literal that stands for a value Postgres did not send (docs/messages.md). */
export const PLACEHOLDER = 'unchanged_toast'

/** Names a message group: one row of one table, as long as it keeps its key. */
export const groupOf = (table: string, key: readonly string[]): string => `${table} ${JSON.stringify(key)}`
