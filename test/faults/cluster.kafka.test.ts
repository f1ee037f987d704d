/**
 * The main promise on Kafka: three processes that share a state database and a broker, each with clients of its own, while
 * processes and broker are killed, frozen and stopped, and sinks are edited. A process that stood still past its leases goes
 * on with what it had in hand: appends, commits, answers to clients. None of it may do harm.
 *
 *   TAILRACE_TEST_SEED=7 node --test test/faults/cluster.kafka.test.ts        one seed again
 *   npm run test:long -- --seeds 5 faults/cluster.kafka
 */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { startKafka } from '../services/kafka.ts'
import { ClusterFaults, schedule, type Fault } from './cluster-faults.ts'
import { Scenario, SINKS, withSeed } from './scenario.ts'
import { LONG, seeds } from './size.ts'

/** of the consumer groups; short, so that a fault takes little time */
const SESSION_MS = 3_000
const COUNTS: Readonly<Partial<Record<Fault, number>>> = LONG
  ? { sourceKilled: 6, ownerKilled: 6, brokerKilled: 4, sourceFrozen: 7, ownerFrozen: 6, terminated: 3 }
  : { sourceKilled: 1, ownerKilled: 1, brokerKilled: 1, sourceFrozen: 1 }
const MANY = Object.values(COUNTS).reduce((sum, count) => sum + count, 0)

for (const seed of seeds(1)) {
  test(`three processes on Kafka lose, reorder and repeat nothing over ${MANY} faults (seed ${seed})`, async (context) => {
    await withSeed(seed, 'cluster.kafka.test.ts', async () => {
      await using broker = await startKafka()
      const env = {
        KAFKA_BROKERS: broker.address,
        KAFKA_SESSION_TIMEOUT_MS: String(SESSION_MS),
        VAULT_KEY: Buffer.alloc(32, 7).toString('base64'),
      }
      const sinks = [...SINKS, { name: 'cut', ack_wait_ms: 1_000, partitions: 2, atTimes: ['archive', 'member'] }]
      await using scenario = await Scenario.create({ seed, env, sinks, nodes: 3, takeOverMs: SESSION_MS + 1_000 })
      const { nodes, random } = scenario
      for (const node of nodes) await node.startReady()
      for (const node of nodes) node.forgetConfigFile() // it says what the sinks were before their edits
      scenario.write()
      scenario.receive()
      const faults = new ClusterFaults(scenario, broker)
      try {
        for (const fault of schedule(random, COUNTS)) {
          await scenario.untilMore(random.int(1, 200))
          await faults.happen(fault)
        }
        await scenario.untilMore(50)
        await scenario.settle()
      } catch (error) {
        context.diagnostic(faults.journal.join('\n'))
        throw error
      }
      const { workload, redeliveries } = scenario
      context.diagnostic(`${workload.changes} changes, ${redeliveries} redeliveries, ${JSON.stringify(faults.happened)}`)
      assert.ok(redeliveries > 0, 'no message was left open: the run has tested nothing')
    })
  })
}
