/**
 * `npm run bench`: makes a Postgres and a Kafka of its own, writes the workload once, drains it with each system in turn,
 * then measures what the logs alone cost, and latency at two paces. `npm run bench:full` goes on with partitions and
 * processes on Kafka, and with idle sinks; options measure something else instead. Prints the figures and writes them to
 * bench/results/. README.md beside this file says what they mean.
 */
import { mkdir, writeFile } from 'node:fs/promises'
import { basename, join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { Client } from 'pg'
import { startBroker, type BenchBroker } from './broker.ts'
import { startBench, type Bench } from './postgres.ts'
import { writeRanges } from './ranges.ts'
import {
  backfillLines,
  backfillTablesLines,
  besideDrainLines,
  besideLatencyLines,
  drainLines,
  environment,
  environmentLines,
  idleLines,
  latencyLine,
  LIMITS,
  logCostLine,
  managementLines,
  scaleLines,
  shareLines,
  sinksLines,
  summarise,
  turnLine,
  webhookLines,
  type Summary,
} from './report.ts'
import { backfillDrains, backfillLatency, type BesideDrains, type BesideLatency } from './scenarios/backfill-beside.ts'
import { backfill, type Backfilled } from './scenarios/backfill.ts'
import { backfillTables, type BackfilledTables } from './scenarios/backfill-tables.ts'
import { drain, type Drain, type Range } from './scenarios/drain.ts'
import { idle, type Idle } from './scenarios/idle.ts'
import { latency, type Latency } from './scenarios/latency.ts'
import { logCost } from './scenarios/log-cost.ts'
import { management, type Management } from './scenarios/management.ts'
import { sinks, SINKS_RANGES, type SinksResult } from './scenarios/sinks.ts'
import { webhook, type Webhook } from './scenarios/webhook.ts'
import { median, type Spread } from './statistics.ts'
import type { System } from './system.ts'
import { debezium } from './systems/debezium.ts'
import { decoderAlone, raw, rawWithoutPause } from './systems/raw.ts'
import { tailrace, tailraceOf } from './systems/tailrace.ts'
import { canWarm } from './warm-memory.ts'

const LOG_PACKS = 1_000
const MESSAGES_PER_PACK = 400
/** of `bench:full` */
const PARTITIONS = [1, 4, 16]
const PROCESSES = [1, 2, 3]
const FULL_PAIRS = 3
const IDLE_SINKS = 200
/** of `--idle-sinks` */
const MANY_IDLE_SINKS = 500
/** of `--sinks`, which has many drains in each pair */
const SINKS_PAIRS = 2
/** of `--webhook`, sent one by one */
const SINGLES = 150_000
/** of `--backfill --sinks` */
const BESIDE_DRAIN = { sinks: 50, changes: 200_000 }
/** of `--management` */
const MANAGED = { sinks: 500, tables: 200 }
const RESULTS = join(import.meta.dirname, 'results')

const { values } = parseArgs({
  options: {
    changes: { type: 'string', default: '1000000' },
    pairs: { type: 'string' },
    seconds: { type: 'string', default: '25' },
    steady: { type: 'string', default: '2000' },
    only: { type: 'string' },
    profile: { type: 'boolean', default: false },
    'no-latency': { type: 'boolean', default: false },
    full: { type: 'boolean', default: false },
    functions: { type: 'boolean', default: false },
    traces: { type: 'boolean', default: false },
    webhook: { type: 'boolean', default: false },
    backfill: { type: 'boolean', default: false },
    tables: { type: 'string' },
    wide: { type: 'boolean', default: false },
    latency: { type: 'boolean', default: false },
    peers: { type: 'boolean', default: false },
    sinks: { type: 'boolean', default: false },
    'idle-sinks': { type: 'boolean', default: false },
    management: { type: 'boolean', default: false },
    cold: { type: 'boolean', default: false },
    beside: { type: 'string', multiple: true },
  },
})
const changes = whole('changes', values.changes)
const pairs = whole('pairs', values.pairs ?? String(values.sinks ? SINKS_PAIRS : 5))
const seconds = whole('seconds', values.seconds)
const steadyPerSecond = whole('steady', values.steady)
const profileFolder = values.profile ? RESULTS : undefined
const isProfiled = !values['idle-sinks'] && !(values.backfill && (values.latency || values.sinks || values.tables !== undefined))
if (values.profile && !isProfiled) throw new Error('--profile goes with drains, --webhook, --management and --backfill alone')

const say = (text: string): void => void process.stdout.write(`${text}\n`)

await using bench = await startBench()
await using parts = new AsyncDisposableStack()
/** Nothing but drains, with the embedded log. */
const isDrainAlone = values.peers || values.traces || (values.beside !== undefined && !values.sinks)
const isEmbeddedOnly = isDrainAlone || values.webhook || values.backfill || values['idle-sinks'] || values.management
const started = isEmbeddedOnly ? 'this is measured with the embedded log alone' : await startBroker()
const broker = typeof started === 'string' ? undefined : parts.use(started)
if (typeof started === 'string') say(`NO KAFKA, its figures are left out: ${started}`)
const isCold = values.cold || !canWarm()
if (!values.cold && isCold) say('MEMORY IS NOT WARMED before drains, there is too little of it: on a virtual machine they may take longer')
const functional: readonly System[] = values.functions
  ? (['transform', 'filter'] as const).map((through) => tailraceOf(`Tailrace with a ${through}`, { partitions: 1, processes: 1, through }))
  : []
const traced: readonly System[] = values.traces
  ? [0.01, 1].map((share) => tailraceOf(`Tailrace, ${share * 100} % traced`, { partitions: 1, processes: 1, traced: share }))
  : []
const besides = (values.beside ?? []).map((checkout) =>
  tailraceOf(`Tailrace in ${basename(resolve(checkout))}`, { partitions: 1, processes: 1, checkout: resolve(checkout) }),
)
const peers = values.peers ? await loadPeers() : []
/** The first is what the ratios are to. */
const all: readonly System[] = [raw, tailrace, ...functional, ...traced, ...besides, ...peers, ...(broker ? [onKafka(broker)] : [])]
const systems = all.filter(({ name }) => values.only === undefined || name.toLowerCase().includes(values.only.toLowerCase()))
const machine = environment(await postgresVersion(bench))
say(environmentLines(machine))
const measure = values.backfill
  ? backfills
  : values.webhook
    ? webhooks
    : values.sinks
      ? manySinks
      : values['idle-sinks']
        ? manyIdleSinks
        : values.management
          ? managed
          : everything
if (measure === everything) for (const { name, description } of systems) say(`${name}: ${description}`)

await using ranges = await writeRanges(
  bench,
  values['idle-sinks'] || values.backfill || values.management ? [] : values.sinks ? SINKS_RANGES : [changes],
)
if (ranges.changes > 0)
  say(
    `workload: ${ranges.changes} changes by ${ranges.sessions} sessions in ${ranges.seconds.toFixed(1)} s, ${ranges.rowBytes} bytes a row, ${ranges.walMb} MB of write-ahead log\n`,
  )
await save(await measure())

function rangeOf(length: number): Range {
  const slot = ranges.slots.get(length)
  if (slot === undefined) throw new Error(`there is no range of ${length} changes`)
  return { slot, changes: length, isCold, ...(profileFolder !== undefined && { profileFolder }) }
}

/** Other systems that can drain the same range; what this machine can't run is left out. */
async function loadPeers(): Promise<System[]> {
  const theirs = await debezium()
  if (typeof theirs === 'string') say(`NO DEBEZIUM, its figures are left out: ${theirs}`)
  return [...(typeof theirs === 'string' ? [] : [theirs]), decoderAlone, rawWithoutPause]
}

async function webhooks(): Promise<{ webhook: Webhook }> {
  const measured = await webhook(bench, { ...rangeOf(changes), singles: Math.min(changes, SINGLES), pairs }, say)
  say(`\n${webhookLines(measured)}`)
  return { webhook: measured }
}

async function backfills(): Promise<
  { backfill: Backfilled } | { tables: BackfilledTables } | { latency: readonly BesideLatency[] } | { drains: BesideDrains }
> {
  if (values.latency) {
    const beside = { rows: changes, pairs, perSecond: steadyPerSecond, seconds, only: values.only }
    return { latency: await backfillLatency(bench, beside, (result) => say(besideLatencyLines(result))) }
  }
  if (values.sinks) {
    const drains = await backfillDrains(bench, { ...BESIDE_DRAIN, pairs }, say)
    say(`\n${besideDrainLines(drains)}`)
    return { drains }
  }
  if (values.tables !== undefined) {
    const measured = await backfillTables(bench, whole('tables', values.tables))
    say(`\n${backfillTablesLines(measured)}`)
    return { tables: measured }
  }
  const measured = await backfill(bench, { rows: changes, pairs, isWide: values.wide, isCold, profileFolder }, say)
  say(`\n${backfillLines(measured)}`)
  return { backfill: measured }
}

async function manySinks(): Promise<{ sinks: readonly SinksResult[] }> {
  const beside = values.beside?.at(-1)
  const measured = { range: rangeOf, pairs, broker, beside: beside === undefined ? undefined : resolve(beside) }
  return { sinks: await sinks(bench, measured, (result) => say(sinksLines(result))) }
}

async function managed(): Promise<{ management: Management }> {
  const measured = await management(bench, {
    ...MANAGED,
    pairs: values['no-latency'] ? 0 : pairs,
    perSecond: steadyPerSecond,
    seconds,
    profileFolder,
  })
  say(managementLines(measured))
  return { management: measured }
}

async function manyIdleSinks(): Promise<{ idle: readonly Idle[] }> {
  return { idle: await idleSinks(undefined, MANY_IDLE_SINKS) }
}

async function everything(): Promise<object> {
  const turns = await inTurn(systems, pairs)
  const summaries = summarise(turns, changes)
  say(`\n${drainLines(summaries)}\n`)
  const variants = [...functional, ...traced].map(({ name }) => name)
  if (variants.length > 0) say(`${shareLines(turns, tailrace.name, variants)}\n`)

  if (systems.includes(tailrace)) for (const peer of peers) if (systems.includes(peer)) say(shareLines(turns, peer.name, [tailrace.name]))
  if (isDrainAlone) return { summaries, turns }

  const logs = []
  for (const home of [undefined, ...(broker ? [broker] : [])]) {
    const cost = await logCost(bench, { broker: home, packs: LOG_PACKS, messagesPerPack: MESSAGES_PER_PACK })
    logs.push(cost)
    say(logCostLine(cost))
  }
  say('')

  const latencies: Latency[] = []
  // what functions leave of a message need not say when it was written
  const timed = values['no-latency'] ? [] : systems.filter((system) => system !== raw && !functional.includes(system))
  for (const system of timed) {
    const drained = median(turns.map((turn) => turn[systems.indexOf(system)]?.changesPerSecond ?? 0))
    for (const perSecond of [steadyPerSecond, Math.round(drained / 2)]) {
      const measured = await latency(bench, system, { perSecond, seconds })
      latencies.push(measured)
      say(latencyLine(measured))
    }
  }
  const full = values.full
    ? {
        scale: broker && (await scale(broker)),
        idle: [...(await idleSinks(undefined, IDLE_SINKS)), ...(broker ? await idleSinks(broker, IDLE_SINKS) : [])],
      }
    : undefined
  say(`\n${LIMITS.join('\n')}`)

  return { summaries, turns, logs, latencies, full }
}

/** Writes the figures beside what they were measured with. */
async function save(figures: object): Promise<void> {
  await mkdir(RESULTS, { recursive: true })
  const file = join(RESULTS, `${new Date().toISOString().replace(/[:.]/g, '-')}.json`)
  const { changes: length, sessions, seconds: took, rowBytes, walMb } = ranges
  const workload = { changes: length, sessions, seconds: took, rowBytes, walMb, isCold }
  await writeFile(file, `${JSON.stringify({ environment: machine, workload, ...figures, limits: LIMITS.join(' ') }, null, 2)}\n`)
  say(`\nwritten to ${file}`)
}

function onKafka(home: BenchBroker, partitions = 1, processes = 1): System {
  const shape = `${partitions} partitions, ${processes} processes`
  return tailraceOf(partitions + processes === 2 ? 'Tailrace on Kafka' : `Tailrace on Kafka, ${shape}`, {
    broker: home,
    partitions,
    processes,
  })
}

/** @returns for each round a drain of every system */
async function inTurn(these: readonly System[], rounds: number): Promise<Drain[][]> {
  const all: Drain[][] = []
  for (let round = 1; round <= rounds; round++) {
    const turn: Drain[] = []
    for (const system of these) turn.push(await drain(bench, system, rangeOf(changes)))
    all.push(turn)
    say(`${round}/${rounds}  ${turn.map((run) => turnLine(run, changes)).join('  ')}`)
  }
  return all
}

/** Partitions and processes on Kafka, every cell beside the raw limit of its own turn. */
async function scale(home: BenchBroker): Promise<readonly Readonly<{ partitions: number; processes: number; ratio: Spread }>[]> {
  const cells = PARTITIONS.flatMap((partitions) => PROCESSES.map((processes) => ({ partitions, processes })))
  const drained = await inTurn([raw, ...cells.map(({ partitions, processes }) => onKafka(home, partitions, processes))], FULL_PAIRS)
  const [, ...summaries] = summarise(drained, changes)
  const measured = cells.map((cell, i) => ({ ...cell, ratio: (summaries[i] as Summary).ratio }))
  say(`\nratio to the raw limit, Tailrace on Kafka\n${scaleLines(measured)}\n`)
  return measured
}

async function idleSinks(home: BenchBroker | undefined, count: number): Promise<readonly Idle[]> {
  const of = (idleCount: number) =>
    tailraceOf(home ? 'Tailrace on Kafka' : 'Tailrace', { broker: home, partitions: 1, processes: 1, idleSinks: idleCount })
  const [without, idling] = [await idle(bench, of(0), 0), await idle(bench, of(count), count)]
  say(idleLines(without, idling))
  return [without, idling]
}

function whole(name: string, text: string): number {
  if (!/^[1-9]\d*$/.test(text)) throw new TypeError(`--${name} takes a whole number above 0, not "${text}"`)
  return Number(text)
}

async function onDatabase<T>({ database }: Bench, work: (client: Client) => Promise<T>): Promise<T> {
  const client = new Client(database)
  await client.connect()
  try {
    return await work(client)
  } finally {
    await client.end()
  }
}

async function postgresVersion(on: Bench): Promise<string> {
  const { rows } = await onDatabase(on, (client) =>
    client.query<{ text: string }>(`select 'PostgreSQL ' || current_setting('server_version') as text`),
  )
  return rows[0]?.text ?? 'PostgreSQL'
}
