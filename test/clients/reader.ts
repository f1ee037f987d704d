/**
 * A program that reads a sink by the client, for tests that stop and kill it: prints a line for each message that it has worked on, and
 * ends by SIGTERM.
 */
import { consume } from '../../clients/typescript/consume.ts'
import { pass } from '../waiting.ts'

const { URL: url, TOKEN: token = '', SINK: sink = '', CONCURRENCY = '1', WORK_MS = '0' } = process.env
const stop = new AbortController()
process.once('SIGTERM', () => stop.abort())
await consume<{ id: number; v: number }>({ url, token, sink, concurrency: Number(CONCURRENCY), signal: stop.signal }, async (message) => {
  if (WORK_MS !== '0') await pass(Math.random() * Number(WORK_MS), 'it works on the message')
  process.stdout.write(`${message.record.id} ${message.record.v}\n`)
})
