/**
 * Writes seeded random transactions through several sessions at once and keeps the journal of what it committed. The
 * sessions' transactions are open at the same time and commit in another order than they began, some in the same
 * instant, so that their commit records touch. One driver issues the statements one by one: the seed alone decides
 * what is written (and the statement at which it stopped).
 *
 * A lost connection (the server was stopped) is part of life: open transactions are gone, and of one whose COMMIT got
 * no answer the server is asked for its outcome.
 */
import type { Client } from 'pg'
import { parseLsn } from '../../engine/lsn.ts'
import { parseExact, type Row } from './json.ts'
import type { Transaction } from './journal.ts'
import { Random } from './random.ts'
import type { TableContent } from './verdict.ts'
import { annotate, changeMany, deleteRow, insertMany, insertRow, updateRow, type Writer } from './workload-changes.ts'
import { OpenTransaction, Rows } from './workload-model.ts'
import { TABLES } from './workload-tables.ts'
import { pass, until } from '../waiting.ts'

export type WorkloadOptions = Readonly<{
  seed: number
  /** a connection of its own to the source */
  connect: () => Promise<Client>
  sessions?: number
  /** rows of a bigger transaction */
  batch?: readonly [low: number, high: number]
  /** statements per second at most */
  pace?: number
  /** how many of its changes were taken; it waits for more while too many were not */
  taken?: () => number
}>

const WEIGHTS = { insert: 30, update: 38, move: 8, delete: 10, savepoint: 5, rollbackTo: 4, annotate: 4, many: 1, commit: 16, rollback: 2 }
/** More than are written while a service starts on a quiet machine. Without a bound a busy one, where a start takes ten times as long, would have ten times as much to do. */
const MAX_AHEAD = 3_000
const LOOK_EVERY_MS = 20

type Session = { client: Client; open: OpenTransaction | undefined }

export class Workload {
  readonly committed: Transaction[] = []
  readonly #options: Required<Omit<WorkloadOptions, 'taken'>> & Pick<WorkloadOptions, 'taken'>
  readonly #random: Random
  readonly #rows = new Rows()
  readonly #batches: number[][] = []
  #sessions: Session[] = []
  #stamp = 0
  #nextId = 1_000
  #transactions = 0
  #changes = 0

  constructor(options: WorkloadOptions) {
    this.#options = { sessions: 4, batch: [50, 400], pace: 400, ...options }
    this.#random = new Random(options.seed)
  }

  /** changes that the sink has to deliver so far */
  get changes(): number {
    return this.#changes
  }

