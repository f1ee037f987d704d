/**
 * Backfills: how fast the rows that a table has get into the log, and to a client, beside what Postgres and the client can do: a plain
 * `COPY (select row_to_json(t) from t) to stdout` of the same table, whose reader throws away what it gets, and the drain of the same
 * rows by the same client when they come as inserts of the stream.
 *
 * A backfill into the log is one of a sink that is paused, and has room for all of it, so that no delivery holds it up; one to a filter is
 * of a sink whose filter lets nothing pass. Their clock is that of the backfill itself, from its request to its end; that of a client stops
 * with its last acknowledgement.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { Client } from 'pg'
import { ReplicationWire } from '../../engine/wal/connection/replication-wire.ts'
import type { Bench } from '../postgres.ts'
import { childrenOf, UsageMeter, type Usage } from '../process-usage.ts'
import { wallClock, type Task } from '../system.ts'
import { tailraceOf, type RunningTailrace, type Shape } from '../systems/tailrace.ts'
import { WarmMemory } from '../warm-memory.ts'
import { dropSlot, walSender } from './drain.ts'

/** One way of the rows. @property processes what each of them used */
export type BackfillRun = Readonly<{ rowsPerSecond: number; processes: Readonly<Record<string, Usage>> }>
export type BackfillTurn = Readonly<{
  copy: BackfillRun
  /** into the log alone: the sink is paused */
  log: BackfillRun
  /** to a filter that lets nothing pass */
  filter: BackfillRun
  /** to a client */
  read: BackfillRun
  /** the same rows as inserts of the stream, to that client */
  drain: BackfillRun
}>
export type Backfilled = Readonly<{ rows: number; rowBytes: number; turns: readonly BackfillTurn[] }>

/** the table whose rows are read */
export const EXISTING = 'existing'
const PUBLICATION = 'bench_existing'
/** before the rows were written, and after */
const BEFORE = 'bench_before'
const AFTER = 'bench_after'
const LOOK_EVERY_MS = 50
const LIMIT_MS = 1_800_000

/** Rows of about 400 bytes, as those of the workload, or of 1 MB. */
const DDL = `create table ${EXISTING} (id bigint primary key, title text not null, price numeric(12, 2) not null, written_at timestamptz not null,
  attributes jsonb not null, created_at timestamp not null)`
const NARROW_TITLE = `'title of row ' || i || repeat(' the quick brown fox', 8)`
const WIDE_TITLE = `repeat(md5(i::text), 32768)`
const rowsOf = (rows: number, title: string): string => `insert into ${EXISTING}
  select i, ${title}, (i % 100000) * 1.01, clock_timestamp(),
    jsonb_build_object('colour', 'deep blue', 'weight', i % 5000, 'tags', jsonb_build_array('new', 'sale', 'heavy')), localtimestamp
  from generate_series(1, ${rows}) i`

/** Makes the table, without rows. */
export async function makeExisting(client: Client): Promise<void> {
  await client.query(DDL)
}

/** Fills it with rows of about 400 bytes or of 1 MB. */
export async function fillExisting(client: Client, rows: number, isWide: boolean): Promise<void> {
  await client.query(rowsOf(rows, isWide ? WIDE_TITLE : NARROW_TITLE))
  await client.query(`vacuum analyze ${EXISTING}`)
}

/**
 * @property rows of the table @property pairs how often all of it is measured @property isWide rows have 1 MB @property isCold memory isn't warmed
 * @property profileFolder where the service leaves a CPU profile of each run; undefined: it leaves none
 */
type BackfillOptions = Readonly<{ rows: number; pairs: number; isWide: boolean; isCold: boolean; profileFolder: string | undefined }>

/** Measures backfills of a table beside a `COPY` of it, and beside a drain of its rows. */
export async function backfill(
  bench: Bench,
  { rows, pairs, isWide, isCold, profileFolder }: BackfillOptions,
  say: (text: string) => void,
): Promise<Backfilled> {
  await using opened = new AsyncDisposableStack()
  const client = opened.adopt(new Client(bench.database), (each) => each.end())
  await client.connect()
  await makeExisting(client)
  await client.query(`create publication ${PUBLICATION} for table ${EXISTING}`) // ahead of the rows: they are streamed, too
  for (const slot of [BEFORE, AFTER]) opened.defer(() => dropSlot(client, slot))
  await client.query(`select pg_create_logical_replication_slot($1, 'pgoutput')`, [BEFORE])
  await fillExisting(client, rows, isWide)
  await client.query(`select pg_create_logical_replication_slot($1, 'pgoutput')`, [AFTER])
  const { rows: sizes } = await client.query<{ bytes: number }>(`select avg(octet_length(t.*::text))::float8 as bytes from ${EXISTING} t`)
  const turns: BackfillTurn[] = []
  const asked = { rows, isCold, profileFolder }
  for (let pair = 1; pair <= pairs; pair++) {
    await client.query('checkpoint')
    const turn = {
      copy: await copied(bench, rows),
      log: await backfilled(bench, client, { ...asked, shape: { isPaused: true } }),
      filter: await backfilled(bench, client, { ...asked, shape: { through: 'nothing' } }),
      read: await backfilled(bench, client, { ...asked, shape: {} }),
      drain: await drained(bench, client, { ...asked, shape: {} }),
    }
    turns.push(turn)
    const { copy, log, filter, read, drain } = turn
    const rate = (run: BackfillRun) => `${Math.round(run.rowsPerSecond).toLocaleString('en')}`
    const ofCopy = (run: BackfillRun) => `${rate(run)}/s (${(run.rowsPerSecond / copy.rowsPerSecond).toFixed(2)})`
    say(
      `${pair}/${pairs}  COPY ${rate(copy)}/s  into the log ${ofCopy(log)}  to a filter ${ofCopy(filter)}  to a client ${rate(read)}/s, its drain ${rate(drain)}/s (${(read.rowsPerSecond / drain.rowsPerSecond).toFixed(2)})`,
    )
  }
  return { rows, rowBytes: Math.round(sizes[0]?.bytes ?? 0), turns }
}

