/**
 * A real Apache Kafka broker for tests: one node in KRaft mode on free ports of 127.0.0.1, from Maven Central's jars
 * (kafka/pom.xml, kept in a folder of the machine's temporary one, named by the pom). Needs Java 17 or newer, and Maven
 * for the first time. `kafkaBrokers` gives the one that all test files share (TEST_KAFKA_BROKERS, set by test/run.ts);
 * `startKafka` a broker of its own to tests that stop or kill it. Everything ends with its scope, and with the process.
 */
import { spawn, type ChildProcess } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { existsSync, readFileSync } from 'node:fs'
import { rename, rm, writeFile } from 'node:fs/promises'
import { connect, type Socket } from 'node:net'
import { join } from 'node:path'
import { freePort } from './free-port.ts'
import { jarFolder, run } from './java.ts'
import { serverFolder } from './server-folder.ts'
import { until } from '../waiting.ts'

const WITHOUT = 'a broker for tests needs Java 17 and Maven, or name one by TEST_KAFKA_BROKERS'

export interface TestBroker extends AsyncDisposable {
  /** host:port */
  readonly address: string
  readonly pid: number
  /** what it keeps */
  readonly folder: string
  start(): Promise<void>
  /** ends it cleanly; its data stays */
  stop(): Promise<void>
  /** ends it as a crash does; its data stays */
  kill(): Promise<void>
}

const POM = join(import.meta.dirname, 'kafka', 'pom.xml')

/** Who may log in to a secured broker, by each mechanism. */
export const KAFKA_USER = { username: 'tailrace', password: 'a test=secret' } as const
/** Who may log in there by PLAIN and has no rights at all. */
export const KAFKA_STRANGER = { username: 'stranger', password: 'another' } as const

export type BrokerOptions = Readonly<{
  settings?: Readonly<Record<string, string | number>>
  /** TLS with the certificate of services/tls, and a login by PLAIN, SCRAM or an unsigned OAUTHBEARER token */
  secured?: boolean
  /** options of the broker's JVM instead of those that make it quick to start */
  jvm?: readonly string[]
}>

export async function startKafka(options: BrokerOptions = {}): Promise<TestBroker> {
  const folderOfJars = await jarFolder(POM, 'tailrace-kafka-jars', WITHOUT)
  const jars = join(folderOfJars, '*')
  const jvm = options.jvm ?? [...JVM, `-XX:SharedArchiveFile=${await classArchive(folderOfJars)}`]
  const folder = await serverFolder('tailrace-kafka-')
  const port = await freePort()
  const controllerPort = await freePort()
  const innerPort = await freePort()
  const address = `127.0.0.1:${port}`
  const settings = join(folder, 'server.properties')
  await writeFile(settings, properties({ port, controllerPort, innerPort, folder, options }))
  const { username, password } = KAFKA_USER
  const users = options.secured ? ['--add-scram', `SCRAM-SHA-512=[name="${username}",password="${password}"]`] : []
  await using started = new AsyncDisposableStack() // what is to go when the start fails
  started.defer(() => rm(folder, { recursive: true, force: true }))
  run(
    'java',
    [
      ...(options.jvm ? JVM : jvm),
      '-cp',
      jars,
      'kafka.tools.StorageTool',
      'format',
      '--standalone',
      '-t',
      newClusterId(),
      ...users,
      '-c',
      settings,
    ],
    WITHOUT,
  )

  let server: ChildProcess | undefined
  const start = async () => {
    const child = spawn('java', [...jvm, '-cp', jars, 'kafka.Kafka', settings], {
      stdio: ['ignore', 'ignore', 'pipe'],
      detached: true,
    })
    server = child
    child.unref() // whoever forgets it may still end
    ;(child.stderr as unknown as Socket).unref()
    let log = ''
    child.stderr.setEncoding('utf8').on('data', (text: string) => (log = (log + text).slice(-20_000)))
    endWithProcess(child.pid as number, folder)
    await untilAnswering(innerPort, child, () => log)
  }
  const end = async (signal: NodeJS.Signals) => {
    if (!server || server.exitCode !== null || server.signalCode !== null) return
    const exited = once(server, 'exit')
    server.ref()
    server.kill(signal)
    await exited
  }
  started.defer(() => end('SIGKILL'))
  await start()
  const parts = started.move()
  return {
    address,
    get pid() {
      return server?.pid ?? 0
    },
    folder: join(folder, 'log'),
    start,
    stop: () => end('SIGTERM'),
    kill: () => end('SIGKILL'),
    [Symbol.asyncDispose]: () => parts.disposeAsync(),
  }
}

let shared: Promise<string> | undefined

/** Addresses of the broker that test files share. */
export async function kafkaBrokers(): Promise<readonly string[]> {
  const brokers = process.env.TEST_KAFKA_BROKERS ?? (await (shared ??= startKafka().then(({ address }) => address)))
  return brokers.split(',')
}

/** The JVM of a test: quick to start, small. */
const JVM = ['-Xmx512m', '-Xms128m', '-XX:+UseSerialGC', '-XX:TieredStopAtLevel=1', '-Dorg.slf4j.simpleLogger.defaultLogLevel=warn']