  /** Writes until aborted, then commits or rolls back what is open and disconnects. */
  async run(signal: AbortSignal): Promise<void> {
    this.#sessions = await Promise.all(Array.from({ length: this.#options.sessions }, () => this.#connect()))
    const { pace, taken } = this.#options
    for (let due = performance.now(); !signal.aborted;) {
      if (taken !== undefined && this.#changes - taken() > MAX_AHEAD) {
        await this.#surviving(() => this.#commitAll()) // who makes a slot on this server waits for whatever is open
        await pass(LOOK_EVERY_MS, 'it writes no faster than is read')
        due = performance.now()
        continue
      }
      await this.#surviving(() => this.#step())
      due += 1_000 / pace
      const early = due - performance.now()
      if (early > 0) await pass(early, 'its pace')
    }
    await this.#surviving(() => this.#commitAll())
    await Promise.all(this.#sessions.map(({ client }) => client.end()))
  }

  /** What the tables hold now. */
  async tables(): Promise<TableContent[]> {
    const { client } = await this.#connect()
    try {
      const tables: TableContent[] = []
      for (const table of TABLES.filter((table) => table.captured)) {
        const { rows } = await client.query<{ row: string }>(`select ${table.rendering}::text as row from ${table.name} t`)
        const content = rows.map(({ row }) => parseExact(row) as Row)
        const keyed = content.map((row) => ({ key: table.keyColumns.map((column) => String(row[column as keyof Row])), row }))
        tables.push({ table: table.name, keyColumns: table.keyColumns, rows: keyed })
      }
      return tables
    } finally {
      await client.end()
    }
  }

  async #step(): Promise<void> {
    const session = this.#random.pick(this.#sessions)
    const random = this.#random.fork() // a choice that finds nothing to do must not shift the rest
    const kind = random.weighted(WEIGHTS)
    if (!session.open && (kind === 'commit' || kind === 'rollback')) return
    const transaction = (session.open ??= await this.#begin(session.client))
    const writer: Writer = { client: session.client, transaction, rows: this.#rows, random, nextStamp: () => ++this.#stamp }
    switch (kind) {
      case 'insert':
        return insertRow(writer)
      case 'update':
        return updateRow(writer, { move: false })
      case 'move':
        return updateRow(writer, { move: true })
      case 'delete':
        return deleteRow(writer)
      case 'annotate':
        return annotate(writer)
      case 'savepoint': {
        const name = `s${transaction.points.length}`
        await session.client.query(`savepoint ${name}`)
        return transaction.save(name)
      }
      case 'rollbackTo': {
        if (transaction.points.length === 0) return
        const name = random.pick(transaction.points)
        await session.client.query(`rollback to savepoint ${name}`)
        return transaction.rollbackTo(name)
      }
      case 'many':
        return this.#many(writer)
      case 'rollback':
        await session.client.query('rollback')
        return this.#end(session, 'rolled back')
      case 'commit': {
        const together = random.chance(0.4) ? this.#sessions.filter((other) => other.open && random.chance(0.7)) : []
        return this.#commit([session, ...together.filter((other) => other !== session)])
      }
    }
  }

  async #begin(client: Client): Promise<OpenTransaction> {
    await client.query('begin')
    return new OpenTransaction(++this.#transactions)
  }

  async #many(writer: Writer): Promise<void> {
    const { random } = writer
    const kind = random.weighted({ insert: 4, update: 2, delete: 3 })
    if (kind !== 'insert' && this.#batches.length > 0) {
      await changeMany(writer, random.pick(this.#batches), kind)
      return
    }
    const ids = Array.from({ length: random.int(...(this.#options.batch as [number, number])) }, () => this.#nextId++)
    this.#batches.push(ids)
    await insertMany(writer, ids)
  }

  #commitAll(): Promise<void> {
    return this.#commit(this.#sessions.filter((session) => session.open))
  }

  async #commit(sessions: readonly Session[]): Promise<void> {
    for (const session of sessions) {
      const transaction = session.open!
      // deletes of tables without the old row say nothing of which transaction they belong to
      if (transaction.changes.length > 0 && transaction.changes.every((change) => (change.record['stamp'] ?? null) === null))
        await insertRow(this.#writer(session), [TABLES[0], [this.#nextId++]])
    }
    const outcomes = await Promise.allSettled(
      sessions.map(async (session) => {
        const [, before, , after] = (await session.client.query(
          `insert into outcome values (${session.open!.number}); select pg_current_wal_insert_lsn()::text as lsn; commit; select pg_current_wal_insert_lsn()::text as lsn`,
        )) as unknown as { rows: { lsn: string }[] }[]
        this.#enter(session, parseLsn(before!.rows[0]!.lsn), parseLsn(after!.rows[0]!.lsn))
      }),
    )
    for (const outcome of outcomes) if (outcome.status === 'rejected') throw outcome.reason
  }

  #writer(session: Session): Writer {
    return {
      client: session.client,
      transaction: session.open!,
      rows: this.#rows,
      random: this.#random.fork(),
      nextStamp: () => ++this.#stamp,
    }
  }

  #enter(session: Session, after: bigint, before: bigint): void {
    const { number, changes } = session.open!
    this.committed.push({ name: `transaction ${number}`, after, before, changes: [...changes] })
    this.#changes += changes.length
    this.#end(session, 'committed')
  }

  #end(session: Session, outcome: 'committed' | 'rolled back'): void {
    this.#rows.end(session.open!, outcome)
    session.open = undefined
  }

  async #connect(): Promise<Session> {
    let last: unknown
    const client = await until(
      () => `a connection: ${String(last)}`,
      () => this.#options.connect().catch((error: unknown) => void (last = error)),
    )
    client.on('error', () => {}) // the next statement tells
    return { client, open: undefined }
  }

  async #surviving(work: () => Promise<void>): Promise<void> {
    try {
      await work()
    } catch (error) {
      if (!isLostConnection(error)) throw error
      await this.#reconnect()
    }
  }

  async #reconnect(): Promise<void> {
    for (const session of this.#sessions) {
      session.client.end().catch(() => {})
      const { client } = await this.#connect()
      session.client = client
      if (!session.open) continue
      // a commit whose answer was lost, or never sent: only the server knows
      if (await isCommitted(client, session.open.number)) this.#enter(session, 0n, 0x7fff_ffff_ffff_ffffn)
      else this.#end(session, 'rolled back')
    }
  }
}

/** Where the old session still works at its COMMIT, the insert waits for the outcome. */
async function isCommitted(client: Client, transaction: number): Promise<boolean> {
  const { rowCount } = await client.query('insert into outcome values ($1) on conflict do nothing', [transaction])
  return rowCount === 0
}

/** The server ended the session or is going: SQLSTATE 57P0x, class 08, or no answer at all. */
function isLostConnection(error: unknown): boolean {
  const code = (error as { code?: string }).code
  if (code !== undefined) return /^(57P0|08)/.test(code) || /^E[A-Z]+$/.test(code)
  return error instanceof Error && /[Cc]onnection terminated|not queryable|connection error/.test(error.message) // pg gives these no code
}
