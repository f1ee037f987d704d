/**
 * Compares everything a sink's clients got with everything that was committed. Exact in both directions: each committed
 * transaction must have come whole, each of its changes at its index with its content; nothing else may have come; and
 * folding the messages in the order of their positions must give the tables as `select *` shows them.
 * Pure: it is given both sides.
 */
import { canonical, type Row } from './json.ts'
import { groupOf, PLACEHOLDER, type Change, type Transaction } from './journal.ts'
import { comparePlaces, type Message } from './oracle.ts'

/** A table as the database has it at the end. */
export type TableContent = Readonly<{
  table: string
  keyColumns: readonly string[]
  rows: readonly Readonly<{ key: readonly string[]; row: Row }>[]
}>

const REPORTED = 20

/** Transactions by the position of their commit. */
export type Commits = ReadonlyMap<bigint, Transaction>

/**
 * @param commits which transaction committed where; when absent that is found from the messages themselves
 * @returns what is wrong, in words; empty when all is right
 */
export function judge(
  received: readonly Message[],
  committed: readonly Transaction[],
  tables: readonly TableContent[],
  commits: Commits = commitsOf(received, committed),
): string[] {
  const faults: string[] = []
  const ordered = received.toSorted(comparePlaces)
  compareTransactions(ordered, committed, commits, faults)
  compareTables(ordered, tables, faults)
  return faults.length > REPORTED ? [...faults.slice(0, REPORTED), `… and ${faults.length - REPORTED} more`] : faults
}

/** Which transaction committed where, as far as the messages tell. */
export function commitsOf(received: readonly Message[], committed: readonly Transaction[]): Map<bigint, Transaction> {
  const byChange = new Map<string, Transaction>()
  for (const transaction of committed)
    for (const change of transaction.changes) if (isStamped(change)) byChange.set(signature(change), transaction)
  const commits = new Map<bigint, Transaction>()
  for (const message of received) {
    const transaction = isStamped(message) && !commits.has(message.lsn) ? byChange.get(signature(message)) : undefined
    if (transaction) commits.set(message.lsn, transaction)
  }
  return commits
}

/** The same transactions with less in them. */
export function reduced(commits: Commits, isTaken: (change: Change, lsn: bigint) => boolean): Map<bigint, Transaction> {
  return new Map(
    [...commits].map(([lsn, transaction]) => [
      lsn,
      { ...transaction, changes: transaction.changes.filter((change) => isTaken(change, lsn)) },
    ]),
  )
}

function compareTransactions(ordered: readonly Message[], committed: readonly Transaction[], commits: Commits, faults: string[]): void {
  const found = new Set<Transaction>()
  const byLsn = Map.groupBy(ordered, (message) => message.lsn)
  for (const [lsn, messages] of byLsn) {
    const transaction = commits.get(lsn)
    if (!transaction) faults.push(`nobody committed ${messages.map(describe).join(', ').slice(0, 500)}`)
    else if (found.has(transaction)) faults.push(`${transaction.name} came a second time, at ${lsn}`)
    else {
      found.add(transaction)
      if (lsn < transaction.after || lsn >= transaction.before)
        faults.push(
          `${transaction.name} came with commit_lsn ${lsn}, but its commit lies from ${transaction.after} to ${transaction.before}`,
        )
      compareChanges(transaction, messages, faults)
    }
  }
  for (const transaction of committed) {
    if (!found.has(transaction) && transaction.changes.length > 0)
      faults.push(
        `lost: ${transaction.name} (commit from ${transaction.after} to ${transaction.before}): ${transaction.changes.map(describe).join(', ').slice(0, 500)}`,
      )
  }
}

function compareChanges(transaction: Transaction, messages: readonly Message[], faults: string[]): void {
  // a change of a key may be a delete and an insert, at one index
  const partOf = ({ idx, action }: Pick<Change, 'idx'> & { readonly action: string }) => `${idx}${action === 'delete' ? ' delete' : ''}`
  const expected = new Map(transaction.changes.map((change) => [partOf(change), change]))
  for (const message of messages) {
    const change = expected.get(partOf(message))
    expected.delete(partOf(message))
    if (!change) faults.push(`${transaction.name} has nothing to send at index ${message.idx}, but ${describe(message)} came`)
    else for (const difference of differences(change, message)) faults.push(`${transaction.name}, ${describe(message)}: ${difference}`)
  }
  for (const change of expected.values()) faults.push(`lost: ${describe(change)} of ${transaction.name}`)
}

