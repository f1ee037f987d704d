/**
 * Counts the product's files that one change crosses in the running service, from the socket of Postgres to the answer of a
 * `receive` or to the bulk request of Elasticsearch: `npm run house -- crossed`. V8's precise coverage says which functions ran
 * between the insert and its arrival; a file counts when one of its functions ran in every round, so that what runs by a clock is left out.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join, relative } from 'node:path'
import { fileURLToPath } from 'node:url'
import { stringify } from 'yaml'
import { SearchIndex } from './services/elasticsearch-client.ts'
import { createDatabase, createState, type TestDatabase } from './services/postgres.ts'
import { until, pass } from './waiting.ts'

const ROOT = join(import.meta.dirname, '..')
const COMMAND = join(ROOT, 'cli', 'tailrace.mjs')
const TOKEN = 'crossed-token-0123456789'
const ROUNDS = 12
/** The first rounds make connections and load what is loaded once. */
const WARM_ROUNDS = 2
/** Acknowledgements of a round are committed before the next one begins. */
const REST_MS = 400

export type Crossed = Readonly<{ receive: readonly string[]; elasticsearch: readonly string[] }>

/** @returns the files of each way, sorted by name */
export async function filesCrossed(): Promise<Crossed> {
  await using database = await createDatabase('create table thing (id int primary key, title text)')
  await using index = await SearchIndex.create()
  await database.query('create publication crossed for table thing')
  await database.query(`select pg_create_logical_replication_slot('${database.name}', 'pgoutput')`)
  try {
    return {
      receive: await crossedBy(database, { type: 'sequin_stream' }, receiveOne),
      elasticsearch: await crossedBy(
        database,
        { type: 'elasticsearch', endpoint_url: index.endpoint, index_name: index.name, auth_type: 'basic', auth_value: 'tailrace:labpass' },
        async (_origin, id) => {
          await until(`document ${id}`, () => index.ask('GET', `/_doc/${id}`).catch(() => undefined))
        },
      ),
    }
  } finally {
    await database.query(`select pg_drop_replication_slot('${database.name}')`)
  }
}

let lastId = 0

/** @param arrival settles when the row of that identifier has arrived; it is asked before the row is inserted */
async function crossedBy(
  database: TestDatabase,
  destination: object,
  arrival: (origin: string, id: number) => Promise<void>,
): Promise<readonly string[]> {
  await using service = await inspectedService(database, destination)
  const rounds: ReadonlySet<string>[] = []
  for (let round = 0; round < WARM_ROUNDS + ROUNDS; round++) {
    const id = ++lastId
    const arrived = arrival(service.origin, id)
    await pass(REST_MS, 'what the round before left to do, and the request that waits, are not this change')
    await service.ran()
    await Promise.all([arrived, database.query(`insert into thing values ($1, 'a title')`, [id])])
    const ran = await service.ran()
    if (round >= WARM_ROUNDS) rounds.push(ran)
  }
  const [first = new Set<string>(), ...others] = rounds
  return [...first].filter((path) => others.every((ran) => ran.has(path))).sort()
}

async function receiveOne(origin: string): Promise<void> {
  const ask = async (verb: string, body: object) => {
    const answer = await fetch(`${origin}/api/http_pull_consumers/crossed/${verb}`, {
      method: 'POST',
      headers: { authorization: `Bearer ${TOKEN}`, 'content-type': 'application/json' },
      body: JSON.stringify(body),
    })
    if (!answer.ok) throw new Error(`${verb}: ${answer.status} ${await answer.text()}`)
    return (await answer.json()) as { data?: readonly Readonly<{ ack_id: string }>[] }
  }
  const { data } = await ask('receive', { batch_size: 1, wait_for: 30_000 })
  const ids = data?.map(({ ack_id }) => ack_id)
  void ask('ack', { ack_ids: ids }).catch(() => undefined)
}

type Inspected = AsyncDisposable &
  Readonly<{
    origin: string
    /** The product's files of which a function ran since the last call. */
    ran(): Promise<ReadonlySet<string>>
  }>

