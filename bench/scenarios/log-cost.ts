/**
 * What the log alone costs: packs appended one after the other, each durable before the next (in Kafka: acks all), then
 * read from the start, in a process of its own (log-process.ts). It says how much of a drain's CPU a log can be blamed for.
 */
import { fork } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Client } from 'pg'
import type { TestBroker } from '../../test/services/kafka.ts'
import type { LogReply, LogTask, Work } from '../log-process.ts'
import type { Bench } from '../postgres.ts'

export type LogCost = Readonly<{ log: string; messages: number; bodyBytes: number; append: Work; read: Work }>

const STATE = 'state_log'

export async function logCost(
  bench: Bench,
  options: Readonly<{ broker?: TestBroker; packs: number; messagesPerPack: number }>,
): Promise<LogCost> {
  const { broker, packs, messagesPerPack } = options
  await using opened = new AsyncDisposableStack()
  const folder = await mkdtemp(join(tmpdir(), 'tailrace-bench-log-'))
  opened.defer(() => rm(folder, { recursive: true, force: true }))
  const admin = opened.adopt(new Client(bench.database), (client) => client.end())
  await admin.connect()
  await admin.query(`create database ${STATE}`)
  opened.defer(async () => void (await admin.query(`drop database ${STATE} with (force)`)))
  const task: LogTask = { folder, broker: broker?.address, state: { ...bench.database, database: STATE }, packs, messagesPerPack }

  const child = fork(join(import.meta.dirname, '..', 'log-process.ts'), [], {
    serialization: 'advanced',
    stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
  })
  const ended = once(child, 'exit')
  child.send(task)
  const [reply] = (await Promise.race([once(child, 'message'), ended.then(() => [{ failed: 'it ended' }])])) as [LogReply]
  await ended
  if ('failed' in reply) throw new Error(`the log's process: ${reply.failed}`)
  return { log: broker ? 'Kafka' : 'embedded', messages: packs * messagesPerPack, ...reply }
}
