/** A backfilled index holds its table, as other sinks do (backfills.pg.test.ts). */
import { test } from 'node:test'
import { elasticsearch } from '../services/elasticsearch.ts'
import { SearchIndex } from '../services/elasticsearch-client.ts'
import { LOGIN } from '../sinks/elasticsearch-bench.ts'
import { BackfillScenario, kafkaLog, type Held } from './backfill-scenario.ts'
import type { Row } from './json.ts'
import { withSeed } from './scenario.ts'
import { LONG, seeds } from './size.ts'

async function indexSink(resources: AsyncDisposableStack): Promise<Held> {
  const url = await elasticsearch()
  const index = resources.use(await SearchIndex.create({ mappings: { dynamic: false } }, url))
  const { name } = index
  const destination = {
    ...{
      type: 'elasticsearch',
      endpoint_url: `http://127.0.0.1:${new URL(url).port}`,
      index_name: name,
      batch_size: 1_000,
      auth_type: 'basic',
      auth_value: LOGIN,
    },
  }
  let reads = 0
  const rows = async () => {
    const documents = await index.documents()
    reads = documents.length
    return new Map(documents.map(({ id, source: { record } }) => [id, record as Row]))
  }
  return { name, options: { name, partitions: 2, destination }, rows, violations: [], reads: () => reads }
}

for (const [log, seed] of (LONG ? ['disk', 'Kafka'] : ['disk']).flatMap((each) =>
  seeds(1)
    .slice(0, 2)
    .map((one) => [each, one] as const),
))
  test(`with the log ${log === 'disk' ? 'on disk' : 'in Kafka'} a backfilled index holds its table, wherever the service was killed (seed ${seed})`, async (context) => {
    await withSeed(seed, 'backfills.search.test.ts', async () => {
      const env = log === 'disk' ? {} : await kafkaLog()
      await using scenario = await BackfillScenario.create(seed, async (resources) => [await indexSink(resources)], env)
      context.diagnostic(await scenario.run())
    })
  })
