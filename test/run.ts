/**
 * `npm test`: runs every *.test.ts below test/ with one Postgres, one Kafka broker and one Elasticsearch for all of them, and
 * ends with the runner's own closing lines, so that the count of tests is the last thing seen.
 *
 *   node test/run.ts [--long [--seeds N]] [pattern …]     a pattern: part of a file's path, or a glob
 *
 * `TEST_PG_URL`, `TEST_KAFKA_BROKERS` and `TEST_ELASTICSEARCH_URL` name other servers to test against. Without them they
 * are started (test/services/). Where that can't be done, the tests that need one (*.pg.test.ts, *.kafka.test.ts,
 * *.search.test.ts; the latter two may use Postgres as well) are left out and named, or, with CI set, the run fails.
 */
import { globSync } from 'node:fs'
import { mkdtempDisposable } from 'node:fs/promises'
import { availableParallelism, tmpdir } from 'node:os'
import { dirname, join, matchesGlob, sep } from 'node:path'
import { Readable } from 'node:stream'
import { run } from 'node:test'
import { spec } from 'node:test/reporters'
import { parseArgs } from 'node:util'
import { bundleCommand, COMMAND } from './services/bundled-command.ts'
import { startElasticsearch } from './services/elasticsearch.ts'
import { startKafka } from './services/kafka.ts'
import { startShared } from './services/postgres.ts'
import { together } from './together.ts'

const root = dirname(import.meta.dirname)
/**
 * Each file is a process that shares the servers with others, and most of the time it waits for what it started: of four at once two
 * cores were busy for little more than half of the time. Four more than cores keep those busy.
 */
const FILES_AT_ONCE = Math.min(availableParallelism() + 4, 12)
/** What takes longer on the slowest machine hangs. A test that hangs is named and the next one of its file begins. */
const TEST_LIMIT_MS = 7 * 60_000
const FILE_LIMIT_MS = 12 * 60_000

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { long: { type: 'boolean', default: false }, seeds: { type: 'string' } },
})
const patterns = positionals.map((pattern) => pattern.replaceAll(sep, '/'))
const wanted = (file: string): boolean =>
  patterns.length === 0 || patterns.some((pattern) => file.includes(pattern) || matchesGlob(file, pattern))
/** Those whose processes are the command's. */
const isOfCommands = (file: string): boolean => /^test\/(faults|cli|docs)\//.test(file)
/** Those begin first: at the end short ones fill the gaps. What shares a process follows them, for it is long in one piece. */
const isLong = (file: string): boolean => /^test\/(faults|transforms|docs|cli)\/|\.kafka\./.test(file)
let files = globSync('test/**/*.test.ts', { cwd: root })
  .map((file) => file.replaceAll(sep, '/'))
  .filter(wanted)
  .sort()
if (files.length === 0) throw new Error(`no test file matches ${patterns.join(' ')}`)

const { env } = process // that of the test files' processes too
env.NODE_COMPILE_CACHE ??= join(tmpdir(), 'tailrace-test-compile-cache')
if (values.long) env.TAILRACE_TEST_LONG = '1'
else env.TAILRACE_TEST_FILE_LIMIT_MS = String(FILE_LIMIT_MS)
if (values.seeds !== undefined) env.TAILRACE_TEST_SEEDS = values.seeds

if (files.some(isOfCommands))
  env.TEST_COMMAND ??= await bundleCommand().catch((error: Error) => {
    process.stderr.write(`tests start the sources, which takes longer, for they could not be bundled: ${error.message}\n`)
    return COMMAND
  })

type Service = Readonly<{
  name: string
  variable: string
  needs: (file: string) => boolean
  /** @returns what the variable says */
  start: (services: AsyncDisposableStack) => Promise<string>
}>
const SERVICES: readonly Service[] = [
  {
    name: 'POSTGRES',
    variable: 'TEST_PG_URL',
    needs: (file) => /\.(pg|kafka|search)\.test\.ts$/.test(file),
    start: async (services) => {
      const { server, variables } = await startShared()
      Object.assign(env, variables)
      services.use(server)
      return server.url
    },
  },
  {
    name: 'KAFKA',
    variable: 'TEST_KAFKA_BROKERS',
    needs: (file) => file.endsWith('.kafka.test.ts'),
    start: async (services) => services.use(await startKafka()).address,
  },
  {
    name: 'ELASTICSEARCH',
    variable: 'TEST_ELASTICSEARCH_URL',
    needs: (file) => file.endsWith('.search.test.ts'),
    start: async (services) => services.use(await startElasticsearch()).url,
  },
]
await using services = new AsyncDisposableStack()
const refused = await Promise.all(
  SERVICES.map(async ({ name, variable, needs, start }) => {
    if (env[variable] || !files.some(needs)) return []
    try {
      env[variable] = await start(services)
      return []
    } catch (error) {
      if (env.CI) throw error
      return [{ name, needs, error: error as Error }]
    }
  }),
)
for (const { name, needs, error } of refused.flat()) {
  const left = files.filter(needs)
  process.stderr.write(`\nNO ${name}: ${error.message}\nLeft out, not passed: ${left.join(' ')}\n\n`)
  files = files.filter((file) => !needs(file))
}

const folder = await mkdtempDisposable(join(tmpdir(), 'tailrace-tests-'))
services.use(folder)
files = together(files, root, folder.path).sort((a, b) => Number(isLong(b)) - Number(isLong(a)))

const stop = new AbortController()
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.on(signal, () => stop.abort())
const tests = run({
  ...{ files, cwd: root, concurrency: FILES_AT_ONCE, signal: stop.signal },
  ...(values.long ? {} : { execArgv: [`--test-timeout=${TEST_LIMIT_MS}`, `--import=${import.meta.resolve('./file-limit.ts')}`] }),
})
tests.on('test:fail', () => (process.exitCode = 1))
tests.on('error', (error) => process.stderr.write(`${error.message}\n`))
const neverBegan = new Set<string>()
const report = Readable.from(ofFilesThatBegan(tests)).compose(new spec())
report.pipe(process.stdout)
await new Promise((resolve) => report.on('end', resolve))
if (stop.signal.aborted) {
  process.exitCode = 1
  process.stderr.write(`\nSTOPPED: ${neverBegan.size} of ${files.length} files were not run\n`)
}

/** A run that is stopped begins all other files to fail them at once: they have neither failed nor are they tests. */
async function* ofFilesThatBegan(events: AsyncIterable<TestEvent>): AsyncIterable<TestEvent> {
  for await (const event of events) {
    const { type, data } = event
    const of = data.file ?? ''
    if (type === 'test:dequeue' && stop.signal.aborted) neverBegan.add(of)
    if (neverBegan.has(of)) continue
    const counted = type === 'test:diagnostic' && neverBegan.size > 0 ? /^(tests|cancelled) (\d+)$/.exec(data.message ?? '') : null
    yield counted ? { type, data: { ...data, message: `${counted[1]} ${Number(counted[2]) - neverBegan.size}` } } : event
  }
}
type TestEvent = Readonly<{ type: string; data: Readonly<{ file?: string; message?: string }> }>
