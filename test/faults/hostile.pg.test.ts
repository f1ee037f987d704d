/**
 * One token, one function or one destination doesn't take the service down: each attack against the running service, and what
 * another account notices of it (hostile.ts).
 */
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { HttpReceiver } from '../services/http-receiver.ts'
import { HostileService } from './hostile.ts'

const SCHEMA = 'create table large (id int primary key); create table pushed (id int primary key)'
let hostile: HostileService
let receiver: HttpReceiver

before(async () => {
  receiver = await HttpReceiver.start()
  hostile = await HostileService.start(SCHEMA, {
    endpoints: [{ name: 'elsewhere', url: receiver.url }],
    functions: [
      { name: 'large', type: 'transform', code: "const s = 'é'.repeat(8e6); export default (a, r) => ({ s })" },
      {
        name: 'printing',
        type: 'transform',
        code: "export default (a, r) => { for (let i = 0; i < 50; i++) console.log('é'.repeat(1000)); return r.id }",
      },
    ],
    sinks: [
      { name: 'large', tables: ['public.large'], transform: 'large' },
      { name: 'printing', tables: ['public.large'], transform: 'printing' },
      {
        ...{ name: 'pushed', tables: ['public.pushed'], transform: 'large', batch_size: 1000 },
        destination: { type: 'webhook', http_endpoint: 'elsewhere' },
      },
    ],
  })
})
after(async () => {
  await hostile[Symbol.asyncDispose]()
  await receiver[Symbol.asyncDispose]()
})

/** Messages of a pull sink until there were so many. */
async function receive(sink: string, count: number): Promise<void> {
  for (let received = 0; received < count;) {
    const { status, body } = await hostile.service.post(`/api/http_pull_consumers/${sink}/receive`, { batch_size: 1000, wait_for: 1_000 })
    assert.equal(status, 200)
    const { data } = body as { data: { ack_id: string }[] }
    received += data.length
    await hostile.service.post(`/api/http_pull_consumers/${sink}/ack`, { ack_ids: data.map(({ ack_id }) => ack_id) })
  }
}

test('a transform that makes 16 MB of each message is received a message at a time', async (context) => {
  const rows = 20
  await hostile.proof(context, async () => {
    await hostile.source.query(`insert into large select generate_series(1, ${rows})`)
    await receive('large', rows)
  })
})
