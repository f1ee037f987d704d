/**
 * `npm run bench:elasticsearch`: how near an Elasticsearch sink comes to a tight loop that posts the same bodies to the same
 * server. Makes a Postgres and an Elasticsearch of its own (Java 17; Maven for the first time).
 */
import { parseArgs } from 'node:util'
import { startElasticsearch } from '../test/services/elasticsearch.ts'
import { startBench } from './postgres.ts'
import { environment, environmentLines } from './report.ts'
import { searchSink } from './scenarios/search-sink.ts'
import { spread } from './statistics.ts'

/** What a small server has. */
const JVM = ['-Xms1g', '-Xmx1g', '-XX:+UseG1GC']
const SERVER_SETTINGS = { 'http.max_content_length': '100mb', 'indexing_pressure.memory.limit': '10%' }

const { values } = parseArgs({
  options: {
    changes: { type: 'string', default: '100000' },
    pairs: { type: 'string', default: '5' },
    batch: { type: 'string', default: '1000' },
    concurrency: { type: 'string', default: '4' },
  },
})
const say = (text: string): void => void process.stdout.write(`${text}\n`)

await using bench = await startBench()
await using server = await startElasticsearch({ jvm: JVM, settings: SERVER_SETTINGS })
say(environmentLines(environment('PostgreSQL and Elasticsearch 8.19')))
const options = {
  changes: Number(values.changes),
  pairs: Number(values.pairs),
  batchSize: Number(values.batch),
  concurrency: Number(values.concurrency),
}
const pairs = await searchSink(bench, server.url, options, ({ sink, loop }, number) =>
  say(`${number}/${options.pairs}  sink ${Math.round(sink.documentsPerSecond)}/s  loop ${Math.round(loop.documentsPerSecond)}/s`),
)
const rate = spread(pairs.map(({ sink }) => sink.documentsPerSecond))
const ratio = spread(pairs.map(({ sink, loop }) => sink.documentsPerSecond / loop.documentsPerSecond))
const cpu = spread(pairs.map(({ sink }) => (sink.serviceCpuSeconds * 1e6) / options.changes))
say(
  `Elasticsearch sink: ${Math.round(rate.median)} documents/s (${Math.round(rate.lowest)}–${Math.round(rate.highest)}), ` +
    `ratio to the tight loop ${ratio.median.toFixed(2)} (${ratio.lowest.toFixed(2)}–${ratio.highest.toFixed(2)}), ` +
    `${cpu.median.toFixed(1)} µs of the service's CPU a document`,
)
