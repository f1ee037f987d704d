/**
 * The main promise on Kafka: three processes that share a state database and a broker, each with clients of its own, while
 * one after the other is killed with SIGKILL, whichever holds the source among them.
 *
 *   TAILRACE_TEST_SEED=7 node --test test/faults/cluster.kafka.test.ts        one seed again
 */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { kafkaBrokers } from '../services/kafka.ts'
import { Scenario, withSeed } from './scenario.ts'
import { LONG, seeds } from './size.ts'

/** session time of the consumer groups, and a second for the rest */
const TAKE_OVER_MS = 7_000
const KILLS = LONG ? 30 : 5

for (const seed of seeds(1)) {
  test(`three processes on Kafka lose, reorder and repeat nothing over ${KILLS} SIGKILLs (seed ${seed})`, async (context) => {
    await withSeed(seed, 'cluster.kafka.test.ts', async () => {
      const env = {
        KAFKA_BROKERS: (await kafkaBrokers()).join(','),
        KAFKA_TOPIC_PREFIX: `t${process.pid}.${seed}.`,
        VAULT_KEY: Buffer.alloc(32, 7).toString('base64'),
      }
      await using scenario = await Scenario.create({ seed, env, nodes: 3, takeOverMs: TAKE_OVER_MS })
      const { nodes, random } = scenario
      for (const node of nodes) await node.startReady()
      scenario.write()
      scenario.receive()
      for (let kills = 0; kills < KILLS; kills++) {
        await scenario.untilMore(random.int(1, 300))
        const node = random.pick(nodes)
        await node.kill()
        scenario.checkSoFar()
        if (random.chance(0.5)) await scenario.untilMore(50) // the others go on without it
        await node.startReady()
      }
      await scenario.untilMore(50)
      await scenario.settle()
      context.diagnostic(`${scenario.workload.changes} changes, ${scenario.redeliveries} redeliveries`)
      assert.ok(scenario.redeliveries > 0, 'no message was left open: the run has tested nothing')
    })
  })
}
