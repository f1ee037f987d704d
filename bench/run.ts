/**
 * `npm run bench`: makes a Postgres of its own, writes the workload once, drains it with each system in turn, then
 * measures latency at two paces. Prints the figures and writes them to bench/results/. README.md beside this file says
 * what they mean.
 */
import { mkdir, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { Client } from 'pg'
import { startBench, type Bench } from './postgres.ts'
import { drainLines, environment, environmentLines, latencyLine, LIMITS, summarise } from './report.ts'
import { drain, dropSlot, type Drain } from './scenarios/drain.ts'
import { latency, type Latency } from './scenarios/latency.ts'
import { median } from './statistics.ts'
import type { System } from './system.ts'
import { raw } from './systems/raw.ts'
import { tailrace } from './systems/tailrace.ts'
import { createWorkload, writeWorkload } from './workload.ts'

/** The first is what the ratios are to. */
const SYSTEMS: readonly System[] = [raw, tailrace]
const SLOT = 'bench'
const WRITERS = 8
const STEADY_PER_SECOND = 2_000
const RESULTS = join(import.meta.dirname, 'results')

const { values } = parseArgs({
  options: {
    changes: { type: 'string', default: '1000000' },
    pairs: { type: 'string', default: '5' },
    seconds: { type: 'string', default: '25' },
    only: { type: 'string' },
    profile: { type: 'boolean', default: false },
    'no-latency': { type: 'boolean', default: false },
  },
})
const changes = whole('changes', values.changes)
const pairs = whole('pairs', values.pairs)
const seconds = whole('seconds', values.seconds)
const systems = SYSTEMS.filter(({ name }) => values.only === undefined || name.toLowerCase().includes(values.only.toLowerCase()))

const profileFolder = values.profile ? RESULTS : undefined

const say = (text: string): void => void process.stdout.write(`${text}\n`)

await using bench = await startBench()
const machine = environment(await postgresVersion(bench))
say(environmentLines(machine))
for (const { name, description } of systems) say(`${name}: ${description}`)

await createWorkload(bench.url)
await onDatabase(bench, (client) => client.query(`select pg_create_logical_replication_slot($1, 'pgoutput')`, [SLOT]))
const written = await writeWorkload({ url: bench.url, changes, sessions: WRITERS, waitForDisk: false })
const wal = await onDatabase(bench, (client) =>
  client.query<{ mb: number; row: number }>(
    `select pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)::float8 / 1048576 as mb, (select avg(pg_column_size(m.*))::float8 from measured m) as row
     from pg_replication_slots where slot_name = $1`,
    [SLOT],
  ),
)
const walMb = Math.round(wal.rows[0]?.mb ?? 0)
const rowBytes = Math.round(wal.rows[0]?.row ?? 0)
say(
  `workload: ${changes} changes by ${WRITERS} sessions in ${written.toFixed(1)} s, ${rowBytes} bytes a row, ${walMb} MB of write-ahead log\n`,
)

const turns: Drain[][] = []
for (let pair = 1; pair <= pairs; pair++) {
  const turn: Drain[] = []
  for (const system of systems) turn.push(await drain(bench, system, { slot: SLOT, changes, profileFolder }))
  turns.push(turn)
  say(`${pair}/${pairs}  ${turn.map((run) => `${run.system} ${Math.round(run.changesPerSecond)}/s`).join('  ')}`)
}
const summaries = summarise(turns, changes)
say(`\n${drainLines(summaries)}\n`)
await onDatabase(bench, (client) => dropSlot(client, SLOT))

const latencies: Latency[] = []
const timed = values['no-latency'] ? [] : systems.filter((system) => system !== raw)
for (const system of timed) {
  const drained = median(turns.map((turn) => turn[systems.indexOf(system)]?.changesPerSecond ?? 0))
  for (const perSecond of [STEADY_PER_SECOND, Math.round(drained / 2)]) {
    const measured = await latency(bench, system, { perSecond, seconds })
    latencies.push(measured)
    say(latencyLine(measured))
  }
}
say(`\n${LIMITS.join('\n')}`)

await mkdir(RESULTS, { recursive: true })
const file = join(RESULTS, `${new Date().toISOString().replace(/[:.]/g, '-')}.json`)
const workload = { changes, sessions: WRITERS, seconds: written, rowBytes, walMb }
await writeFile(
  file,
  `${JSON.stringify({ environment: machine, workload, summaries, turns, latencies, limits: LIMITS.join(' ') }, null, 2)}\n`,
)
say(`\nwritten to ${file}`)

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
