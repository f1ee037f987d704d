/**
 * How long calls of the management API take with hundreds of sinks on hundreds of tables, one after the other; and how long changes take
 * to the client of one sink while others are made, edited, paused, resumed and deleted, beside how long they take without.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { Client } from 'pg'
import type { Bench } from '../postgres.ts'
import { median } from '../statistics.ts'
import { wallClock, type Delays } from '../system.ts'
import { tailraceOf, type RunningTailrace } from '../systems/tailrace.ts'
import { TABLE, writeWorkload } from '../workload.ts'
import { dropSlot } from './drain.ts'

/** ms */
type Took = Readonly<{ p50Ms: number; p99Ms: number }>
/** @property editsPerSecond of the other sinks */
type Beside = Readonly<{ without: Delays; edited: Delays; editsPerSecond: number }>
/** @property applyMs a configuration file that makes all of the sinks. @property calls by method and path */
export type Management = Readonly<{
  sinks: number
  tables: number
  applyMs: number
  calls: Readonly<Record<string, Took>>
  perSecond: number
  seconds: number
  beside: readonly Beside[]
}>
type ManagementOptions = Readonly<{
  sinks: number
  tables: number
  pairs: number
  perSecond: number
  seconds: number
  profileFolder: string | undefined
}>

const NAME = 'bench_management'
const SERVED_MS = 120_000
const SESSIONS = 8
const WARM_UP_SECONDS = 5
/** The first calls are slower: their code is not compiled yet. */
const FIRST_CALLS = 10
const CALLS = 100
const EDIT_EVERY_MS = 50

const sinkName = (number: number): string => `managed-${number}`
const sinkOf = (name: string, table: string) => ({
  ...{ name, database: 'bench', source: { include_tables: [table] }, destination: { type: 'sequin_stream' } },
})

/** @param options.pairs measurements of latency without and with edits. @param options.perSecond changes that are timed */
export async function management(bench: Bench, options: ManagementOptions): Promise<Management> {
  const { sinks, tables, pairs, perSecond, seconds, profileFolder } = options
  await using opened = new AsyncDisposableStack()
  const client = opened.adopt(new Client(bench.database), (each) => each.end())
  await client.connect()
  for (let i = 0; i < tables; i++) await client.query(`create table managed_${i} (id int primary key, name text)`)
  const names = Array.from({ length: tables }, (_, i) => `public.managed_${i}`)
  await client.query(`create publication ${NAME} for table ${TABLE}, ${names.join(', ')}`)
  await client.query(`select pg_create_logical_replication_slot($1, 'pgoutput')`, [NAME])
  opened.defer(() => dropSlot(client, NAME))
  const task = {
    ...{ database: bench.database, slot: NAME, publication: NAME },
    ...{ table: `public.${TABLE}`, changes: Infinity, recordDelays: true },
    ...(profileFolder !== undefined && { profileFolder }),
  }
  await using running = await tailraceOf('Tailrace', { partitions: 1, processes: 1 }).start(task)
  await running.served(AbortSignal.timeout(SERVED_MS))
  const tableOf = (number: number): string => names[number % tables] as string
  const managed = Array.from({ length: sinks }, (_, i) => sinkOf(sinkName(i), tableOf(i)))
  const appliedAt = wallClock()
  await running.ask('POST', '/api/config/apply', { yaml: JSON.stringify({ account: { name: 'bench' }, sinks: managed }) })
  const applyMs = wallClock() - appliedAt
  await running.served(AbortSignal.timeout(SERVED_MS), 1 + sinks)

  const calls = await timedCalls(running, sinks, tableOf)
  const load = { url: bench.url, sessions: SESSIONS, perSecond, waitForDisk: true }
  const timed = async (): Promise<Delays> => {
    const { delays } = running
    if (!delays) throw new Error('it records no delays')
    await delay(1000) // what was under way is over
    await delays.reset()
    await Promise.race([writeWorkload({ ...load, changes: perSecond * seconds }), running.reached])
    await delay(500) // the last ones are on their way
    return await delays.read()
  }
  await writeWorkload({ ...load, changes: perSecond * WARM_UP_SECONDS })
  const beside: Beside[] = []
  for (let pair = 0; pair < pairs; pair++) {
    const without = await timed()
    const over = new AbortController()
    const editing = editsUntil(running, over.signal, tableOf)
    const edited = await timed().finally(() => over.abort())
    beside.push({ without, edited, editsPerSecond: await editing })
  }
  return { sinks, tables, applyMs, calls, perSecond, seconds, beside }
}

