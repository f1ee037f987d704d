/**
 * The process that webhooks are sent to: a bare HTTP server that takes everything. It counts messages by a text that each
 * has once, for parsing would cost more than receiving does.
 */
import { createServer } from 'node:http'
import { receiveTask, Recorder, runReader } from '../reader.ts'

export type ReceiverTask = Readonly<{
  port: number
  changes: number
  /** changes after which it is told that all is warm */ warmUp?: number
}>

/** begins the metadata of a message, and nothing in the workload's rows */
const MARK = Buffer.from('"idempotency_key":')

runReader(async () => {
  const { port, changes, warmUp } = await receiveTask<ReceiverTask>()
  const recorder = new Recorder(changes, warmUp)
  const server = createServer({ keepAliveTimeout: 60_000 }, (request, response) => {
    const chunks: Buffer[] = []
    request.on('data', (chunk: Buffer) => void chunks.push(chunk))
    request.on('end', () => {
      response.end()
      recorder.add(countOf(chunks.length === 1 ? (chunks[0] as Buffer) : Buffer.concat(chunks)))
    })
  })
  server.listen(port, '127.0.0.1')
})

function countOf(body: Buffer): number {
  let count = 0
  for (let at = body.indexOf(MARK); at >= 0; at = body.indexOf(MARK, at + MARK.length)) count++
  return count
}
