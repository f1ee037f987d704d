/** What networks do between the service and its source, under load: nothing is lost and reading goes on by itself. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createDatabase } from '../services/postgres.ts'
import { CALM, NetProxy } from './net-proxy.ts'
import { Scenario, withSeed } from './scenario.ts'
import { LONG, seeds } from './size.ts'
import { pass } from '../waiting.ts'

/** by then a connection that says nothing must have been given up and replaced */
const NOTICED_WITHIN_MS = 90_000

for (const seed of seeds(1)) {
  test(`cut, refused, slow and silent connections to Postgres lose nothing (seed ${seed})`, async () => {
    await withSeed(seed, 'network.pg.test.ts', async () => {
      await using source = await createDatabase()
      const { hostname: host, port } = source.connection
      await using proxy = await NetProxy.start({ host, port })
      await using scenario = await Scenario.create({ seed, source, through: { hostname: '127.0.0.1', port: proxy.port }, pace: 200 })
      const { service, random } = scenario
      await service.startReady()
      scenario.write()
      scenario.receive()
      await scenario.untilMore(50)

      for (let times = 0; times < 5; times++) {
        proxy.reset()
        await pass(random.int(10, 600), 'the next fault meets it in the middle of what it does about this one')
      }
      await service.untilReady()
      await scenario.untilMore(50)

      proxy.cut()
      await pass(LONG ? 10_000 : 2_000, 'the fault lasts')
      assert.equal((await service.get('/health')).status, 200, 'alive while its source is out of reach')
      proxy.heal()
      await service.untilReady()
      await scenario.untilMore(50)

      proxy.weather = { delayMs: 200, bytesPerSecond: 200_000 }
      await pass(LONG ? 20_000 : 3_000, 'the fault lasts')
      proxy.weather = CALM
      await scenario.untilMore(50)

      const before = proxy.connections
      proxy.fallSilent()
      await pass(LONG ? 30_000 : 5_000, 'the fault lasts')
      proxy.heal()
      await scenario.untilMore(50)
      await service.untilReady(NOTICED_WITHIN_MS)
      assert.ok(proxy.connections > before, 'it never gave the silent connections up')

      await scenario.settle()
    })
  })
}