/** Times each kind of call, one call after the other, of one sink after the other. */
async function timedCalls(running: RunningTailrace, sinks: number, tableOf: (number: number) => string): Promise<Management['calls']> {
  const sink = (number: number) => `/api/sinks/${sinkName(number % sinks)}`
  const kinds: readonly (readonly [name: string, method: string, path: (i: number) => string, body?: (i: number) => object])[] = [
    ['GET /sinks', 'GET', () => '/api/sinks'],
    ['GET /sinks/:sink', 'GET', sink],
    ['GET /sinks/:sink/backfills', 'GET', (i) => `${sink(i)}/backfills`],
    ['GET /sinks/:sink/messages', 'GET', (i) => `${sink(i)}/messages`],
    ['POST /sinks', 'POST', () => '/api/sinks', (i) => sinkOf(`made-${i}`, tableOf(i))],
    ['PATCH /sinks/:sink of a setting', 'PATCH', sink, (i) => ({ max_ack_pending: 20_000 + i })],
    ['PATCH /sinks/:sink pauses', 'PATCH', sink, () => ({ status: 'paused' })],
    ['PATCH /sinks/:sink resumes', 'PATCH', sink, () => ({ status: 'active' })],
    ['PATCH /sinks/:sink of actions', 'PATCH', sink, () => ({ actions: ['insert'] })],
    ['DELETE /sinks/:sink', 'DELETE', (i) => `/api/sinks/made-${i}`],
    [
      'POST /functions',
      'POST',
      () => '/api/functions',
      (i) => ({ ...{ name: `f-${i}`, type: 'filter' }, code: 'export default () => true' }),
    ],
    ['GET /functions', 'GET', () => '/api/functions'],
    ['DELETE /functions/:function', 'DELETE', (i) => `/api/functions/f-${i}`],
    ['POST /config/plan', 'POST', () => '/api/config/plan', () => ({ yaml: 'account: { name: bench }' })],
  ]
  const took: Record<string, Took> = {}
  for (const [name, method, path, body] of kinds) {
    const each: number[] = []
    for (let i = 0; i < FIRST_CALLS + CALLS; i++) {
      const from = wallClock()
      await running.ask(method, path(i), body?.(i))
      if (i >= FIRST_CALLS) each.push(wallClock() - from)
    }
    each.sort((a, b) => a - b)
    took[name] = { p50Ms: median(each), p99Ms: each[Math.ceil(each.length * 0.99) - 1] as number }
  }
  return took
}

/** Makes, edits, pauses, resumes and deletes sinks, and leaves none of its own. @returns edits a second */
async function editsUntil(running: RunningTailrace, over: AbortSignal, tableOf: (number: number) => string): Promise<number> {
  const startedAt = wallClock()
  let edits = 0
  for (let i = 0; !over.aborted; i++) {
    const path = `/api/sinks/edited-${i}`
    for (const [method, at, body] of [
      ['POST', '/api/sinks', sinkOf(`edited-${i}`, tableOf(i))],
      ['PATCH', path, { actions: ['insert'] }],
      ['PATCH', path, { status: 'paused' }],
      ['PATCH', path, { status: 'active' }],
      ['DELETE', path],
    ] as const) {
      await running.ask(method, at, body)
      edits++
      await delay(EDIT_EVERY_MS)
    }
  }
  return edits / ((wallClock() - startedAt) / 1000)
}
