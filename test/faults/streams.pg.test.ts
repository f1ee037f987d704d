/**
 * Several sinks read one stream: a busy one, one of some actions, a slow one, one that is paused all the time, one that sends.
 * One more is edited in every way while the service is killed and stopped. The others neither lose, repeat, reorder nor stall;
 * the edited one gets what its marks say.
 */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { HttpReceiver, type Received } from '../services/http-receiver.ts'
import { until } from './cluster-faults.ts'
import { parseExact } from './json.ts'
import { groupOf } from './journal.ts'
import { comparePlaces, type Message } from './oracle.ts'
import { Scenario, withSeed, type ScenarioSink } from './scenario.ts'
import { messageOf, type Wire } from './sink-client.ts'
import { LONG, seeds } from './size.ts'
import { judge } from './verdict.ts'
import { CAPTURED, TABLES } from './workload-tables.ts'

const SHAPE = { tables: CAPTURED, partitions: 4, ack_wait_ms: 1_000 }
const EDITED: ScenarioSink = {
  ...{ ...SHAPE, name: 'edited' },
  atTimes: TABLES.filter(({ captured }) => captured).map(({ name }) => name),
}
const SINKS: readonly ScenarioSink[] = [
  { ...SHAPE, name: 'busy' },
  { ...SHAPE, name: 'few', actions: ['insert', 'delete'] },
  { ...SHAPE, name: 'slow', lags: true },
  { ...SHAPE, name: 'paused', lags: true, status: 'paused' },
  EDITED,
]
/** what the others take between one edit and the next */
const MEANWHILE = 10
const WITHIN_MS = 60_000
const RETRY_AFTER_MS = 50
/** about twice as long as an edit takes */
const CUT_OFF_WITHIN_MS = 60

/** A server that takes what a sink sends: each message may come again, but of a row none comes after a later one for the first time. */
class Hooks {
  readonly messages = new Map<string, Message>()
  readonly violations: string[] = []
  readonly #last = new Map<string, Message>()

  take(request: Received): void {
    for (const message of (parseExact(request.body.toString()) as { data: Wire[] }).data.map((wire) => messageOf(wire))) {
      if (this.messages.has(message.idempotencyKey)) continue
      const row = groupOf(message.table, message.key)
      const last = this.#last.get(row)
      if (last && comparePlaces(message, last) < 0) this.violations.push(`${row} at ${message.lsn} came after ${last.lsn}`)
      this.#last.set(row, message)
      this.messages.set(message.idempotencyKey, message)
    }
  }
}

class Edits {
  /** in the midst of an edit, by whether its answer had come */
  readonly kills = { answered: 0, unanswered: 0 }
  readonly #scenario: Scenario

  constructor(scenario: Scenario) {
    this.#scenario = scenario
  }

  /** One kind of edit after the other: what is done is undone, so that the sink comes back to the stream of the others. */
  all(): readonly (() => Promise<void>)[] {
    const some = CAPTURED.slice(0, 2)
    const grouped = [{ name: 'public.item', group_column_names: ['tenant'] }]
    return [
      () => this.#thereAndBack({ status: 'paused' }, { status: 'active' }),
      () => this.#thereAndBack({ partitions: 1 }, { partitions: 4 }),
      () => this.#thereAndBack({ tables: grouped }, { tables: [] }),
      () => this.#thereAndBack({ key_changes: 'delete_insert' }, { key_changes: 'update' }),
      () => this.#cutAndBack({ status: 'disabled' }, [], { status: 'active' }),
      () => this.#cutAndBack({ source: { include_tables: some } }, some, { source: { include_tables: CAPTURED } }),
      () => this.#replay(),
      () => this.#again(),
    ]
  }