async function inspectedService({ name, url }: TestDatabase, destination: object): Promise<Inspected> {
  await using opened = new AsyncDisposableStack()
  const state = opened.use(await createState())
  const folder = await mkdtemp(join(tmpdir(), 'tailrace-crossed-'))
  opened.defer(() => rm(folder, { recursive: true, force: true }))
  const config = join(folder, 'tailrace.yaml')
  await writeFile(
    config,
    stringify({
      account: { name: 'crossed' },
      api_tokens: [{ name: 'crossed', token: TOKEN }],
      databases: [{ name: 'crossed', url, ssl: false, slot: { name }, publication: { name: 'crossed' } }],
      sinks: [{ name: 'crossed', database: 'crossed', source: { include_tables: ['public.thing'] }, destination }],
    }),
  )
  const env = { ...process.env, PG_URL: state.url, TAILRACE_DATA: join(folder, 'data'), CONFIG_FILE_PATH: config }
  const child = spawn(process.execPath, ['--inspect=127.0.0.1:0', COMMAND, 'start'], {
    env: { ...env, SERVER_PORT: '0', TAILRACE_METRICS_PORT: '0' },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  opened.defer(async () => {
    child.kill('SIGTERM')
    await ended
  })
  const ended = once(child, 'exit')
  const said = merged(child.stdout, child.stderr)
  const inspector = await said(/Debugger listening on (ws:\S+)/)
  const origin = await said(/(http:\/\/127\.0\.0\.1:\d+)/)
  const profiler = opened.use(await openProfiler(inspector))
  const stack = opened.move()
  return { origin, ran: () => profiler.ran(), [Symbol.asyncDispose]: () => stack.disposeAsync() }
}

/** Reads what a process prints. @returns what the first group of a pattern finds in it */
function merged(...streams: readonly NodeJS.ReadableStream[]): (pattern: RegExp) => Promise<string> {
  let text = ''
  for (const stream of streams) stream.on('data', (chunk) => (text += String(chunk)))
  return (pattern) =>
    until(
      () => `the service says ${pattern}; it said:\n${text}`,
      () => pattern.exec(text)?.[1],
    )
}

type Coverage = Readonly<{
  result: readonly Readonly<{ url: string; functions: readonly Readonly<{ ranges: readonly Readonly<{ count: number }>[] }>[] }>[]
}>

/** @see Chrome DevTools Protocol, domain Profiler */
async function openProfiler(url: string): Promise<Readonly<{ ran(): Promise<ReadonlySet<string>> }> & AsyncDisposable> {
  const socket = new WebSocket(url)
  await once(socket, 'open')
  const waiting = new Map<number, (result: Coverage) => void>()
  socket.addEventListener('message', ({ data }) => {
    const { id, result } = JSON.parse(String(data)) as { id: number; result: Coverage }
    waiting.get(id)?.(result)
    waiting.delete(id)
  })
  let last = 0
  const call = (method: string, params: object = {}): Promise<Coverage> => {
    const { promise, resolve } = Promise.withResolvers<Coverage>()
    waiting.set(++last, resolve)
    socket.send(JSON.stringify({ id: last, method: `Profiler.${method}`, params }))
    return promise
  }
  await call('enable')
  await call('startPreciseCoverage', { callCount: true, detailed: false })
  return {
    ran: async () => {
      const { result } = await call('takePreciseCoverage')
      const ran = result.filter(({ functions }) => functions.some(({ ranges }) => (ranges[0]?.count ?? 0) > 0))
      const paths = ran.filter((each) => each.url.startsWith('file:')).map((each) => relative(ROOT, fileURLToPath(each.url)))
      return new Set(paths.filter((path) => path.endsWith('.ts') && !path.startsWith('node_modules') && !path.startsWith('..')))
    },
    [Symbol.asyncDispose]: async () => {
      socket.close()
      await once(socket, 'close')
    },
  }
}
