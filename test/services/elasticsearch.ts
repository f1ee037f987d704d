/**
 * A real Elasticsearch for tests: one node with security on free ports of 127.0.0.1, from Maven Central
 * (elasticsearch/pom.xml, kept in a folder of the machine's temporary one, named by the pom). Needs Java 17 or newer, and
 * Maven for the first time. `elasticsearch` gives the one that all test files share (TEST_ELASTICSEARCH_URL, set by
 * test/run.ts; with TEST_SEARCH=opensearch it is an OpenSearch); `startElasticsearch` a server of its own to tests that kill it. Everything ends with its scope, and with the
 * process.
 */
import { spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { chownSync, existsSync, readFileSync, realpathSync } from 'node:fs'
import { cp, mkdir, mkdtemp, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { freePort } from './free-port.ts'
import { run } from './java.ts'
import { SEARCH } from './search-flavor.ts'
import { until } from '../waiting.ts'

const WITHOUT = 'an Elasticsearch for tests needs Java 17 and Maven, or name one by TEST_ELASTICSEARCH_URL'

export interface TestElasticsearch extends AsyncDisposable {
  /** with the login of `ELASTIC_USER` */
  readonly url: string
  /** of the server's process */
  pid(): Promise<number>
  start(): Promise<void>
  /** ends it as a crash does; its data stays */
  kill(): Promise<void>
}

/** Who may do everything. */
export const ELASTIC_USER = { username: 'tailrace', password: 'labpass' } as const
/** Who may look at indexes and write into none. */
export const ELASTIC_READER = { username: 'reader', password: 'labpass' } as const

export type ElasticsearchOptions = Readonly<{
  settings?: Readonly<Record<string, string | number | boolean>>
  /** options of the server's JVM instead of those that make it quick to start */
  jvm?: readonly string[]
}>

const POM = join(import.meta.dirname, SEARCH.name, 'pom.xml')
/** bcrypt of "labpass" */
const PASSWORD_HASH = '$2a$10$GVAkvPJM7WGzLc71W.A/XOc1OIgzEznIxaG2pH11DpD6YuqtpAN7G'
/** Elasticsearch refuses to run as root. */
const NOBODY = 65_534
const START_LIMIT_MS = 120_000
const JVM = ['-Xms512m', '-Xmx512m', '-XX:+UseSerialGC', '-XX:TieredStopAtLevel=1', '-XX:-AlwaysPreTouch']

export async function startElasticsearch(options: ElasticsearchOptions = {}): Promise<TestElasticsearch> {
  const home = await homeFolder()
  const java = javaHome()
  const folder = await mkdtemp(join(realpathSync(tmpdir()), 'tailrace-elastic-'))
  await using started = new AsyncDisposableStack() // what is to go when the start fails
  started.defer(() => rm(folder, { recursive: true, force: true }))
  const port = await freePort()
  const transportPort = await freePort()
  await configure({ home, folder, port, transportPort, options })
  const isRoot = process.getuid?.() === 0
  if (isRoot) await give(folder)

  let group: number | undefined
  const start = async () => {
    const program = join(home, 'bin', SEARCH.name)
    // by -d the command ends when the server answers
    const args = ['-d', '-p', join(folder, 'pid')]
    const drop = [`--reuid=${NOBODY}`, `--regid=${NOBODY}`, '--clear-groups', '--no-new-privs', program]
    const child = spawn(isRoot ? 'setpriv' : program, isRoot ? [...drop, ...args] : args, {
      cwd: folder,
      detached: true,
      stdio: ['ignore', 'pipe', 'pipe'],
      env: {
        ...{ PATH: process.env.PATH, HOME: join(folder, 'tmp'), CLI_JAVA_OPTS: '-XX:TieredStopAtLevel=1' },
        [`${SEARCH.prefix}_JAVA_HOME`]: java,
        [`${SEARCH.prefix}_PATH_CONF`]: join(folder, 'config'),
        [`${SEARCH.prefix}_TMPDIR`]: join(folder, 'tmp'),
      },
    })
    group = child.pid as number
    endWithProcess(group, folder)
    let log = ''
    for (const stream of [child.stdout, child.stderr])
      stream.setEncoding('utf8').on('data', (text: string) => (log = (log + text).slice(-20_000)))
    let exit: { code: number | null } | undefined
    child.once('exit', (code) => (exit = { code }))
    const { code } = await until(
      () => `${SEARCH.name} starts:\n${log}`,
      () => exit,
      { withinMs: START_LIMIT_MS },
    )
    for (const stream of [child.stdout, child.stderr]) stream.destroy() // the server holds them too
    if (code !== 0) throw new Error(`${SEARCH.name} ended at its start (${code}):\n${log}`)
    if (SEARCH.isReadyLate) await untilReady(port)
  }
  const kill = async () => {
    if (group === undefined) return
    killGroup(group)
    await until(`${SEARCH.name} has ended`, () => !killGroup(group as number))
    group = undefined
  }
  started.defer(kill)
  await start()
  const { username, password } = ELASTIC_USER
  const parts = started.move()
  return {
    url: `http://${username}:${password}@127.0.0.1:${port}`,
    pid: async () => Number(await readFile(join(folder, 'pid'), 'utf8')),
    start,
    kill,
    [Symbol.asyncDispose]: () => parts.disposeAsync(),
  }
}

let shared: Promise<string> | undefined

/** The server that test files share: its URL with the login. */
export function elasticsearch(): Promise<string> {
  const { TEST_ELASTICSEARCH_URL: url } = process.env
  return url === undefined ? (shared ??= startElasticsearch().then((server) => server.url)) : Promise.resolve(url)
}

type Layout = Readonly<{ home: string; folder: string; port: number; transportPort: number; options: ElasticsearchOptions }>

async function configure({ home, folder, port, transportPort, options }: Layout): Promise<void> {
  const config = join(folder, 'config')
  for (const name of ['data', 'logs', 'tmp']) await mkdir(join(folder, name))
  await cp(join(home, 'config'), config, { recursive: true })
  await rm(join(config, 'jvm.options.d'), { recursive: true, force: true })
  await mkdir(join(config, 'jvm.options.d'))
  const needed = (await readFile(join(home, 'config', 'jvm.options'), 'utf8')).split('\n').filter((line) => /^-D|^\d+-:(?!-X)/.test(line))
  await writeFile(join(config, 'jvm.options'), [...needed, ...(options.jvm ?? JVM), ''].join('\n'))
  const settings = {
    'cluster.name': 'tailrace-test',
    'node.name': 'one',
    'discovery.type': 'single-node',
    'path.data': join(folder, 'data'),
    'path.logs': join(folder, 'logs'),
    'http.host': '127.0.0.1',
    'http.port': port,
    'transport.host': '127.0.0.1',
    'transport.port': transportPort,
    'cluster.routing.allocation.disk.threshold_enabled': false,
    'action.auto_create_index': false, // an index is made by whoever runs the server
    'http.max_content_length': '2mb', // small, so that tests can meet them
    'indexing_pressure.memory.limit': '1500kb',
    ...SEARCH.settings,
    ...options.settings,
  }
  await writeFile(join(config, `${SEARCH.name}.yml`), JSON.stringify(settings)) // JSON is YAML
  await SEARCH.writeUsers({ hash: PASSWORD_HASH, superuser: ELASTIC_USER.username, reader: ELASTIC_READER.username }, home, config)
}

/** Until it answers, and knows who may ask. */
async function untilReady(port: number): Promise<void> {
  const { username, password } = ELASTIC_USER
  const headers = { authorization: `Basic ${Buffer.from(`${username}:${password}`).toString('base64')}` }
  let status: number | undefined
  const isReady = async () => {
    const answer = await fetch(`http://127.0.0.1:${port}/_cluster/health`, { headers }).catch(() => undefined)
    status = answer?.status
    return answer?.ok
  }
  await until(() => `${SEARCH.name} answers, now with status ${status}`, isReady, { withinMs: START_LIMIT_MS })
}

/** The server's files, fetched by Maven the first time; several processes may ask at once. */
async function homeFolder(): Promise<string> {
  const folder = join(
    realpathSync(tmpdir()),
    `tailrace-${SEARCH.name}-${createHash('sha256').update(readFileSync(POM)).digest('hex').slice(0, 12)}`,
  )
  if (!existsSync(folder)) {
    const fetching = `${folder}.${process.pid}`
    await mkdir(fetching, { recursive: true })
    run('mvn', ['-B', '-q', '-f', POM, 'initialize', `-Dinto=${fetching}`], WITHOUT)
    await rename(fetching, folder).catch(() => rm(fetching, { recursive: true, force: true })) // another process was first
  }
  const name = (await readdir(folder)).find((one) => one.startsWith(`${SEARCH.name}-`))
  if (name === undefined) throw new Error(`${folder} holds no ${SEARCH.name}; remove it`)
  return join(folder, name)
}

function javaHome(): string {
  if (process.env.JAVA_HOME) return process.env.JAVA_HOME
  const settings = run('java', ['-XshowSettings:properties', '-version'], WITHOUT)
  const [, home] = /^\s*java\.home = (.+)$/m.exec(settings) ?? []
  if (home === undefined) throw new Error('java does not tell where its home is; set JAVA_HOME')
  return home
}

async function give(folder: string): Promise<void> {
  chownSync(folder, NOBODY, NOBODY)
  for (const entry of await readdir(folder, { recursive: true })) chownSync(join(folder, entry), NOBODY, NOBODY)
}

/** @returns whether one of its processes was there */
function killGroup(group: number): boolean {
  try {
    process.kill(-group, 'SIGKILL')
    return true
  } catch {
    return false
  }
}

/** A server of a test must not outlive it, even when the test is killed: a watcher ends it then. */
function endWithProcess(group: number, folder: string): void {
  const script = `while kill -0 ${process.pid} 2>/dev/null; do kill -0 -${group} 2>/dev/null || exit 0; sleep 5; done; kill -KILL -${group}; sleep 1; rm -rf "$1"`
  spawn('sh', ['-c', script, 'sh', folder], { detached: true, stdio: 'ignore' }).unref()
}
