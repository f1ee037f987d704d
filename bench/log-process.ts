/**
 * The process of scenarios/log-cost.ts: opens a log as the service does, appends packs one after the other, each waited
 * for, then reads and decodes them all. Only this process' own CPU is counted, the making of the packs isn't.
 */
import { once } from 'node:events'
import { openEmbeddedLog } from '../engine/log/embedded.ts'
import { parseBroker } from '../engine/log/kafka/connection.ts'
import { openKafkaLog } from '../engine/log/kafka/kafka-log.ts'
import type { Log } from '../engine/log/log.ts'
import { PackBuilder } from '../engine/log/pack-builder.ts'
import { ACTION, Pack } from '../engine/log/pack.ts'
import { openStore } from '../engine/state/store.ts'
import type { Bench } from './postgres.ts'

export type LogTask = Readonly<{
  /** for the embedded log */
  folder: string
  /** host:port; absent: the embedded log */
  broker?: string
  /** a database for what the log in Kafka remembers outside of it */
  state: Bench['database']
  packs: number
  messagesPerPack: number
}>
export type Work = Readonly<{ seconds: number; cpuSeconds: number }>
export type LogReply = Readonly<{ bodyBytes: number; append: Work; read: Work }> | Readonly<{ failed: string }>

const TOPIC = 'bench.1'
const SOURCE = 'bench'
/** Packs made before they are appended. */
const AHEAD = 50

async function run(task: LogTask): Promise<LogReply> {
  await using parts = new AsyncDisposableStack()
  const log = parts.use(await open(task, parts))
  await log.createTopic(TOPIC, 1)
  await log.beginRun(SOURCE)
  const maker = new PackMaker(task.messagesPerPack)
  const append = { seconds: 0, cpuSeconds: 0 }
  for (let done = 0; done < task.packs; done += AHEAD) {
    const packs = Array.from({ length: Math.min(AHEAD, task.packs - done) }, () => maker.next())
    const spent = await measured(async () => {
      for (const { pack, position } of packs) await log.append([{ topic: TOPIC, partition: 0, pack }], { source: SOURCE, position })
    })
    append.seconds += spent.seconds
    append.cpuSeconds += spent.cpuSeconds
  }
  const read = await measured(async () => {
    const abort = new AbortController()
    let packs = 0
    for await (const { pack } of log.read(TOPIC, 0, 0, abort.signal)) {
      Pack.decode(pack)
      if (++packs === task.packs) abort.abort()
    }
  })
  return { bodyBytes: maker.bodyBytes, append, read }
}

async function open({ folder, broker, state }: LogTask, parts: AsyncDisposableStack): Promise<Log> {
  if (broker === undefined) return openEmbeddedLog(folder)
  const address = parseBroker(broker)
  if (!address) throw new TypeError(`no broker: ${broker}`)
  const { host, user, ...rest } = state
  const connection = { ...rest, hostname: host, username: user, ssl: false } as const
  const store = parts.use(await openStore(connection, 2, () => undefined))
  return openKafkaLog({
    connection: { brokers: [address], clientId: 'tailrace-bench' },
    prefix: `bench-log-${process.pid}.`,
    query: store.query,
  })
}

async function measured(work: () => Promise<void>): Promise<Work> {
  const cpu = process.cpuUsage()
  const from = performance.now()
  await work()
  const { user, system } = process.cpuUsage(cpu)
  return { seconds: (performance.now() - from) / 1000, cpuSeconds: (user + system) / 1e6 }
}

/** Packs of messages as the workload's table makes them. */
class PackMaker {
  readonly #messages: number
  readonly #builder = new PackBuilder({ history: 0, term: 1, routing: 1 })
  #made = 0
  #bytes = 0

  constructor(messages: number) {
    this.#messages = messages
  }

  /** of a message, on average */
  get bodyBytes(): number {
    return Math.round(this.#bytes / Math.max(1, this.#made))
  }

  next(): { pack: Buffer; position: { history: number; lsn: bigint; idx: number; part: 1 } } {
    const lsn = BigInt(this.#made + 1)
    this.#builder.begin(lsn, 1, Date.now() * 1000)
    for (let idx = 0; idx < this.#messages; idx++) {
      const id = ++this.#made
      const key = Buffer.from(JSON.stringify([String(id)]))
      const message = Buffer.from(body(id))
      this.#builder.bodies.copy(key)
      this.#builder.bodies.copy(message)
      this.#bytes += message.length
      this.#builder.add(idx, 1, ACTION.insert, 1, 0, id, key.length, 0)
    }
    return { pack: this.#builder.encode(), position: { history: 0, lsn, idx: this.#messages - 1, part: 1 } }
  }
}

const WORDS = 'The quick brown fox jumps over the lazy dog while seven wizards quietly box five dozen jugs of liquor'.split(' ')

function body(id: number): string {
  const now = new Date(1_750_000_000_000 + id).toISOString()
  const title = Array.from({ length: 36 }, (_, i) => WORDS[(id * 7 + i * (1 + (id % 5))) % WORDS.length]).join(' ')
  const attributes = {
    tags: ['new', 'sale', 'heavy'],
    colour: 'deep blue',
    origin: `warehouse ${id % 8}`,
    weight: (id * 2_654_435_761) % 5000,
  }
  const record = { id, title, price: ((id * 48_271) % 1_000_000) / 100, written_at: now, attributes, created_at: now, updated_at: now }
  return `"record":${JSON.stringify(record)},"changes":null,"action":"insert","metadata":{"table_schema":"public","table_name":"measured","commit_timestamp":"${now}","commit_lsn":${id},"commit_idx":0,"record_pks":["${id}"]`
}

const [task] = (await once(process, 'message')) as [LogTask]
const reply = await run(task).catch((error: unknown): LogReply => ({
  failed: error instanceof Error ? (error.stack ?? error.message) : String(error),
}))
process.send?.(reply, () => process.disconnect())
