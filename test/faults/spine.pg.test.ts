/**
 * The main promise, from the user's side: whatever is committed while the service is killed with SIGKILL again and again
 * comes exactly as it was, in order, and what was acked never comes again.
 *
 *   TAILRACE_TEST_SEED=7 node --test test/faults/spine.pg.test.ts        one seed again
 *   TAILRACE_TEST_LONG=1 TAILRACE_TEST_SEEDS=20 node --test test/faults/spine.pg.test.ts
 */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Scenario, withSeed } from './scenario.ts'
import { seeds } from './size.ts'
import { pass } from '../waiting.ts'

const KILLS = 10

for (const seed of seeds(1)) {
  test(`nothing is lost, reordered or acked in vain over ${KILLS} SIGKILLs (seed ${seed})`, async (context) => {
    await withSeed(seed, 'spine.pg.test.ts', async () => {
      await using scenario = await Scenario.create({ seed })
      const { service, random } = scenario
      await service.startReady() // makes slot and publication: from here on every commit counts
      scenario.write()
      scenario.receive()
      for (let kills = 0; kills < KILLS; kills++) {
        await reachKillPoint(scenario)
        await service.kill()
        scenario.checkSoFar()
        if (random.chance(0.2)) await pass(random.int(50, 500), 'changes gather')
        service.start()
      }
      await service.untilReady()
      await scenario.untilMore(50)
      await scenario.settle()
      context.diagnostic(`${scenario.workload.changes} changes, ${scenario.redeliveries} redeliveries, ${service.starts} starts`)
      assert.ok(scenario.redeliveries > 0, 'no message was left open: the run has tested nothing')
    })
  })
}

/** A moment to die at: anywhere in a start, right after an answered ack, or anywhere while streaming. */
async function reachKillPoint(scenario: Scenario): Promise<void> {
  const { service, random } = scenario
  switch (random.weighted({ starting: 3, acked: 3, streaming: 4 })) {
    case 'starting':
      return pass(random.int(10, 1_200), 'anywhere in a start')
    case 'acked':
      await service.untilReady()
      return scenario.untilMore(random.int(1, 200))
    case 'streaming':
      await service.untilReady()
      return pass(random.int(1, 900), 'anywhere in the stream')
  }
}
