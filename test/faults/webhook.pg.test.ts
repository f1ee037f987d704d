/**
 * What a webhook sink promises while everything around it fails: the service is killed, the receiver refuses, hangs, breaks
 * off, or takes what it gets and can't say so, and the line between them is cut, slow or dead.
 *
 *   TAILRACE_TEST_SEED=7 node --test test/faults/webhook.pg.test.ts        one seed again
 */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { CALM } from './net-proxy.ts'
import { PushScenario, type Whim } from './push-scenario.ts'
import { withSeed } from './scenario.ts'
import { seeds } from './size.ts'

/** A receiver in a bad way: about one request in eight goes wrong, each in its own way. */
function badMood({ random }: PushScenario): Whim {
  const fate = random.weighted({ take: 88, lost: 3, 500: 2, 503: 2, 429: 1, 404: 1, reset: 2, half: 1, hang: 0.3 })
  switch (fate) {
    case 'take':
    case 'lost':
      return fate
    case 'reset':
    case 'half':
    case 'hang':
      return { refuse: fate }
    default:
      return { refuse: { status: Number(fate), body: 'not now' } }
  }
}

for (const seed of seeds(1)) {
  test(`a receiver has every row as it is, whatever it and the service went through (seed ${seed})`, async (context) => {
    await withSeed(seed, 'webhook.pg.test.ts', async () => {
      await using scenario = await PushScenario.create({ seed, pace: 250 })
      const { service, random } = scenario
      await service.startReady()
      scenario.whim = () => badMood(scenario)
      scenario.write()
      for (let kills = 0; kills < 3; kills++) {
        await scenario.untilMore(random.int(1, 150))
        await sleep(random.int(0, 200))
        await service.kill()
        await service.startReady()
      }
      await scenario.untilMore(50)
      scenario.whim = () => 'take'
      await scenario.settle()
      context.diagnostic(`${scenario.workload.changes} changes, ${scenario.duplicates} duplicates, ${service.starts} starts`)
    })
  })
}

test('nothing is lost when the line to the receiver is cut, slow, throttled and dead', async (context) => {
  await using scenario = await PushScenario.create({ seed: 11, pace: 150 })
  const { service, proxy } = scenario
  await service.startReady()
  scenario.write()
  await scenario.untilMore(50)
  proxy.cut()
  await sleep(700)
  proxy.heal()
  await scenario.untilMore(50)
  proxy.weather = { delayMs: 100, bytesPerSecond: Infinity }
  await scenario.untilMore(20)
  proxy.weather = { delayMs: 0, bytesPerSecond: 40_000 }
  await scenario.untilMore(20)
  proxy.weather = CALM
  proxy.fallSilent()
  await sleep(2_500)
  proxy.heal()
  await scenario.untilMore(50)
  await scenario.settle()
  context.diagnostic(`${scenario.workload.changes} changes, ${scenario.duplicates} duplicates`)
})

test('a clean stop ends what is under way: nothing is lost, and nothing sent twice', async (context) => {
  await using scenario = await PushScenario.create({ seed: 12, pace: 400, sink: { ack_wait_ms: 60_000 } }) // what is late would be sent again
  const { service, proxy } = scenario
  proxy.weather = { delayMs: 20, bytesPerSecond: Infinity } // so that something is always under way
  await service.startReady()
  scenario.write()
  for (let stops = 0; stops < 2; stops++) {
    await scenario.untilMore(100)
    await service.stop()
    await service.startReady()
  }
  await scenario.settle()
  context.diagnostic(`${scenario.workload.changes} changes`)
  assert.equal(scenario.duplicates, 0)
})