  async #thereAndBack(there: object, back: object): Promise<void> {
    await this.#patch(there)
    await this.#meanwhile()
    await this.#patch(back)
  }

  async #cutAndBack(there: object, tables: readonly string[], back: object): Promise<void> {
    await this.#scenario.cut('edited', tables, () => this.#patch(there))
    await this.#meanwhile()
    await this.#scenario.cut('edited', CAPTURED, () => this.#patch(back))
  }

  async #replay(): Promise<void> {
    const { service, random } = this.#scenario
    await this.#scenario.resting('edited', async () => {
      const oracle = this.#scenario.oracle('edited')
      const newest = oracle.messages.toSorted(comparePlaces).slice(-200)
      if (newest.length === 0) return
      const { lsn } = random.pick(newest)
      const replay = () => service.post('/api/sinks/edited/replay', { lsn: String(lsn) })
      await this.#cutOff(replay)
      const status = await this.#untilAnswered(replay)
      assert.equal(status, 200)
      oracle.setBack(lsn)
    })
  }

  async #again(): Promise<void> {
    const { service } = this.#scenario
    const { ack_wait_ms, name, partitions } = EDITED
    const sink = { name, ack_wait_ms, partitions, database: 'source', source: { include_tables: CAPTURED } }
    await this.#scenario.resting(name, async () => {
      assert.equal(await this.#untilAnswered(() => service.delete('/api/sinks/edited')), 200)
      await this.#meanwhile()
      this.#scenario.begunAnew(EDITED)
      await this.#scenario.cut(name, CAPTURED, async () => {
        const status = await this.#untilAnswered(() => service.post('/api/sinks', { ...sink, destination: { type: 'sequin_stream' } }))
        assert.equal(status, 200)
      })
    })
  }

  async #patch(changes: object): Promise<void> {
    const { service } = this.#scenario
    const patch = () => service.patch('/api/sinks/edited', changes)
    await this.#cutOff(patch)
    assert.equal(await this.#untilAnswered(patch), 200)
  }

  /** The service may die anywhere between the request and some time after its answer. */
  async #cutOff(ask: () => Promise<unknown>): Promise<void> {
    const { service, random } = this.#scenario
    if (random.weighted({ kill: 1, none: 3 }) === 'none') return
    const asked = ask().then(
      () => this.kills.answered++,
      () => this.kills.unanswered++,
    )
    await sleep(random.int(0, CUT_OFF_WITHIN_MS))
    await service.kill()
    await asked
    this.#scenario.checkSoFar()
    await service.startReady()
  }

  /** @returns the status, when it is no longer to try again */
  async #untilAnswered(ask: () => Promise<{ status: number; body: unknown }>): Promise<number> {
    const deadline = performance.now() + WITHIN_MS
    for (;;) {
      const { status, body } = await ask()
      if (status === 200) return status
      if ((status !== 503 && status !== 409) || performance.now() > deadline) assert.fail(`${status} ${JSON.stringify(body)}`)
      await sleep(RETRY_AFTER_MS)
    }
  }

  /** The service may die, or be stopped, and the others go on. */
  async #meanwhile(): Promise<void> {
    const { service, random } = this.#scenario
    const fault = random.weighted({ kill: 1, stop: 1, none: 3 })
    if (fault !== 'none') {
      await sleep(random.int(0, 300))
      if (fault === 'kill') await service.kill()
      else await service.stop()
      this.#scenario.checkSoFar()
      await service.startReady()
    }
    await this.#scenario.untilMore(MEANWHILE)
  }
}

for (const seed of seeds(1)) {
  test(`what happens to one reader of a stream does not concern the others (seed ${seed})`, async (context) => {
    await withSeed(seed, 'streams.pg.test.ts', async () => {
      const hooks = new Hooks()
      await using receiver = await HttpReceiver.start((request) => {
        hooks.take(request)
        return {}
      })
      await using scenario = await Scenario.create({
        ...{ seed, sinks: SINKS, clients: 2, ...(LONG ? {} : { pace: 60, batch: [5, 30] }) },
        others: [{ ...SHAPE, name: 'hooks', batch_size: 20, destination: { type: 'webhook', http_endpoint: 'hooks' } }],
        endpoints: [{ name: 'hooks', url: `http://127.0.0.1:${receiver.port}/in` }],
      })
      const { service, random, state, workload } = scenario
      await service.startReady()
      service.forgetConfigFile()
      scenario.write()
      scenario.receive()
      await scenario.untilMore(MEANWHILE)
      const edits = new Edits(scenario)
      for (let rounds = LONG ? 3 : 1; rounds > 0; rounds--)
        for (const edit of random.shuffled(edits.all())) {
          await edit()
          await scenario.untilMore(MEANWHILE)
        }
      await scenario.stopWriting()
      assert.equal((await service.patch('/api/sinks/paused', { status: 'active' })).status, 200)
      await until('all is sent', async () => hooks.messages.size >= workload.changes)
      await scenario.settle()
      assert.deepEqual(hooks.violations, [])
      assert.deepEqual(judge([...hooks.messages.values()], workload.committed, await workload.tables()), [])
      const streams = await state.query(
        `select s from tailrace.routing_version v, jsonb_array_elements(v.streams) s where v.version = (select max(version) from tailrace.routing_version)`,
      )
      assert.equal(streams.length, 1, 'all of them read one stream in the end')
      context.diagnostic(
        `${workload.changes} changes, ${scenario.redeliveries} redeliveries, ${service.starts} starts, ${JSON.stringify(edits.kills)} kills in edits`,
      )
    })
  })
}
