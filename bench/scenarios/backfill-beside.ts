/**
 * The cost of a backfill to the sinks beside it.
 *
 * Latency: a writer keeps a steady pace on one table, a pull client reads it, and in turn a backfill of another table goes on or doesn't:
 * to a client of another sink, into the log for a sink whose filter lets nothing pass, or to the very sink and client whose changes are
 * timed. Where a backfill is over, the next one of the same table begins.
 *
 * Drain: of many sinks on one table two are read, and in turn the second of them is being backfilled or isn't. Its backfill has begun, so that
 * it has a stream of its own, when the walsender is stopped and the range is written; the clock runs from when it may send on.
 */
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { Client } from 'pg'
import type { Bench } from '../postgres.ts'
import { childrenOf, UsageMeter, type Usage } from '../process-usage.ts'
import { Reader } from '../reader.ts'
import { wallClock, type Delays, type Task } from '../system.ts'
import { NOTHING_PASSES, tailraceOf, type RunningTailrace } from '../systems/tailrace.ts'
import { TABLE, writeWorkload } from '../workload.ts'
import { EXISTING, fillExisting, makeExisting } from './backfill.ts'
import { dropSlot, walSender } from './drain.ts'

/** The sink that the backfill is for: another one that a client reads, another one whose filter drops all, or the one that is timed. */
export const BESIDE = ['read', 'log', 'own'] as const
export type Beside = (typeof BESIDE)[number]

/** One measurement. @property rowsPerSecond of the backfill. @property retainedMb of write-ahead log, at most, for the slot */
export type BesidePhase = Readonly<{
  delays: Delays
  rowsPerSecond: number
  retainedMb: number
  seconds: number
  processes: Readonly<Record<string, Usage>>
}>
export type BesideTurn = Readonly<{ idle: BesidePhase; backfill: BesidePhase }>
export type BesideLatency = Readonly<{ beside: Beside; rows: number; perSecond: number; seconds: number; turns: readonly BesideTurn[] }>

/** One drain. @property othersMb what the log holds for another sink that nobody reads */
export type BesideDrain = Readonly<{ perSecond: number; othersMb: number; logMb: number; processes: Readonly<Record<string, Usage>> }>
export type BesideDrains = Readonly<{
  sinks: number
  changes: number
  pairs: readonly Readonly<{ without: BesideDrain; backfill: BesideDrain }>[]
}>

const PUBLICATION = 'bench_beside'
const SLOT = 'bench_beside'
const SINK = 'backfilled'
const SESSIONS = 8
const WARM_UP_SECONDS = 5
const LOOK_EVERY_MS = 100
const SERVED_MS = 60_000
/** Backlogs that `/info` tells are of some time ago. */
const BACKLOG_KNOWN_MS = 6_000
const MB = 2 ** 20

type Backfill = Readonly<{ id: string; state: string; rows_processed_count: number }>
const backfillOf = (answer: unknown): Backfill => answer as Backfill // as the API answers it

type BesideOptions = Readonly<{ rows: number; pairs: number; perSecond: number; seconds: number; only: string | undefined }>

/** @param rows of the table that is backfilled. @param pairs turns of each kind. @param perSecond changes of the table that is timed. @param only one kind */
export async function backfillLatency(
  bench: Bench,
  options: BesideOptions,
  told: (result: BesideLatency) => void,
): Promise<readonly BesideLatency[]> {
  const { rows, pairs, perSecond, seconds, only } = options
  await using opened = new AsyncDisposableStack()
  const client = opened.adopt(new Client(bench.database), (each) => each.end())
  await client.connect()
  await makeExisting(client)
  await fillExisting(client, rows, false)
  await client.query(`create publication ${PUBLICATION} for table ${EXISTING}, ${TABLE}`)
  const results: BesideLatency[] = []
  for (const beside of BESIDE.filter((each) => only === undefined || each === only)) {
    const turns: BesideTurn[] = []
    await withService(bench, client, 0, async (running) => {
      await using reader = await begin(running, beside)
      const load = { url: bench.url, sessions: SESSIONS, perSecond, waitForDisk: true }
      await writeWorkload({ ...load, changes: perSecond * WARM_UP_SECONDS })
      await backfillFor(running, beside, () => delay(WARM_UP_SECONDS * 1000))
      for (let pair = 1; pair <= pairs; pair++) {
        const write = () =>
          Promise.race([writeWorkload({ ...load, changes: perSecond * seconds }), running.reached, reader?.reached].filter(Boolean))
        const idle = await phase(bench, client, running, async () => void (await write()))
        turns.push({ idle, backfill: await phase(bench, client, running, () => backfillFor(running, beside, write)) })
      }
    })
    const result = { beside, rows, perSecond, seconds, turns }
    results.push(result)
    told(result)
  }
  return results
}