function properties(
  at: Readonly<{ port: number; controllerPort: number; innerPort: number; folder: string; options: BrokerOptions }>,
): string {
  const { port, controllerPort, innerPort, folder, options } = at
  const all: Record<string, string | number> = {
    'process.roles': 'broker,controller',
    'node.id': 1,
    'controller.quorum.bootstrap.servers': `127.0.0.1:${controllerPort}`,
    listeners: `CLIENTS://127.0.0.1:${port},INNER://127.0.0.1:${innerPort},CONTROLLER://127.0.0.1:${controllerPort}`,
    'advertised.listeners': `CLIENTS://127.0.0.1:${port},INNER://127.0.0.1:${innerPort}`,
    'inter.broker.listener.name': 'INNER',
    'controller.listener.names': 'CONTROLLER',
    'listener.security.protocol.map': `CLIENTS:${options.secured ? 'SASL_SSL' : 'PLAINTEXT'},INNER:PLAINTEXT,CONTROLLER:PLAINTEXT`,
    'log.dirs': join(folder, 'log'),
    'offsets.topic.replication.factor': 1,
    'transaction.state.log.replication.factor': 1,
    'transaction.state.log.min.isr': 1,
    'share.coordinator.state.topic.replication.factor': 1,
    'share.coordinator.state.topic.min.isr': 1,
    'group.initial.rebalance.delay.ms': 0,
    'group.min.session.timeout.ms': 1000, // so that tests of lost members needn't wait long
    'offsets.topic.num.partitions': 4,
    'transaction.state.log.num.partitions': 4,
    'broker.session.timeout.ms': 3000, // how long a crashed broker's restart waits for its former self
    'broker.heartbeat.interval.ms': 500,
    'auto.create.topics.enable': 'true', // as most clusters have it: ours must not come to be by asking for them
    ...(options.secured ? security() : {}),
    ...options.settings,
  }
  return Object.entries(all)
    .map(([name, value]) => `${name}=${String(value).replaceAll('\\', '\\\\').replaceAll('\n', '\\n')}\n`)
    .join('')
}

function security(): Record<string, string> {
  const { username, password } = KAFKA_USER
  const pem = (file: string) => readFileSync(join(import.meta.dirname, 'tls', file), 'utf8').trim()
  const module = (name: string, rest = '') => `org.apache.kafka.common.security.${name} required${rest};`
  return {
    'ssl.keystore.type': 'PEM',
    'ssl.keystore.key': pem('server.key'),
    'ssl.keystore.certificate.chain': pem('server.crt'),
    'sasl.enabled.mechanisms': 'PLAIN,SCRAM-SHA-512,OAUTHBEARER',
    'listener.name.clients.plain.sasl.jaas.config': module(
      'plain.PlainLoginModule',
      ` user_${username}="${password}" user_${KAFKA_STRANGER.username}="${KAFKA_STRANGER.password}"`,
    ),
    'authorizer.class.name': 'org.apache.kafka.metadata.authorizer.StandardAuthorizer',
    'super.users': `User:ANONYMOUS;User:${username};User:x`, // the broker itself, and the logins of each mechanism
    'listener.name.clients.scram-sha-512.sasl.jaas.config': module('scram.ScramLoginModule'),
    'listener.name.clients.oauthbearer.sasl.jaas.config': module(
      'oauthbearer.OAuthBearerLoginModule',
      ' unsecuredLoginStringClaim_sub="x"',
    ),
    'listener.name.clients.connections.max.reauth.ms': '2000', // a session ends so soon unless the client has another by then
  }
}

/**
 * The broker's classes as a JVM has them once they are loaded and checked, beside the jars: with them a start takes half the CPU
 * time. They are made at the first start on a machine, by a broker that ends cleanly; a JVM of another version does without them.
 */
async function classArchive(folderOfJars: string): Promise<string> {
  const archive = `${folderOfJars}.jsa`
  if (existsSync(archive)) return archive
  const making = `${archive}.${process.pid}`
  {
    await using broker = await startKafka({ jvm: [...JVM, `-XX:ArchiveClassesAtExit=${making}`] })
    await broker.stop()
  }
  await rename(making, archive).catch(() => undefined) // this JVM can't make one
  return archive
}

const newClusterId = () => randomBytes(16).toString('base64url').replace(/^-/, 'a')

/** A broker of a test must not outlive it, even when the test is killed: a watcher ends it then. */
function endWithProcess(pid: number, folder: string): void {
  const script = `while kill -0 ${process.pid} 2>/dev/null; do kill -0 ${pid} 2>/dev/null || exit 0; sleep 5; done; kill -KILL ${pid}; sleep 1; rm -rf "$1"`
  spawn('sh', ['-c', script, 'sh', folder], { detached: true, stdio: 'ignore' }).unref()
}

async function untilAnswering(port: number, server: ChildProcess, log: () => string): Promise<void> {
  const isAnswering = () => {
    if (server.exitCode !== null || server.signalCode !== null) throw new Error(`the broker ended at its start:\n${log()}`)
    return answers(port)
  }
  await until(() => `the broker answers:\n${log()}`, isAnswering)
}

/** Whether something answers ApiVersions there. */
function answers(port: number): Promise<boolean> {
  const { promise, resolve } = Promise.withResolvers<boolean>()
  const socket = connect(port, '127.0.0.1')
  socket.setTimeout(1_000, () => socket.destroy())
  socket.on('error', () => undefined)
  socket.on('close', () => resolve(false))
  socket.on('connect', () => socket.write(Buffer.from([0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 1, 0xff, 0xff])))
  socket.on('data', (answer) => {
    resolve(answer.length >= 10 && answer.readUInt32BE(4) === 1 && answer.readUInt16BE(8) === 0)
    socket.destroy()
  })
  return promise
}
