/** The page for those who come from Sequin, followed: its files and commands as they stand, over the slot that somebody else has read. */
import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { test } from 'node:test'
import { promisify } from 'node:util'
import { Service, SLOT } from '../faults/service.ts'
import { COMMAND } from '../services/bundled-command.ts'
import { createDatabase, createState, type TestDatabase } from '../services/postgres.ts'
import { until } from '../waiting.ts'
import { pages } from '../docs/pages.ts'

const run = promisify(execFile)
const { text } = pages.find(({ file }) => file === 'docs/coming-from-sequin.md') ?? assert.fail('the page is gone')
/** The blocks that are files, by their names. */
const FILES = new Map([...text.matchAll(/^```\w+ file=(\S+)\n(.*?)^```$/gms)].map(([, name = '', content = '']) => [name, content]))
const TOKEN = 'worker-secret-1'
const SEQUIN_SLOT = `${SLOT}_sequin`

/** What whoever read the slot before, or reads it next, gets of it: the keys of the rows that were inserted. */
const peeked = async (source: TestDatabase) => {
  const changes = await source.query<{ data: Buffer }>(
    `select data from pg_logical_slot_peek_binary_changes($1, null, null, 'proto_version', '1', 'publication_names', 'sequin_pub')`,
    [SEQUIN_SLOT],
  )
  return changes.filter(({ data }) => data[0] === 0x49 /* I */).length
}

