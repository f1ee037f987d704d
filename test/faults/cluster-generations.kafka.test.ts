/**
 * Partitions of a sink that three processes share are changed under load: to fewer than there are processes, so that one is
 * left without any, and to more again. Each process has clients of its own, and whoever has no partition of a generation has
 * to follow the others to the next one.
 */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { kafkaBrokers } from '../services/kafka.ts'
import { holdings, until } from './cluster-faults.ts'
import { Scenario, withSeed } from './scenario.ts'
import { seeds } from './size.ts'

const NODES = 3

for (const seed of seeds(1)) {
  test(`three processes take the partitions of a sink from 4 to 2 to 6 under load (seed ${seed})`, async (context) => {
    await withSeed(seed, 'cluster-generations.kafka.test.ts', async () => {
      const env = {
        KAFKA_BROKERS: (await kafkaBrokers()).join(','),
        KAFKA_TOPIC_PREFIX: `generations${process.pid}.${seed}.`,
        VAULT_KEY: Buffer.alloc(32, 7).toString('base64'),
      }
      const sinks = [{ name: 'one', ack_wait_ms: 1_000, partitions: 4 }]
      await using scenario = await Scenario.create({ seed, env, sinks, nodes: NODES, takeOverMs: 7_000 })
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
          const held = (await holdings(nodes)).map((one) => one.partitions).sort()
          return held.length === NODES && held.join() === SHARES[partitions]
        })
      }
      await scenario.untilMore(50)
      await scenario.settle()
      context.diagnostic(`${scenario.workload.changes} changes, ${scenario.redeliveries} redeliveries`)
    })
  })
}

const SHARES: Readonly<Record<number, string>> = { 2: '0,1,1', 6: '2,2,2' }
