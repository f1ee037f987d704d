/**
 * What a webhook sink promises while everything around it fails: the service is killed or stopped, the receiver refuses, hangs, breaks
 * off, goes away, or takes what it gets and can't say so, and the line between them is cut, slow or dead. At the end every row is as
 * it should be, and nothing is left under way.
 *
 *   TAILRACE_TEST_SEED=7 node --test test/faults/webhook.pg.test.ts        one seed again
 */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { CALM, type NetProxy } from './net-proxy.ts'
import { PushScenario, type Whim } from './push-scenario.ts'
import { withSeed } from './scenario.ts'
import { seeds } from './size.ts'
import { pass } from '../waiting.ts'

/** A receiver in a bad way: about one request in seven goes wrong, each in its own way; and of single messages, if it judges them, one in twenty. */
function badMood({ random }: PushScenario, count: number, judgesEach: boolean): Whim {
  const fate = random.weighted({ take: 86, lost: 3, 500: 5, 503: 1, 429: 1, 404: 1, reset: 3, half: 1, hang: 0.3 })
  switch (fate) {
    case 'take':
      return judgesEach ? { refuseItems: Array.from({ length: count }, (_, i) => i).filter(() => random.int(1, 20) === 1) } : 'take'
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

/** Nobody is there for a while. */
async function goesAway(proxy: NetProxy, forMs: number): Promise<void> {
  proxy.cut()
  await pass(forMs, 'the fault lasts')
  proxy.heal()
}

for (const [judgesEach, seed] of [false, true].flatMap((each) => seeds(1).map((one) => [each, one] as const))) {
  const kind = judgesEach ? 'of each message' : 'of each request'
  test(`a receiver that answers ${kind} has every row as it is, whatever it and the service went through (seed ${seed})`, async (context) => {
    await withSeed(seed, 'webhook.pg.test.ts', async () => {
      const destination = { type: 'webhook', http_endpoint: 'hooks', item_results: judgesEach }
      await using scenario = await PushScenario.create({ seed, pace: 250, sink: { destination } })
      const { service, random, proxy } = scenario
      await service.startReady()
      scenario.whim = ({ length }) => badMood(scenario, length, judgesEach)
      scenario.write()
      for (let ends = 0; ends < 4; ends++) {
        await scenario.untilMore(random.int(1, 150))
        const away = goesAway(proxy, random.int(0, 1_000))
        await pass(random.int(0, 1_500), 'the service ends at any moment of it')
        await (random.int(0, 1) === 0 ? service.kill() : service.stop())
        await service.startReady()
        await away
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
  await pass(700, 'the fault lasts')
  proxy.heal()
  await scenario.untilMore(50)
  proxy.weather = { delayMs: 100, bytesPerSecond: Infinity }
  await scenario.untilMore(20)
  proxy.weather = { delayMs: 0, bytesPerSecond: 40_000 }
  await scenario.untilMore(20)
  proxy.weather = CALM
  proxy.fallSilent()
  await pass(2_500, 'the fault lasts')
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
