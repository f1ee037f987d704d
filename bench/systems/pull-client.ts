/**
 * The process of tailrace.ts: a client as a user would write one. Each of its connections receives up to 1,000 messages,
 * waiting for them, parses the answer, and acknowledges all of it before it receives again.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { Client } from 'undici'
import { receiveTask, Recorder, runReader } from '../reader.ts'
import { wallClock } from '../system.ts'
import { untilUp } from '../until-up.ts'

export type PullTask = Readonly<{
  /** of the processes that serve the sink; the connections go to each in turn */
  origins: readonly string[]
  path: string
  token: string
  connections: number
  batchSize: number
  waitForMs: number
  changes: number
  recordDelays: boolean
}>

const AGAIN_AFTER_MS = 20

type Message = Readonly<{ ack_id: string; action: string; record: Readonly<{ written_at: string }> }>

runReader(async () => {
  const task = await receiveTask<PullTask>()
  const recorder = new Recorder(task.changes)
  await Promise.all(
    Array.from({ length: task.connections }, (_, i) => pull(task, task.origins[i % task.origins.length] as string, recorder)),
  )
})

async function pull(task: PullTask, origin: string, recorder: Recorder): Promise<void> {
  const client = new Client(origin, { headersTimeout: 0, bodyTimeout: 0 })
  const headers = { authorization: `Bearer ${task.token}`, 'content-type': 'application/json' }
  const receive = JSON.stringify({ batch_size: task.batchSize, wait_for: task.waitForMs, ack_token: true })
  const post = async (call: string, body: string): Promise<{ status: number; text: string }> => {
    const answer = await client.request({ path: `${task.path}/${call}`, method: 'POST', headers, body })
    return { status: answer.statusCode, text: await answer.body.text() }
  }
  /** Again after 503, as any client has to: partitions move. */
  const insist = async (call: string, body: string): Promise<string> => {
    for (;;) {
      const { status, text } = await post(call, body)
      if (status === 200) return text
      if (status !== 503) throw new Error(`${call} answered ${status}: ${text.slice(0, 300)}`)
      await sleep(AGAIN_AFTER_MS)
    }
  }
  // an ack of an unknown id is ignored, and so tells whether the sink is there without taking a message
  await untilUp(async () => (await post('ack', '{"ack_ids": ["none"]}')).status)
  while (!recorder.isReached) {
    const text = await insist('receive', receive)
    const readAt = wallClock()
    const { data, ack_token: token } = JSON.parse(text) as { data: Message[]; ack_token?: string }
    if (data.length === 0) continue
    // a delete's record has the key alone, and a row of a backfill was written long ago
    if (task.recordDelays)
      for (const { action, record } of data) if (action === 'insert' || action === 'update') recorder.delay(record.written_at, readAt)
    await insist('ack', JSON.stringify({ ack_ids: token === undefined ? data.map((message) => message.ack_id) : [token] }))
    recorder.add(data.length)
  }
  await client.close()
}
