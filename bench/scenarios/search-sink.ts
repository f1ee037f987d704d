/**
 * What an Elasticsearch sink reaches of what the server takes at most. The changes are in the log before: each run
 * activates a sink that was paused, and ends when the server has counted the last message; the loop ends with its last answer,
 * for the server doesn't count what comes in the wrong order. It posts the very bodies that such a sink has sent, recorded
 * once, over as many connections, and does not look at the answers. Both write into a new index of the same server, in turn,
 * and during both the server is asked for its count as often.
 */
import { setTimeout } from 'node:timers/promises'
import { Client } from 'pg'
import { Pool } from 'undici'
import { HttpReceiver } from '../../test/services/http-receiver.ts'
import { SearchIndex } from '../../test/services/elasticsearch-client.ts'
import { Service } from '../../test/faults/service.ts'
import { UsageMeter } from '../process-usage.ts'
import type { Bench } from '../postgres.ts'
import { createWorkload, TABLE, writeWorkload } from '../workload.ts'

/** Of the CPU: µs for each document, of the server, of its compiler within that, and of who sends to it. */
export type SearchRun = Readonly<{ seconds: number; documentsPerSecond: number; serverCpu: number; compilerCpu: number; senderCpu: number }>
export type SearchPair = Readonly<{ sink: SearchRun; loop: SearchRun }>
export type SearchOptions = Readonly<{ changes: number; pairs: number; batchSize: number; concurrency: number }>

const INDEX = 'bench'
const SLOT = 'bench_search'
const STATE = 'state_search'
const WRITERS = 8
/** Rounds before those that count: the server gets four times as fast, and compiles itself for half a minute. */
const WARM_UP = 4
/** Before each run: what the one before has left to the server, files and compiling, is not done at its cost. */
const REST_MS = 500
/** How often the server is asked for its count, and how often when only the last of it is missing. */
const ASK_EVERY_MS = 50
const ASK_AT_LAST_EVERY_MS = 5
const LAST = 0.05
/** nobody asks for it here, and looking at all threads of the server would take CPU from both */
const MEMORY_EVERY_MS = 60_000
const COMPILER = /^C[12] Compiler/
const LIMIT_MS = 300_000
/**
 * The server does not wait for the disk: on one machine it is the one that the service's log waits for. Nor does it make what
 * it has taken searchable meanwhile: when that comes, and what is merged for it, differs from run to run.
 */
const SETTINGS = { number_of_shards: 1, number_of_replicas: 0, refresh_interval: '-1', 'translog.durability': 'async' }

/** @param server its URL has the login. @param told of each pair */
export async function searchSink(
  bench: Bench,
  { url, pid }: Readonly<{ url: string; pid: number }>,
  { changes, pairs, batchSize, concurrency }: SearchOptions,
  told: (pair: SearchPair, number: number) => void,
): Promise<readonly SearchPair[]> {
  await using resources = new AsyncDisposableStack()
  let documents = 0
  const recorder = resources.use(
    await HttpReceiver.start(({ body }) => {
      const count = countOf(body)
      documents += count
      return { body: allDone(count) }
    }),
  )
  const { username, password, origin } = new URL(url)
  const login = `${username}:${password}`
  const sinkTo = (name: string, endpoint_url: string) => ({
    ...{ name, tables: [`public.${TABLE}`], status: 'paused', concurrency, max_ack_pending: 100_000 },
    destination: {
      ...{ type: 'elasticsearch', endpoint_url, index_name: INDEX, batch_size: batchSize },
      ...{ auth_type: 'basic', auth_value: login },
    },
  })
  const rounds = Array.from({ length: WARM_UP + pairs }, (_, round) => round)
  const { host, port, database, user, password: secret } = bench.database
  const service = resources.use(
    await Service.prepare({
      source: { hostname: host, port, database, username: user, password: secret, ssl: false },
      stateUrl: await stateDatabase(bench, resources),
      sinks: [sinkTo('recorded', recorder.url), ...rounds.map((round) => sinkTo(`sink-${round}`, origin))],
      slot: SLOT,
    }),
  )
  await createWorkload(bench.url)
  await service.startReady()
  await writeWorkload({ url: bench.url, changes, sessions: WRITERS, waitForDisk: false })
  await untilLogged(bench)
  await activate(service, 'recorded')
  await recorder.until(() => documents >= changes)
  const bodies = recorder.requests.map(({ body }) => body)
  const path = recorder.requests[0]?.path ?? ''
  recorder.requests.length = 0

  const index = new SearchIndex(url, INDEX)
  const results: SearchPair[] = []
  for (const round of rounds) {
    const run = async (work: () => Promise<void>, senders: readonly number[]): Promise<SearchRun> => {
      await index.drop().catch(() => undefined)
      await index.make({ settings: SETTINGS })
      await setTimeout(REST_MS)
      using meter = new UsageMeter({ server: () => [pid], sender: () => senders }, MEMORY_EVERY_MS)
      const started = performance.now()
      await work()
      const seconds = (performance.now() - started) / 1000
      const { server, sender } = meter.read()
      const each = (cpuSeconds = 0) => (cpuSeconds * 1e6) / documents
      const compiling = Object.entries(server?.threads ?? {}).reduce((sum, [name, used]) => (COMPILER.test(name) ? sum + used : sum), 0)
      const cpu = { serverCpu: each(server?.cpuSeconds), compilerCpu: each(compiling), senderCpu: each(sender?.cpuSeconds) }
      return { seconds, documentsPerSecond: documents / seconds, ...cpu }
    }
    // this process asks for the count, and in the loop's run it sends too
    const bySink = () =>
      run(async () => {
        await activate(service, `sink-${round}`)
        await untilIndexed(index, documents)
      }, [service.pid, process.pid])
    const byLoop = () =>
      run(async () => {
        const done = new AbortController()
        const asking = untilIndexed(index, documents, done.signal)
        await post(origin, { path, bodies, concurrency, login }).finally(() => done.abort())
        await asking
      }, [process.pid])
    const [first, second] = round % 2 === 0 ? [bySink, byLoop] : [byLoop, bySink]
    const runs = [await first(), await second()] as const
    if (round < WARM_UP) continue
    const [sink, loop] = round % 2 === 0 ? runs : [runs[1], runs[0]]
    const pair = { sink, loop }
    results.push(pair)
    told(pair, results.length)
  }
  await index.drop()
  return results
}

