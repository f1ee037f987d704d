/** Each cell of docs/recovery-cells.ts with the log in Kafka, as recovery.pg.test.ts has those of the data folder. */
import { rm } from 'node:fs/promises'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import kafkajs from 'kafkajs'
import { CELLS, type Cell } from '../../docs/recovery-cells.ts'
import { startKafka, type TestBroker } from '../services/kafka.ts'
import { createDatabase, createState } from '../services/postgres.ts'
import { copyFolder, DDL, Life, nextSlot, session } from './recovery-run.ts'

const SESSION_MS = 1_500

type Name = { [N in keyof typeof CELLS]: (typeof CELLS)[N]['log'] extends 'kafka' ? N : never }[keyof typeof CELLS]
type Home = Readonly<{ life: Life; prefix: string }>
/** Makes it happen to a service at work, and follows the remedy. */
type Doing = (cell: Cell, home: Home) => Promise<void>

let broker: TestBroker

async function home(parts: AsyncDisposableStack): Promise<Home> {
  const source = parts.use(await createDatabase(DDL))
  const state = parts.use(await createState())
  const prefix = `${source.name}.`
  const env = {
    KAFKA_BROKERS: broker.address,
    KAFKA_TOPIC_PREFIX: prefix,
    KAFKA_SESSION_TIMEOUT_MS: String(SESSION_MS),
    VAULT_KEY: Buffer.alloc(32, 7).toString('base64'),
  }
  const options = { source: source.connection, connect: () => session(source.connection), stateUrl: state.url, slot: nextSlot(), env }
  return { life: parts.use(await Life.prepare(options)), prefix }
}

async function withAdmin<T>(work: (admin: kafkajs.Admin) => Promise<T>): Promise<T> {
  const admin = new kafkajs.Kafka({ brokers: [broker.address], logLevel: kafkajs.logLevel.NOTHING }).admin()
  await admin.connect()
  return work(admin).finally(() => admin.disconnect())
}
const topicsOf = async (admin: kafkajs.Admin, prefix: string) => (await admin.listTopics()).filter((topic) => topic.startsWith(prefix))

/** What everybody may do with the topics of one service: all, but for writing while `denied`. */
const rightsOf = (prefix: string) => {
  const all = { principal: 'User:*', host: '*', resourceName: prefix, resourcePatternType: kafkajs.ResourcePatternTypes.PREFIXED }
  const topic = { ...all, resourceType: kafkajs.AclResourceTypes.TOPIC }
  const allowed = { ...topic, operation: kafkajs.AclOperationTypes.ALL, permissionType: kafkajs.AclPermissionTypes.ALLOW }
  const denied = { ...topic, operation: kafkajs.AclOperationTypes.WRITE, permissionType: kafkajs.AclPermissionTypes.DENY }
  return { allowed, denied }
}

/** Those that leave the broker alone, so that they may happen at once. */
const SIDE_BY_SIDE: Partial<Record<Name, Doing>> = {
  'kafka lost': async (cell, { life, prefix }) => {
    await life.live()
    await life.service.kill()
    life.happens()
    await withAdmin(async (admin) => admin.deleteTopics({ topics: await topicsOf(admin, prefix) }))
    await life.write('after')
    life.service.start()
    await life.asks(cell)
    await life.accept()
  },

  'kafka swapped': async (cell, { life, prefix }) => {
    await life.live()
    await life.service.kill()
    life.happens()
    life.service.setVariables({ KAFKA_TOPIC_PREFIX: `another.${prefix}` })
    await life.write('after')
    life.service.start()
    await life.asks(cell)
    await life.service.stop()
    life.service.setVariables({ KAFKA_TOPIC_PREFIX: prefix })
    await life.service.startReady()
  },

  'kafka read-only': async (_cell, { life, prefix }) => {
    await life.live()
    life.happens()
    const { allowed, denied } = rightsOf(prefix)
    await withAdmin((admin) => admin.createAcls({ acl: [allowed, denied] }))
    await life.write('after')
    await life.waits('LOG_REFUSED')
    await withAdmin((admin) => admin.deleteAcls({ filters: [denied] }))
    await life.command('source', 'retry', 'source')
    await life.service.untilReady()
  },
}

const ONE_BY_ONE: Partial<Record<Name, Doing>> = {
  'kafka in recovery': async (_cell, { life }) => {
    await life.live()
    life.happens()
    await broker.kill()
    await life.write('after')
    await broker.start()
  },

  'kafka older': async (cell, { life }) => {
    await life.live()
    await life.service.stop()
    await broker.stop()
    const copy = join(life.service.folder, 'broker')
    await copyFolder(broker.folder, copy)
    await broker.start()
    await life.service.startReady()
    await life.goOn()
    await life.service.stop()
    life.happens()
    await broker.stop()
    await rm(broker.folder, { recursive: true })
    await copyFolder(copy, broker.folder)
    await broker.start()
    await life.write('after')
    life.service.start()
    await life.asks(cell)
    await life.accept()
  },
}

before(async () => {
  // rights are looked at; where nobody has said anything of them, everybody has all
  const authorizer = 'org.apache.kafka.metadata.authorizer.StandardAuthorizer'
  broker = await startKafka({ settings: { 'authorizer.class.name': authorizer, 'allow.everyone.if.no.acl.found': 'true' } })
})
after(() => broker[Symbol.asyncDispose]())

for (const [doings, concurrency] of [
  [SIDE_BY_SIDE, 3],
  [ONE_BY_ONE, 1],
] as const) {
  describe(`what is lost, swapped or set back, ${concurrency} at once`, { concurrency }, () => {
    for (const [name, doing] of Object.entries(doings) as [Name, Doing][]) {
      const cell: Cell = CELLS[name]
      test(`${name}: ${cell.code ?? 'it goes on'}, and lost at the most is ${cell.lost}`, async (context) => {
        await using parts = new AsyncDisposableStack()
        const at = await home(parts)
        await doing(cell, at)
        await at.life.write('later')
        context.diagnostic(await at.life.judge(cell))
      })
    }
  })
}