/** Makes the sink that is backfilled, and its client. */
async function begin(running: RunningTailrace, beside: Beside): Promise<Reader | undefined> {
  const source = { include_tables: [`public.${EXISTING}`] }
  if (beside === 'own') {
    await running.ask('PATCH', '/api/sinks/bench', { source: { include_tables: [`public.${TABLE}`, `public.${EXISTING}`] } })
    return undefined
  }
  if (beside === 'log') await running.ask('POST', '/api/functions', { name: 'nothing', type: 'filter', code: NOTHING_PASSES })
  const sink = {
    name: SINK,
    database: 'bench',
    source,
    destination: { type: 'sequin_stream' },
    ...(beside === 'log' && { filter: 'nothing' }),
  }
  await running.ask('POST', '/api/sinks', sink)
  await running.served(AbortSignal.timeout(SERVED_MS), 2)
  return beside === 'read' ? clientOf(running, SINK) : undefined
}

/** Reads all that a sink has, and what comes. */
const clientOf = (running: RunningTailrace, sink: string): Reader =>
  new Reader(join(import.meta.dirname, '..', 'systems', 'pull-client.ts'), running.pulling(sink))

/** Backfills as long as something goes on. @returns rows a second */
async function backfillFor(running: RunningTailrace, beside: Beside, going: () => Promise<unknown>): Promise<number> {
  const path = `/api/sinks/${beside === 'own' ? 'bench' : SINK}/backfills`
  const start = async () => backfillOf(await running.ask('POST', path, { table: `public.${EXISTING}` }))
  const startedAt = wallClock()
  const over = going().then(() => false)
  let before = 0
  let now = await start()
  while (await Promise.race([delay(LOOK_EVERY_MS, true), over])) {
    now = backfillOf(await running.ask('GET', `${path}/${now.id}`))
    if (now.state === 'active') continue
    if (now.state !== 'completed') throw new Error(`the backfill is ${now.state}`)
    before += now.rows_processed_count
    now = await start()
  }
  now = backfillOf(await running.ask('GET', `${path}/${now.id}`))
  const rows = before + now.rows_processed_count
  const perSecond = rows / ((wallClock() - startedAt) / 1000)
  if (now.state === 'active') await running.ask('PATCH', `${path}/${now.id}`, { state: 'cancelled' })
  return perSecond
}

async function phase(bench: Bench, client: Client, running: RunningTailrace, work: () => Promise<number | void>): Promise<BesidePhase> {
  const { delays } = running
  if (!delays) throw new Error('it records no delays')
  await client.query('checkpoint')
  await delay(2000) // what was under way is over
  await delays.reset()
  const sender = await walSender(client, SLOT, running.reached)
  const others = () => childrenOf(bench.postmaster).filter((child) => child !== sender.pid)
  using meter = new UsageMeter({ ...running.processes, walsender: () => [sender.pid], 'Postgres, the rest': others })
  const retained = watchRetained(bench)
  const startedAt = wallClock()
  const rowsPerSecond = (await work()) ?? 0
  await delay(500) // the last ones are on their way
  const seconds = (wallClock() - startedAt) / 1000
  return { delays: await delays.read(), rowsPerSecond, retainedMb: await retained(), seconds, processes: meter.read() }
}