function differences(change: Change, message: Message): string[] {
  const found: string[] = []
  const compare = (what: string, want: Parameters<typeof canonical>[0], got: Parameters<typeof canonical>[0]) => {
    if (canonical(want) !== canonical(got)) found.push(`${what} is ${canonical(got).slice(0, 200)}, not ${canonical(want).slice(0, 200)}`)
  }
  compare('table', change.table, message.table)
  compare('action', change.action, message.action)
  compare('record_pks', change.key, message.key)
  compare('transaction_annotations', change.annotations, message.annotations)
  const record = { ...change.record, ...Object.fromEntries(change.unchanged.map((column) => [column, PLACEHOLDER])) }
  for (const column of columnsOf(record, message.record)) compare(`record.${column}`, record[column], message.record[column])
  if (change.changes === null || message.changes === null) compare('changes', change.changes, message.changes)
  else {
    for (const column of columnsOf(change.changes, message.changes)) {
      if (column in change.changes || !(column in (change.mayRepeat ?? {})))
        compare(`changes.${column}`, change.changes[column], message.changes[column])
      else compare(`changes.${column}`, change.mayRepeat![column], message.changes[column])
    }
  }
  return found
}

const columnsOf = (a: Row, b: Row): string[] => [...new Set([...Object.keys(a), ...Object.keys(b)])]

/** What a client that keeps a copy would hold, compared with the tables. */
function compareTables(ordered: readonly Message[], tables: readonly TableContent[], faults: string[]): void {
  const fold = new Map<string, Row>()
  const keyColumns = new Map(tables.map(({ table, keyColumns }) => [table, keyColumns]))
  for (const message of ordered) {
    if (!keyColumns.has(message.table)) continue // the sink has had it only at times
    const at = groupOf(message.table, message.key)
    if (message.action === 'delete') {
      fold.delete(at)
      continue
    }
    const former = formerKey(message, keyColumns.get(message.table) ?? [])
    const before = fold.get(groupOf(message.table, former))
    const kept = Object.entries(message.record).map(([column, value]) => [
      column,
      value === PLACEHOLDER ? (before?.[column] ?? value) : value,
    ])
    if (former !== message.key) fold.delete(groupOf(message.table, former))
    fold.set(at, Object.fromEntries(kept) as Row)
  }
  for (const { table, rows } of tables) {
    for (const { key, row } of rows) {
      const at = groupOf(table, key)
      const folded = fold.get(at)
      fold.delete(at)
      if (!folded) faults.push(`the fold has no ${at}; the table has`)
      else if (canonical(folded) !== canonical(row)) {
        const stale = columnsOf(row, folded).filter((column) => canonical(row[column]) !== canonical(folded[column]))
        faults.push(
          `the fold has another ${at} than the table in ${stale.map((column) => `${column} (${canonical(folded[column]).slice(0, 80)})`).join(', ')}`,
        )
      }
    }
  }
  for (const at of fold.keys()) faults.push(`the fold has ${at}, which the table has not`)
}

/** The key a row had before this message: `changes` shows it when the row moved. */
function formerKey(message: Message, columns: readonly string[]): readonly string[] {
  const { changes } = message
  if (message.action !== 'update' || !changes || !columns.some((column) => column in changes)) return message.key
  return columns.map((column, at) => {
    const old = changes[column]
    return old === undefined ? message.key[at]! : typeof old === 'string' ? old : canonical(old)
  })
}

type Named = Pick<Change, 'table' | 'key'> & { readonly action: string }

/** Every version of every row has its own stamp. Deletes without the old row have none: no transaction consists of them alone. */
const isStamped = (change: Pick<Change, 'record'>): boolean => (change.record['stamp'] ?? null) !== null

const signature = (change: Named & Pick<Change, 'record'>): string =>
  `${change.table} ${change.action} ${JSON.stringify(change.key)} ${canonical(change.record['stamp'])}`

const describe = (change: Named & Pick<Change, 'idx'>): string =>
  `${change.action} of ${groupOf(change.table, change.key)} at index ${change.idx}`
