/**
 * Several sinks read one stream: a busy one, one of some actions, a slow one, one that is paused all the time, one that sends.
 * One more is edited in every way while the service is killed and stopped. The others neither lose, repeat, reorder nor stall;
 * the edited one gets what its marks say.
 */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { HttpReceiver, type Received } from '../services/http-receiver.ts'
import { parseExact } from './json.ts'
import { groupOf } from './journal.ts'
import { comparePlaces, type Message } from './oracle.ts'
import { MEANWHILE, ReaderEdits } from './reader-edits.ts'
import { Scenario, withSeed, type ScenarioSink } from './scenario.ts'
import { messageOf, type Wire } from './sink-client.ts'
import { LONG, seeds } from './size.ts'
import { judge } from './verdict.ts'
import { CAPTURED, TABLES } from './workload-tables.ts'
import { until } from '../waiting.ts'

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
      const edits = new ReaderEdits(scenario, EDITED)
      for (let rounds = LONG ? 3 : 1; rounds > 0; rounds--)
        for (const edit of random.shuffled(Object.values(edits.kinds))) {
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
