/** Backfills converge with the log in Kafka as they do with the embedded one (backfills.pg.test.ts). */
import { test } from 'node:test'
import { BackfillScenario, kafkaLog, meilisearchSink, pullSink, webhookSink } from './backfill-scenario.ts'
import { Random } from './random.ts'
import { withSeed } from './scenario.ts'
import { LONG, seeds } from './size.ts'

for (const seed of seeds(1).slice(0, 2))
  test(`with the log in Kafka backfilled sinks hold the table, wherever the service was killed (seed ${seed})`, async (context) => {
    await withSeed(seed, 'backfills.kafka.test.ts', async () => {
      const open = async (resources: AsyncDisposableStack) => [
        pullSink('four', 4),
        await webhookSink('hooks', new Random(seed), resources),
        ...(LONG ? [pullSink('one', 1), await meilisearchSink('items', resources)] : []),
      ]
      await using scenario = await BackfillScenario.create(seed, open, await kafkaLog())
      context.diagnostic(await scenario.run())
    })
  })