/** What Postgres gives a reader that does nothing with it. */
async function copied(bench: Bench, rows: number): Promise<BackfillRun> {
  let bytes = 0
  const connection = new ReplicationWire(bench.database, (_bytes, start, end) => void (bytes += end - start))
  const answering = { ...bench.database, connection }
  const reader = new Client(answering)
  await reader.connect()
  try {
    const { rows: pids } = await reader.query<{ pid: number }>('select pg_backend_pid() as pid')
    using meter = new UsageMeter({ postgres: () => [pids[0]?.pid ?? 0], reader: () => [process.pid] })
    const from = wallClock()
    await reader.query(`copy (select row_to_json(t) from ${EXISTING} t) to stdout`)
    return { rowsPerSecond: rows / ((wallClock() - from) / 1000), processes: meter.read() }
  } finally {
    await reader.end()
  }
}

type Measured = Readonly<{ rows: number; isCold: boolean; profileFolder: string | undefined; shape: Pick<Shape, 'through' | 'isPaused'> }>

async function backfilled(bench: Bench, client: Client, measured: Measured): Promise<BackfillRun> {
  const { rows, shape } = measured
  return withService(bench, client, { slot: AFTER, ...measured }, async (running, walsender) => {
    const others = () => childrenOf(bench.postmaster).filter((child) => child !== walsender)
    using meter = new UsageMeter({ ...running.processes, walsender: () => [walsender], 'Postgres, the rest': others })
    const begun = backfillOf(await running.ask('POST', '/api/sinks/bench/backfills', { table: `public.${EXISTING}` }))
    const endedMs = shape.through || shape.isPaused ? await ended(running, begun.id) : await running.reached
    return { rowsPerSecond: rows / ((endedMs - Date.parse(begun.inserted_at)) / 1000), processes: meter.read() }
  })
}

async function drained(bench: Bench, client: Client, measured: Measured): Promise<BackfillRun> {
  const { rows } = measured
  return withService(bench, client, { slot: BEFORE, ...measured }, async (running, walsender, startedMs) => {
    using meter = new UsageMeter({ ...running.processes, walsender: () => [walsender] })
    const reachedMs = await running.reached
    return { rowsPerSecond: rows / ((reachedMs - startedMs) / 1000), processes: meter.read() }
  })
}

type Backfill = Readonly<{ id: string; state: string; inserted_at: string; completed_at: string | null; error: string | null }>
const backfillOf = (answer: unknown): Backfill => answer as Backfill // as the API answers it

/** @returns when it was completed, ms since the epoch */
async function ended(running: RunningTailrace, id: string): Promise<number> {
  const until = AbortSignal.timeout(LIMIT_MS)
  for (;;) {
    const { state, completed_at: completedAt, error } = backfillOf(await running.ask('GET', `/api/sinks/bench/backfills/${id}`))
    if (completedAt !== null) return Date.parse(completedAt)
    if (state !== 'active') throw new Error(`the backfill is ${state}: ${JSON.stringify(error)}`)
    await delay(LOOK_EVERY_MS, undefined, { signal: until })
  }
}

async function withService(
  bench: Bench,
  client: Client,
  { slot, rows, shape, isCold, profileFolder }: Measured & Readonly<{ slot: string }>,
  work: (running: RunningTailrace, walsender: number, startedMs: number) => Promise<BackfillRun>,
): Promise<BackfillRun> {
  const copy = `${slot}_copy`
  await client.query('select pg_copy_logical_replication_slot($1, $2)', [slot, copy])
  const task: Task = {
    database: bench.database,
    slot: copy,
    publication: PUBLICATION,
    table: `public.${EXISTING}`,
    changes: shape.through || shape.isPaused ? Infinity : rows,
    recordDelays: false,
    ...(profileFolder !== undefined && { profileFolder }),
  }
  try {
    using memory = isCold ? undefined : await WarmMemory.touch()
    await using running = await tailraceOf('Tailrace', { ...shape, partitions: 1, processes: 1 }).start(task)
    const { pid, startedMs } = await walSender(client, copy, running.reached)
    if (slot === AFTER) await running.served(AbortSignal.timeout(LIMIT_MS))
    memory?.giveBack()
    return await work(running, pid, startedMs)
  } finally {
    await dropSlot(client, copy)
  }
}