async function activate(service: Service, sink: string): Promise<void> {
  const { status, body } = await service.patch(`/api/sinks/${sink}`, { status: 'active' })
  if (status !== 200) throw service.failure(`the sink ${sink} could not be activated: ${JSON.stringify(body)}`)
}

async function post(
  origin: string,
  { path, bodies, concurrency, login }: Readonly<{ path: string; bodies: readonly Buffer[]; concurrency: number; login: string }>,
): Promise<void> {
  const pool = new Pool(origin, { connections: concurrency })
  const headers = { 'content-type': 'application/x-ndjson', authorization: `Basic ${Buffer.from(login).toString('base64')}` }
  let next = 0
  await Promise.all(
    Array.from({ length: concurrency }, async () => {
      for (let body = bodies[next++]; body; body = bodies[next++]) {
        const answer = await pool.request({ method: 'POST', path, headers, body })
        if (answer.statusCode !== 200) throw new Error(`the loop was answered ${answer.statusCode}`)
        await answer.body.dump({ limit: Infinity })
      }
    }),
  )
  await pool.close()
}

/** By the server's own count of what it has indexed and deleted, or until the signal is aborted. */
async function untilIndexed(index: SearchIndex, operations: number, signal?: AbortSignal): Promise<void> {
  const until = performance.now() + LIMIT_MS
  for (let count = await countIndexed(index); count < operations; count = await countIndexed(index)) {
    if (signal?.aborted) return
    if (performance.now() > until) throw new Error(`${count} of ${operations} operations arrived within ${LIMIT_MS} ms`)
    const isLast = count > operations * (1 - LAST)
    await setTimeout(isLast ? ASK_AT_LAST_EVERY_MS : ASK_EVERY_MS)
  }
}

async function countIndexed(index: SearchIndex): Promise<number> {
  const { _all: all } = (await index.ask('GET', '/_stats/indexing')) as Stats
  return all.primaries.indexing.index_total + all.primaries.indexing.delete_total
}
type Stats = Readonly<{ _all: { primaries: { indexing: { index_total: number; delete_total: number } } } }>

/** The source has appended everything to the log. */
async function untilLogged({ database }: Bench): Promise<void> {
  const client = new Client(database)
  await client.connect()
  try {
    const { rows } = await client.query<{ at: string }>('select pg_current_wal_lsn()::text as at')
    for (;;) {
      const { rows: done } = await client.query('select from pg_replication_slots where slot_name = $1 and confirmed_flush_lsn >= $2', [
        SLOT,
        rows[0]?.at,
      ])
      if (done.length > 0) return
      await setTimeout(ASK_EVERY_MS)
    }
  } finally {
    await client.end()
  }
}

async function stateDatabase(bench: Bench, resources: AsyncDisposableStack): Promise<string> {
  const admin = resources.adopt(new Client(bench.database), (client) => client.end())
  await admin.connect()
  await admin.query(`create database ${STATE}`)
  resources.defer(async () => void (await admin.query(`drop database ${STATE} with (force)`)))
  const url = new URL(bench.url)
  url.pathname = `/${STATE}`
  return url.href
}

const ACTION = /^\{"(?:index|delete)":\{"_index":.*\}\}$/gm
const countOf = (body: Buffer): number => body.toString().match(ACTION)?.length ?? 0
const allDone = (count: number): string =>
  JSON.stringify({ errors: false, took: 0, items: Array.from({ length: count }, () => ({ index: { _id: '1', status: 201 } })) })
