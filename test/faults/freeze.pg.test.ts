/** A process that stands still (a paused container, a swapping machine) and goes on has missed its leases. */
import { test } from 'node:test'
import { Scenario, withSeed } from './scenario.ts'
import { seeds } from './size.ts'
import { pass } from '../waiting.ts'

/** longer than Postgres keeps the session of a silent owner (3 s) */
const FROZEN_MS = 5_000

for (const seed of seeds(1)) {
  test(`a service frozen for 5 s under load loses nothing and hands nothing out twice when it thaws (seed ${seed})`, async () => {
    await withSeed(seed, 'freeze.pg.test.ts', async () => {
      await using scenario = await Scenario.create({ seed })
      const { service } = scenario
      await service.startReady()
      scenario.write()
      scenario.receive()
      for (let times = 0; times < 2; times++) {
        await scenario.untilMore(100)
        service.freeze()
        await pass(FROZEN_MS, 'the fault lasts')
        service.thaw()
        await scenario.untilMore(100)
      }
      await service.untilReady()
      await scenario.settle()
    })
  })
}
