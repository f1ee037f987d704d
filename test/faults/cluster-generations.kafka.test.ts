/**
 * A sink that three processes share is changed under load, while others read the same stream: its partitions to fewer than there are
 * processes, so that one is left without any, and to more again; then in other ways while processes are killed. Each process has clients of its own, and whoever has no partition of a generation has
 * to follow the others to the next one.
 */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { openStore } from '../../engine/state/store.ts'
import type { TestDatabase } from '../services/postgres.ts'
import { kafkaBrokers } from '../services/kafka.ts'
import { holdings } from './cluster-faults.ts'
import { MEANWHILE, ReaderEdits } from './reader-edits.ts'
import { Scenario, withSeed, type ScenarioSink } from './scenario.ts'
import { LONG, seeds } from './size.ts'
import { CAPTURED, TABLES } from './workload-tables.ts'
import { pass, until } from '../waiting.ts'

const NODES = 3

/** Long enough that a busy machine loses no member by itself; a killed one is missed after it. */
const SESSION_MS = 3_000
const SHAPE = { tables: CAPTURED, ack_wait_ms: 1_000, partitions: 4 }
const EDITED: ScenarioSink = {
  ...{ ...SHAPE, name: 'one' },
  atTimes: TABLES.filter(({ captured }) => captured).map(({ name }) => name),
}

for (const seed of seeds(1)) {
  test(`three processes take one reader of a stream from 4 partitions to 2 to 6, and edit and replay it while they are killed; its other readers do not notice (seed ${seed})`, async (context) => {
    await withSeed(seed, 'cluster-generations.kafka.test.ts', async () => {
      const env = {
        KAFKA_BROKERS: (await kafkaBrokers()).join(','),
        KAFKA_TOPIC_PREFIX: `generations${process.pid}.${seed}.`,
        KAFKA_SESSION_TIMEOUT_MS: String(SESSION_MS),
        VAULT_KEY: Buffer.alloc(32, 7).toString('base64'),
      }
      const others = { ...SHAPE, replay_window: 0 }
      const sinks = [{ ...others, name: 'busy' }, { ...others, name: 'few', actions: ['insert', 'delete'] }, EDITED]
      await using scenario = await Scenario.create({ seed, env, sinks, nodes: NODES, takeOverMs: SESSION_MS + 1_000 })
      const { nodes, random } = scenario
      for (const node of nodes) await node.startReady()
      for (const node of nodes) node.forgetConfigFile() // it says 4
      scenario.write()
      scenario.receive()
      for (const partitions of [2, 6]) {
        const { status, body } = await random.pick(nodes).patch('/api/sinks/one', { partitions })
        assert.equal(status, 200, JSON.stringify(body))
        await scenario.untilMore(random.int(50, 200))
        await until(`${partitions} partitions are served, each process with its share`, async () => {
          const held = (await holdings(nodes, 'one')).map((one) => one.partitions).sort()
          return held.length === NODES && held.join() === SHARES[partitions]
        })
      }
      assert.equal((await random.pick(nodes).patch('/api/sinks/one', { partitions: EDITED.partitions })).status, 200)
      const edits = new ReaderEdits(scenario, EDITED)
      const { paused, selection, replayed } = edits.kinds
      const some = random.shuffled(LONG ? Object.values(edits.kinds) : [paused, selection, replayed])
      for (const edit of [...some, () => edits.copied()]) {
        await edit()
        await scenario.untilMore(MEANWHILE)
      }
      await scenario.untilMore(50)
      await scenario.settle()
      const starts = nodes.reduce((sum, node) => sum + node.starts, 0)
      const { workload, redeliveries } = scenario
      context.diagnostic(
        `${workload.changes} changes, ${redeliveries} redeliveries, ${starts} starts, ${JSON.stringify(edits.kills)} kills in edits`,
      )
    })
  })
}

test('while a process lives that knows no streams, sinks keep topics of their own; when it has gone they get streams under load, and nothing is lost', async (context) => {
  await withSeed(1, 'cluster-generations.kafka.test.ts', async () => {
    const env = {
      KAFKA_BROKERS: (await kafkaBrokers()).join(','),
      KAFKA_TOPIC_PREFIX: `former${process.pid}.`,
      VAULT_KEY: Buffer.alloc(32, 7).toString('base64'),
    }
    const sinks = [
      { name: 'one', ack_wait_ms: 1_000, partitions: 2 },
      { name: 'cut', ack_wait_ms: 1_000, partitions: 2, atTimes: ['archive', 'member'] },
    ]
    await using scenario = await Scenario.create({ seed: 1, env, sinks, nodes: 2, takeOverMs: 7_000 })
    const { nodes, random, state } = scenario
    await using former = await FormerNode.join(state)
    for (const node of nodes) await node.startReady()
    for (const node of nodes) node.forgetConfigFile()
    const topics = async (): Promise<string[]> =>
      (await state.query<{ topic: string }>('select topic from tailrace.log_topic')).map(({ topic }) => topic)
    const isStream = (topic: string) => topic.startsWith('stream.')
    scenario.write()
    scenario.receive()
    await scenario.untilMore(50)
    await scenario.edit(random.pick(nodes))
    const { status, body } = await random.pick(nodes).patch('/api/sinks/one', { partitions: 3 })
    assert.equal(status, 200, JSON.stringify(body))
    await scenario.untilMore(100)
    assert.deepEqual((await topics()).filter(isStream), [])
    await former[Symbol.asyncDispose]()
    await until('the sinks read streams', async () => {
      const open = await state.query<{ topic: string }>('select topic from tailrace.generation where drained_at is null')
      return open.every(({ topic }) => topic !== null && isStream(topic))
    })
    await scenario.untilMore(50)
    await scenario.edit(random.pick(nodes))
    await scenario.untilMore(50)
    await scenario.settle()
    context.diagnostic(`${scenario.workload.changes} changes, ${scenario.redeliveries} redeliveries`)
  })
})

/** A process of a version before streams, as far as others see it: a row that is renewed each second. */
class FormerNode implements AsyncDisposable {
  readonly #end = new AbortController()
  readonly #beating: Promise<void>

  private constructor(beating: (signal: AbortSignal) => Promise<void>) {
    this.#beating = beating(this.#end.signal)
  }

  static async join(state: TestDatabase): Promise<FormerNode> {
    await (await openStore(state.connection, 1, () => undefined))[Symbol.asyncDispose]() // makes the schema
    const beat = () =>
      state.query(
        `insert into tailrace.node (id, name, address, version) values ('0c8a3e1e-51f6-4a39-8d4a-0a5dd1a1f0aa', 'former', 'http://127.0.0.1:1', '0.1.0')
         on conflict (id) do update set seen_at = clock_timestamp()`,
      )
    await beat()
    return new FormerNode(async (signal) => {
      while (!signal.aborted) {
        await pass(1_000, 'as often as a node tells that it lives', signal)
        if (!signal.aborted) await beat()
      }
    })
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#end.abort()
    await this.#beating
  }
}

const SHARES: Readonly<Record<number, string>> = { 2: '0,1,1', 6: '2,2,2' }
