/**
 * One token, one function or one destination doesn't take the service down: each attack against the running service, and what
 * another account notices of it (hostile.ts).
 */
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { HttpReceiver } from '../services/http-receiver.ts'
import { BUNDLE_MARK } from '../../transforms/compile.ts'
import { HostileService } from './hostile.ts'
import { until } from '../waiting.ts'

const SCHEMA = ['large', 'pushed', 'searched'].map((name) => `create table ${name} (id int primary key)`).join(';')
/** JSON that takes twenty times as much memory as there are bytes of it. */
const LISTS = Buffer.from('[],'.repeat(40_000_000))
let hostile: HostileService
let receiver: HttpReceiver

before(async () => {
  receiver = await HttpReceiver.start(({ path, method }) => {
    if (path.includes('/_bulk')) return { body: Buffer.concat([Buffer.from('{"errors":true,"items":['), LISTS, Buffer.from('[]]}')]) }
    if (path.startsWith('/tasks')) return { body: Buffer.concat([Buffer.from('{"results":['), LISTS, Buffer.from('[]]}')]) }
    return method === 'POST' && path.startsWith('/indexes') ? { status: 202, body: '{"taskUid":1}' } : {}
  })
  hostile = await HostileService.start(SCHEMA, {
    endpoints: [{ name: 'elsewhere', url: receiver.url }],
    functions: [
      { name: 'large', type: 'transform', code: "const s = 'é'.repeat(2e6); export default (a, r) => ({ s })" },
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
      {
        ...{ name: 'elasticsearch', tables: ['public.searched'] },
        destination: { type: 'elasticsearch', endpoint_url: receiver.url, index_name: 'rows', auth_type: 'none' },
      },
      {
        ...{ name: 'meilisearch', tables: ['public.searched'] },
        destination: { type: 'meilisearch', endpoint_url: receiver.url, index_name: 'rows', primary_key: 'id', api_key: 'none-of-them' },
      },
    ],
  })
})
after(async () => {
  await hostile[Symbol.asyncDispose]()
  await receiver[Symbol.asyncDispose]()
})

/** Messages of a pull sink until there were so many; not packed, which would be most of the time. */
async function receive(sink: string, count: number): Promise<void> {
  const asItIs = { 'accept-encoding': 'identity' }
  for (let received = 0; received < count;) {
    const { status, body } = await hostile.service.post(
      `/api/http_pull_consumers/${sink}/receive`,
      { batch_size: 1000, wait_for: 1_000 },
      asItIs,
    )
    assert.equal(status, 200)
    const { data } = body as { data: { ack_id: string }[] }
    received += data.length
    await hostile.service.post(`/api/http_pull_consumers/${sink}/ack`, { ack_ids: data.map(({ ack_id }) => ack_id) })
  }
}

test('a transform that makes 4 MB of each message is received a few at a time', async (context) => {
  const rows = 80
  await hostile.proof(context, async () => {
    await hostile.source.query(`insert into large select generate_series(1, ${rows})`)
    await receive('large', rows)
  })
})

test('what a transform makes of messages is pushed a few at a time', async (context) => {
  const rows = 80
  const { handler } = receiver
  using _ = { [Symbol.dispose]: () => void ([receiver.handler, receiver.requests.length] = [handler, 0]) }
  let bytes = 0
  await hostile.proof(context, async () => {
    receiver.handler = ({ body }) => {
      bytes += body.length
      return {}
    }
    await hostile.source.query(`insert into pushed select generate_series(1, ${rows})`)
    await receiver.until(() => bytes >= rows * 4_000_000)
  })
})

test('destinations that answer at length are refused', async (context) => {
  const refusalOf = (sink: string) =>
    until(`${sink} is refused`, async () => {
      const { body } = await hostile.service.get(`/api/sinks/${sink}`)
      const { checks } = (body as { health: { checks: { error?: { code: string; message: string } }[] } }).health
      return checks.find(({ error }) => error?.code === 'DESTINATION_REFUSED')?.error?.message
    })
  await hostile.proof(context, async () => {
    await hostile.source.query('insert into searched select generate_series(1, 49)')
    for (const sink of ['elasticsearch', 'meilisearch']) assert.match(await refusalOf(sink), /the answer is longer than \d+ bytes/)
  })
})

test('code and configurations that are slow to look through hold nobody up', async (context) => {
  const { service } = hostile
  const blanks = ' '.repeat(500_000)
  const bundles = [
    `/* export default function${blanks}*/ export default () => 1`,
    `export default () => 1 // export default x${blanks}x`,
    '\n'.repeat(500_000),
  ]
  const keys = Array.from({ length: 20_000 }, (_, i) => `k${i}: 1`).join('\n')
  await hostile.proof(context, async () => {
    for (const [i, code] of bundles.entries())
      await service.post('/api/functions', { name: `slow${i}`, type: 'transform', code: `${BUNDLE_MARK}\n${code}` })
    for (const yaml of [`a: "${'${a:-'.repeat(100_000)}"`, keys]) {
      const { status } = await service.post('/api/config/plan', { yaml, variables: {} })
      assert.equal(status, 422)
    }
  })
})
