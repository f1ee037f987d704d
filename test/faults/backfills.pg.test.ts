/**
 * A backfill always converges: whatever is written beside it, and wherever the service is killed, each sink holds the table in the end, and
 * no row comes behind a newer one of itself.
 *
 *   TAILRACE_TEST_SEED=7 node --test test/faults/backfills.pg.test.ts        one seed again
 */
import { test } from 'node:test'
import { BackfillScenario, meilisearchSink, pullSink, webhookSink } from './backfill-scenario.ts'
import { Random } from './random.ts'
import { withSeed } from './scenario.ts'
import { seeds } from './size.ts'

for (const seed of seeds(1).slice(0, 3))
  test(`four sinks that are backfilled at once hold the table, wherever the service was killed (seed ${seed})`, async (context) => {
    await withSeed(seed, 'backfills.pg.test.ts', async () => {
      await using scenario = await BackfillScenario.create(seed, async (resources) => [
        pullSink('one', 1),
        pullSink('four', 4),
        await webhookSink('hooks', new Random(seed), resources),
        await meilisearchSink('items', resources),
      ])
      context.diagnostic(await scenario.run())
    })
  })
