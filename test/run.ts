/**
 * `npm test`: runs every *.test.ts below test/ with one Postgres and one Kafka broker for all of them, and ends with the
 * runner's own closing lines, so that the count of tests is the last thing seen.
 *
 *   node test/run.ts [--long [--seeds N]] [pattern …]     a pattern: part of a file's path, or a glob
 *
 * `TEST_PG_URL` and `TEST_KAFKA_BROKERS` name other servers to test against. Without them they are started
 * (test/services/). Where that can't be done, the tests that need one (*.pg.test.ts, *.kafka.test.ts; those of Kafka may
 * use both) are left out and named, or, with CI set, the run fails.
 */
import { spawn } from 'node:child_process'
import { globSync } from 'node:fs'
import { dirname, matchesGlob, sep } from 'node:path'
import { parseArgs } from 'node:util'
import { startElasticsearch } from './services/elasticsearch.ts'
import { startKafka } from './services/kafka.ts'
import { startPostgres } from './services/postgres.ts'

const root = dirname(import.meta.dirname)
/** Each file is a process; more of them than cores only makes the timing of each worse. */
const FILES_AT_ONCE = 2
const FILE_LIMIT_MS = 8 * 60_000

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { long: { type: 'boolean', default: false }, seeds: { type: 'string' } },
})
const patterns = positionals.map((pattern) => pattern.replaceAll(sep, '/'))
const wanted = (file: string): boolean =>
  patterns.length === 0 || patterns.some((pattern) => file.includes(pattern) || matchesGlob(file, pattern))
let files = globSync('test/**/*.test.ts', { cwd: root })
  .map((file) => file.replaceAll(sep, '/'))
  .filter(wanted)
  .sort()
if (files.length === 0) throw new Error(`no test file matches ${patterns.join(' ')}`)

const env: Record<string, string | undefined> = { ...process.env }
if (values.long) env.TAILRACE_TEST_LONG = '1'
if (values.seeds !== undefined) env.TAILRACE_TEST_SEEDS = values.seeds

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
    start: async (services) => services.use(await startPostgres()).url,
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
for (const { name, variable, needs, start } of SERVICES) {
  if (env[variable] || !files.some(needs)) continue
  try {
    env[variable] = await start(services)
  } catch (error) {
    if (env.CI) throw error
    const left = files.filter(needs)
    process.stderr.write(`\nNO ${name}: ${(error as Error).message}\nLeft out, not passed: ${left.join(' ')}\n\n`)
    files = files.filter((file) => !needs(file))
  }
}

const limit = values.long ? [] : [`--test-timeout=${FILE_LIMIT_MS}`]
const options = ['--test', `--test-concurrency=${FILES_AT_ONCE}`, '--test-reporter=spec', ...limit]
const runner = spawn(process.execPath, [...options, ...files], { cwd: root, env, stdio: 'inherit' })
process.on('SIGINT', () => {}) // the runner gets it from the terminal; this process ends after it, with its services stopped
process.on('SIGTERM', () => runner.kill('SIGTERM'))
process.exitCode = await new Promise<number>((resolve, reject) => {
  runner.on('error', reject)
  runner.on('exit', (code) => resolve(code ?? 1))
})
