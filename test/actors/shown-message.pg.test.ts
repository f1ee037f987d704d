/** What people see of a message when they look at it: on a real engine, with its functions and its database. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { HttpReceiver } from '../services/http-receiver.ts'
import { createDatabase, createState } from '../services/postgres.ts'
import { applyYaml, startNode, type EngineNode } from './engine-node.ts'
import { until } from '../waiting.ts'

const FUNCTIONS = `
functions:
  - name: names
    type: enrichment
    code: select g.id, t.name from goods g join tenant t on t.id = g.tenant_id where g.id = any($1)
  - name: doc
    type: transform
    code: |
      export default (action, record, changes, metadata) => {
        console.log('looks at', record.id)
        if (record.id === 2n ** 53n + 1n) throw new Error('no such thing')
        return { id: record.id, of: metadata.enrichment?.name ?? null }
      }
  - { name: go, type: routing, sink_type: webhook, code: "export default () => ({ method: 'put', endpoint_path: '/own' })" }
  - { name: few, type: filter, code: "export default (a, r) => r.id !== 1" }
`
const SINKS = `
sinks:
  - { name: goods, database: shop, source: { include_tables: [public.goods] }, destination: { type: sequin_stream }, enrichment: names, transform: doc }
  - { name: plain, database: shop, source: { include_tables: [public.goods] }, destination: { type: sequin_stream } }
  - { name: secret, database: shop, source: { include_tables: [public.goods] }, destination: { type: sequin_stream }, transform: doc, sensitive: true }
  - name: hook
    database: shop
    source: { include_tables: [public.goods] }
    filter: few
    routing: go
    destination: { type: webhook, http_endpoint: hook }
http_endpoints:
  - { name: hook, url: URL }
`

type Shown = {
  state: string
  attempts: { function?: string; logs?: string[] }[]
  message: { record: { id: number }; metadata: { enrichment: object | null } } | null
  functions: { dropped: boolean; output?: unknown; routing?: object; error?: { message: string; line: number }; logs: string[] } | null
}
const idOf = ({ cache }: EngineNode, name: string) => cache.sinks.find((sink) => sink.name === name)?.id ?? ''
const take = async (node: EngineNode, name: string, batchSize: number) => {
  const request = { batchSize, waitMs: 10_000, shape: 'flat' as const, signal: new AbortController().signal }
  const { body } = await until(`${name} runs`, () => node.engine.sink(idOf(node, name))?.receive(request) ?? Promise.resolve(undefined))
  return (JSON.parse(body.toString()) as { data: { ack_id: string; data: unknown }[] }).data
}
const shown = async (node: EngineNode, name: string, id: string): Promise<Shown & { text: string }> => {
  const found = (await node.engine.message(idOf(node, name), { id, withFunctions: true })) ?? assert.fail(`${name} has no ${id}`)
  const text = `{"message":${found.message},"functions":${found.functions}}`
  return { ...(found.record as unknown as Shown), ...(JSON.parse(text) as Shown), text }
}

test('a message is shown with the row that enriches it, what its functions make of it, and what they threw and printed', async () => {
  await using state = await createState()
  await using receiver = await HttpReceiver.start()
  await using shop = await createDatabase(`
    create table tenant (id int primary key, name text);
    create table goods (id bigint primary key, tenant_id int);
    insert into tenant values (7, 'North');
  `)
  const { hostname, port, database, username, password } = shop.connection
  const fields = { name: 'shop', hostname, port, database, username, password, ssl: false }
  const slot = { name: shop.name, create_if_not_exists: true }
  await applyYaml(
    state.connection,
    `account: { name: a }\ndatabases: ${JSON.stringify([{ ...fields, slot, publication: slot }])}${FUNCTIONS}${SINKS.replace('URL', receiver.url)}`,
  )
  await using node = await startNode({ name: 'only', state: state.connection })
  await until('streaming', async () => node.engine.ready().ready)
  await shop.query('insert into goods values (1, 7), (9007199254740993, 7)')

  const [done] = await take(node, 'goods', 10)
  assert.deepEqual(done?.data, { id: 1, of: 'North' })
  await node.engine.sink(idOf(node, 'goods'))?.ack([done.ack_id])
  const acknowledged = await shown(node, 'goods', done.ack_id)
  assert.deepEqual([acknowledged.state, acknowledged.message?.metadata.enrichment], ['acknowledged', { id: 1, name: 'North' }])
  assert.deepEqual(acknowledged.functions, { dropped: false, output: { id: 1, of: 'North' }, logs: ['looks at 1'] })

  const open = (sink: string) =>
    until('a row', async () => (await node.engine.messages(idOf(node, sink), { state: 'failing', limit: 1 })).messages[0])
  const failing = await shown(node, 'goods', (await open('goods')).id)
  assert.deepEqual([failing.attempts[0]?.function, failing.attempts[0]?.logs], ['doc', ['looks at 9007199254740993']])
  assert.match(failing.text, /"record":\{"id":9007199254740993,/)
  const { error, logs, output } = failing.functions ?? {}
  assert.deepEqual([error?.message, error?.line], ['transform "doc": Error: no such thing (line 3, column 43)', 3])
  assert.deepEqual([logs, output], [['looks at 9007199254740993'], undefined])

  const plain = (await take(node, 'plain', 1))[0]?.ack_id ?? ''
  await node.engine.sink(idOf(node, 'plain'))?.ack([plain])
  const untouched = await shown(node, 'plain', plain)
  assert.deepEqual([untouched.message?.metadata.enrichment, untouched.functions], [null, null])
  await take(node, 'secret', 10)
  const secret = await shown(node, 'secret', (await open('secret')).id)
  assert.deepEqual([secret.message, secret.functions, secret.attempts[0]?.logs], [null, null, undefined])

  const sent = await until('delivered', async () => (await node.engine.delivered(idOf(node, 'hook'), { limit: 1 }))[0])
  const routed = await shown(node, 'hook', sent.id)
  const routing = { method: 'PUT', endpoint_path: '/own', headers: {} }
  assert.deepEqual([routed.state, routed.functions], ['delivered', { dropped: false, routing, logs: [] }])
  await state.query(`update tailrace.function set compiled = 'export default () => false' where name = 'few'`)
  await node.engine.reload()
  assert.deepEqual((await shown(node, 'hook', sent.id)).functions, { dropped: true, logs: [] })
})