test('Sequin’s file and slot are taken over without loss or a gap, its functions ported, and given back', async () => {
  await using source = await createDatabase(`create table orders (id int primary key, state text, items jsonb); alter table orders replica identity full;
    create publication sequin_pub for all tables`) // prettier-ignore
  await using state = await createState()
  await source.query(`select pg_create_logical_replication_slot($1, 'pgoutput')`, [SEQUIN_SLOT])
  const order = (id: number) => source.query('insert into orders values ($1, $2, $3)', [id, 'paid', '["a", "b"]'])
  // Sequin has delivered the first two, and was stopped; others come while nobody reads
  for (const id of [1, 2]) await order(id)
  await source.query('select pg_replication_slot_advance($1, pg_current_wal_lsn())', [SEQUIN_SLOT])
  for (const id of [3, 4, 5]) await order(id)
  const slots = (await source.query<Record<string, unknown>>(FILES.get('slot.sql') ?? '')).filter((row) => row['slot_name'] === SEQUIN_SLOT)
  assert.deepEqual(slots.map(({ plugin, active }) => [plugin, active]), [['pgoutput', false]]) // prettier-ignore

  const { hostname, port, database, username, password } = source.connection
  const variables = { SHOP_HOST: hostname, SHOP_PORT: String(port), SHOP_DATABASE: database, SHOP_USER: username, SHOP_PASSWORD: password, SHOP_SLOT: SEQUIN_SLOT } // prettier-ignore
  await using service = await Service.prepare({ source: source.connection, stateUrl: state.url, sinks: [], env: variables })
  for (const [name, content] of FILES) await writeFile(join(service.folder, name), content)
  service.setVariables({ CONFIG_FILE_PATH: join(service.folder, 'sequin.yml') })
  await service.startReady()
  service.forgetConfigFile()
  const ask = async (path: string, body?: object) => {
    const headers = { authorization: `Bearer ${TOKEN}`, 'content-type': 'application/json' }
    const answer = await fetch(`${service.origin}/api${path}`, { headers, ...(body && { method: 'POST', body: JSON.stringify(body) }) })
    return (await answer.json()) as any // oxlint-disable-line typescript/no-explicit-any
  }
  /** Receives so many messages as Sequin's clients do, and acknowledges them. */
  const received = async (sink: string, count: number) => {
    const messages: any[] = [] // oxlint-disable-line typescript/no-explicit-any
    while (messages.length < count) {
      const { data } = await ask(`/http_pull_consumers/${sink}/receive`, { max_batch_size: 100, wait_for: 60_000 })
      assert.ok(data.length > 0, 'the rest did not come')
      await ask(`/http_pull_consumers/${sink}/ack`, { ack_ids: data.map(({ ack_id }: { ack_id: string }) => ack_id) })
      messages.push(...data)
    }
    return messages.map(({ data }) => data)
  }
  const audited = await received('audit', 3)
  assert.deepEqual(audited.map(({ record }) => record.id), [3, 4, 5]) // prettier-ignore

  // what waits for the reader is told
  for (const [name, code] of [
    ['orders', 'FUNCTION_INVALID'],
    ['events', 'DESTINATION_UNSUPPORTED'],
  ]) {
    const sink = await ask(`/sinks/${name}`)
    assert.deepEqual([sink.status, sink.health.checks[0].error.code], ['paused', code])
  }
  assert.match(service.log(), /the sink \\"orders\\" is paused: its function \\"order-document\\" looks like Elixir/)
  const tailrace = async (...args: string[]) => {
    const env = { ...process.env, ...variables, TAILRACE_URL: service.origin, TAILRACE_TOKEN: TOKEN, TAILRACE_DATA: service.dataFolder }
    const { stdout, stderr } = await run(process.execPath, [COMMAND, ...args], { cwd: service.folder, env })
    return stdout + stderr
  }
  for (const command of ['config plan sequin.yml', 'config plan tailrace.yml', 'config apply tailrace.yml --auto-approve'])
    assert.ok(text.includes(`npx tailrace ${command}\n`), command)
  const plan = await tailrace('config', 'plan', 'sequin.yml')
  assert.match(plan, /the sink "events" is paused: destination\.type is "kafka"/)
  assert.match(plan, /Nothing to change/)
  // ported without its sink being named, which stays paused: that is told where clients of Sequin look, too
  const { notices, actions } = await ask('/config/plan', {
    yaml: JSON.stringify({ functions: [{ name: 'order-document', type: 'path', path: 'record' }] }),
  })
  for (const list of [notices, actions.map(({ description }: { description: string }) => description)])
    assert.match(list.join('\n'), /the sink "orders" stays paused, .*: tailrace sinks resume orders \(/)
  await order(6)
  await tailrace('config', 'plan', 'tailrace.yml')
  await tailrace('config', 'apply', 'tailrace.yml', '--auto-approve')
  assert.equal((await ask('/sinks/orders')).status, 'active')
  assert.deepEqual(
    await received('orders', 4),
    [3, 4, 5, 6].map((id) => ({ id, state: 'PAID', lines: 2, table: 'public.orders' })),
  )
  await received('audit', 1)

  // the other functions of the page, on messages of ours
  const tried = async (file: string, type: string, messages: object[], more: object = {}) => {
    const code = await readFile(join(service.folder, file), 'utf8')
    const { data } = await ask('/functions/test', { type, code, messages, ...more })
    return data.map(({ output, error }: Record<string, unknown>) => error ?? output)
  }
  const row = { record: { id: 7, state: 'paid', items: [] }, metadata: { table_schema: 'public', table_name: 'orders' } }
  const kept = await tried('paid-orders.ts', 'filter', [
    { ...row, action: 'update', changes: { state: 'new' } },
    { ...row, action: 'update', changes: { items: [] } },
    { ...row, action: 'delete', changes: null },
  ])
  assert.deepEqual(kept, [true, false, true])
  const routed = await tried('order-route.ts', 'routing', [{ ...row, action: 'delete' }], { sink_type: 'webhook' })
  assert.deepEqual(routed, [{ method: 'DELETE', endpoint_path: '/orders/7' }])

  // the way back: what was committed until the stop is finished here, what comes after it is the other's, once
  await until('all is delivered but what waits for Kafka', async () => {
    const { streams } = (await ask('/../info')) as { streams: { readers: { sink: string; backlog_bytes: number }[] }[] }
    return streams.flatMap(({ readers }) => readers).every(({ sink, backlog_bytes: bytes }) => sink === 'events' || bytes === 0)
  })
  await service.stop()
  assert.equal(await peeked(source), 0)
  for (const id of [7, 8]) await order(id)
  assert.equal(await peeked(source), 2)
})