/** @returns ends the watch, and gives the most write-ahead log that the slot kept */
function watchRetained({ database }: Bench): () => Promise<number> {
  const ended = new AbortController()
  const watching = (async () => {
    const client = new Client(database)
    await client.connect()
    let most = 0
    while (!ended.signal.aborted) {
      const { rows } = await client.query<{ bytes: number }>(
        'select pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)::float8 as bytes from pg_replication_slots where slot_name = $1',
        [SLOT],
      )
      most = Math.max(most, rows[0]?.bytes ?? 0)
      await delay(LOOK_EVERY_MS, undefined, { signal: ended.signal }).catch(() => undefined)
    }
    await client.end()
    return most / MB
  })()
  return () => {
    ended.abort()
    return watching
  }
}

/** @param sinks so many on one table, one of them read. @param changes that are drained */
export async function backfillDrains(
  bench: Bench,
  { sinks, changes, pairs }: Readonly<{ sinks: number; changes: number; pairs: number }>,
  say: (text: string) => void,
): Promise<BesideDrains> {
  await using opened = new AsyncDisposableStack()
  const client = opened.adopt(new Client(bench.database), (each) => each.end())
  await client.connect()
  await client.query(`create publication ${PUBLICATION} for table ${TABLE}`)
  await writeWorkload({ url: bench.url, changes, sessions: SESSIONS, waitForDisk: false })
  const one = (isBackfilled: boolean) =>
    withService(
      bench,
      client,
      sinks - 1,
      async (running, walsender) => {
        await delay(2000)
        await using other = clientOf(running, 'more-1')
        if (isBackfilled) {
          const path = '/api/sinks/more-1/backfills'
          const { id } = backfillOf(await running.ask('POST', path, { table: `public.${TABLE}` }))
          while (backfillOf(await running.ask('GET', `${path}/${id}`)).rows_processed_count === 0) await delay(LOOK_EVERY_MS)
        }
        process.kill(walsender, 'SIGSTOP')
        await writeWorkload({ url: bench.url, changes, sessions: SESSIONS, waitForDisk: false })
        using meter = new UsageMeter({ ...running.processes, walsender: () => [walsender] })
        process.kill(walsender, 'SIGCONT')
        const startedAt = wallClock()
        const reachedAt = await Promise.race([running.reached, other.reached])
        const processes = meter.read()
        await delay(BACKLOG_KNOWN_MS)
        const { streams } = (await running.ask('GET', '/info')) as Info
        const idle = streams.flatMap(({ readers }) => readers).find(({ sink }) => sink === 'more-2')
        const logMb = (await running.dataBytes()) / MB
        return { perSecond: changes / ((reachedAt - startedAt) / 1000), othersMb: (idle?.backlog_bytes ?? NaN) / MB, logMb, processes }
      },
      changes,
    )
  const measured: { without: BesideDrain; backfill: BesideDrain }[] = []
  for (let pair = 1; pair <= pairs; pair++) {
    // who goes first takes turns: the table grows
    const first = await one(pair % 2 === 0)
    const second = await one(pair % 2 === 1)
    const [without, backfill] = pair % 2 === 0 ? [second, first] : [first, second]
    measured.push({ without, backfill })
    const rate = ({ perSecond }: BesideDrain) => `${Math.round(perSecond).toLocaleString('en')}/s`
    say(
      `${pair}/${pairs}  without ${rate(without)}  beside a backfill ${rate(backfill)} (${(backfill.perSecond / without.perSecond).toFixed(2)})`,
    )
  }
  return { sinks, changes, pairs: measured }
}
type Info = Readonly<{ streams: readonly Readonly<{ readers: readonly Readonly<{ sink: string; backlog_bytes: number }>[] }>[] }>

async function withService<T>(
  bench: Bench,
  client: Client,
  moreSinks: number,
  work: (running: RunningTailrace, walsender: number) => Promise<T>,
  changes = Infinity,
): Promise<T> {
  await client.query(`select pg_create_logical_replication_slot($1, 'pgoutput')`, [SLOT])
  const task: Task = {
    database: bench.database,
    slot: SLOT,
    publication: PUBLICATION,
    table: `public.${TABLE}`,
    changes,
    recordDelays: changes === Infinity,
  }
  try {
    await using running = await tailraceOf('Tailrace', { partitions: 1, processes: 1, moreSinks }).start(task)
    const { pid } = await walSender(client, SLOT, running.reached)
    await running.served(AbortSignal.timeout(SERVED_MS))
    return await work(running, pid)
  } finally {
    await dropSlot(client, SLOT)
  }
}
