/**
 * `npm run bench:elasticsearch`: how near an Elasticsearch sink comes to a tight loop that posts the same bodies to the same
 * server. Makes a Postgres and an Elasticsearch of its own (Java 17; Maven for the first time).
 */
import { parseArgs } from 'node:util'
import { startElasticsearch } from '../test/services/elasticsearch.ts'
import { startBench } from './postgres.ts'
import { environment, environmentLines } from './report.ts'
import { searchSink, type SearchPair, type SearchRun } from './scenarios/search-sink.ts'
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
const pairs = await searchSink(bench, { url: server.url, pid: await server.pid() }, options, ({ sink, loop }, number) =>
  say(`${number}/${options.pairs}  sink ${told(sink)}  loop ${told(loop)}`),
)
const of = (figure: (pair: SearchPair) => number, digits: number) => {
  const { median, lowest, highest } = spread(pairs.map(figure))
  return `${median.toFixed(digits)} (${lowest.toFixed(digits)}–${highest.toFixed(digits)})`
}
const cpuOf = ({ serverCpu, senderCpu }: SearchRun) => serverCpu + senderCpu
say(
  [
    `Elasticsearch sink: ${of(({ sink }) => sink.documentsPerSecond, 0)} documents/s, ratio to the tight loop ${of(({ sink, loop }) => sink.documentsPerSecond / loop.documentsPerSecond, 2)}`,
    `the same by CPU: ${of(({ sink, loop }) => cpuOf(loop) / cpuOf(sink), 2)}`,
    `µs of CPU a document: server ${of(({ sink }) => sink.serverCpu, 1)}, service and who asks ${of(({ sink }) => sink.senderCpu, 1)}; with the loop ` +
      `server ${of(({ loop }) => loop.serverCpu, 1)}, loop and who asks ${of(({ loop }) => loop.senderCpu, 1)}`,
  ].join('\n'),
)

function told({ documentsPerSecond, serverCpu, compilerCpu, senderCpu }: SearchRun): string {
  return `${Math.round(documentsPerSecond)}/s (${serverCpu.toFixed(1)}, ${compilerCpu.toFixed(1)} of it compiling, + ${senderCpu.toFixed(1)} µs)`
}
