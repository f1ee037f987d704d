/**
 * Partitions of a sink that is in use are changed, up and down, by a client of the API: nothing is lost, nothing comes out
 * of order within a row, and what was acked stays away, whatever is killed when.
 */
import assert from 'node:assert/strict'
import { join } from 'node:path'
import { test } from 'node:test'
import { openEmbeddedLog } from '../../engine/log/embedded.ts'
import { createDatabase, createState } from '../services/postgres.ts'
import { Scenario, withSeed } from './scenario.ts'
import { Service, TOKEN } from './service.ts'
import { HttpSinkClient } from './sink-client.ts'
import { seeds } from './size.ts'
import { pass, until } from '../waiting.ts'

const SINKS = [{ name: 'one', ack_wait_ms: 1_000, partitions: 1 }]

for (const seed of seeds(1)) {
  test(`partitions go from 1 to 4 to 2 under load, with SIGKILLs in between (seed ${seed})`, async (context) => {
    await withSeed(seed, 'generations.pg.test.ts', async () => {
      await using scenario = await Scenario.create({ seed, sinks: SINKS })
      const { service, random } = scenario
      await service.startReady()
      service.forgetConfigFile() // it says 1
      scenario.write()
      scenario.receive()
      await scenario.untilMore(random.int(20, 200))
      for (const partitions of [4, 2]) {
        await setPartitions(service, partitions)
        await pass(random.int(0, 1_500), 'the process dies at any moment of the change')
        await service.kill()
        scenario.checkSoFar()
        await service.startReady()
        await scenario.untilMore(random.int(20, 200))
      }
      assert.equal(await untilGeneration(service, 3), 2, 'partitions of the generation that is delivered')
      await scenario.settle()
      context.diagnostic(`${scenario.workload.changes} changes, ${scenario.redeliveries} redeliveries, ${service.starts} starts`)
    })
  })
}

test('changes that come faster than the sink can follow are taken one after the other, and one of the file after them', async () => {
  await withSeed(21, 'generations.pg.test.ts', async () => {
    await using scenario = await Scenario.create({ seed: 21, sinks: SINKS.map((sink) => ({ ...sink, replay_window: 0 })) })
    const { service } = scenario
    await service.startReady()
    scenario.write()
    scenario.receive()
    for (const partitions of [3, 1, 5, 2]) {
      await setPartitions(service, partitions)
      await scenario.untilMore(5)
    }
    assert.equal(await untilGeneration(service, 5), 2)
    await scenario.untilMore(50)
    await scenario.settle() // starts again with the file, which says 1
    assert.equal(await untilGeneration(service, 6), 1)
    await untilLogged(service, 'a topic that nobody reads any more is deleted', 5)
    await service.stop()
    await using log = await openEmbeddedLog(join(service.dataFolder, 'log'))
    const topics = (await log.topics()).map(({ topic, partitions }) => `${topic.split('.')[1]}: ${partitions}`)
    assert.deepEqual(topics, ['6: 1'])
  })
})

test('when the primary key of a table changes, a row whose message is held keeps its order: what follows waits', async () => {
  await using source = await createDatabase('create table item (id int primary key, tenant int, name text)')
  await using state = await createState()
  await using service = await Service.prepare({
    ...{ source: source.connection, stateUrl: state.url },
    sinks: [{ name: 'one', tables: ['public.item'], partitions: 4, ack_wait_ms: 120_000 }], // far longer than it is held
  })
  await using client = new HttpSinkClient({ origin: service.origin, sink: 'one', token: TOKEN })
  await service.startReady()
  await source.query(`insert into item values (1, 7, 'first')`)
  const [held] = await client.receive({ batchSize: 10, waitMs: 30_000 })
  await source.query('alter table item drop constraint item_pkey, add primary key (tenant, id)')
  await source.query(`update item set name = 'second' where id = 1`)
  assert.deepEqual(await client.receive({ batchSize: 10, waitMs: 1_000 }), [])
  await client.ack([held?.ackId as string])
  const [next] = await client.receive({ batchSize: 10, waitMs: 30_000 })
  assert.equal(next?.record['name'], 'second')
  await untilGeneration(service, 2)
})

async function setPartitions(service: Service, partitions: number): Promise<void> {
  const { status, body } = await service.patch('/api/sinks/one', { partitions })
  assert.equal(status, 200, JSON.stringify(body))
}

async function untilLogged(service: Service, text: string, times: number): Promise<void> {
  await until(`"${text}" is logged ${times} times`, () => service.log().split(text).length > times, { service })
}

type Actor = Readonly<{ kind: string; state: string; details: { generation?: number; partitions?: number } }>

/** @returns how many partitions it has. @throws Error it isn't delivered within a minute */
async function untilGeneration(service: Service, generation: number): Promise<number> {
  let last: unknown
  const { details } = await until(
    () => `generation ${generation} is delivered: ${JSON.stringify(last)}`,
    async () => {
      const { body } = await service.get('/info')
      last = body
      const sink = (body as { nodes: { actors: Actor[] }[] }).nodes.flatMap(({ actors }) => actors).find(({ kind }) => kind === 'sink')
      return sink?.details.generation === generation && sink.state === 'active' && sink
    },
    { service },
  )
  return details.partitions ?? 0
}
