/**
 * The main promise with the log in Kafka: whatever is committed while the service and the broker are killed with SIGKILL
 * again and again comes exactly as it was, in order, and what was acked never comes again.
 */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { startKafka } from '../services/kafka.ts'
import { Scenario, withSeed } from './scenario.ts'
import { seeds } from './size.ts'
import { pass } from '../waiting.ts'

const KILLS = 4
const SESSION_MS = 1_500

for (const seed of seeds(1)) {
  test(`with the log in Kafka nothing is lost, reordered or acked in vain over ${KILLS} SIGKILLs (seed ${seed})`, async (context) => {
    await withSeed(seed, 'spine.kafka.test.ts', async () => {
      await using broker = await startKafka()
      const vaultKey = Buffer.alloc(32, 7).toString('base64')
      const env = { KAFKA_BROKERS: broker.address, KAFKA_SESSION_TIMEOUT_MS: String(SESSION_MS), VAULT_KEY: vaultKey }
      await using scenario = await Scenario.create({ seed, env, takeOverMs: SESSION_MS + 1_000 })
      const { service, random } = scenario
      await service.startReady()
      scenario.write()
      scenario.receive()
      for (let kills = 0; kills < KILLS; kills++) {
        await service.untilReady()
        await scenario.untilMore(random.int(1, 200))
        if (kills % 3 === 1) {
          await broker.kill()
          if (random.chance(0.5)) await pass(random.int(50, 1_000), 'it is away for a while')
          await broker.start()
        } else {
          await service.kill()
          service.start()
        }
        scenario.checkSoFar()
      }
      await service.untilReady()
      await scenario.untilMore(50)
      await scenario.settle()
      context.diagnostic(`${scenario.workload.changes} changes, ${scenario.redeliveries} redeliveries, ${service.starts} starts`)
      assert.ok(scenario.redeliveries > 0, 'no message was left open: the run has tested nothing')
    })
  })
}
