/** Files in the form in which Sequin's users have them, as they stand: at the start, by its command, and as its exports are. */
import assert from 'node:assert/strict'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { test } from 'node:test'
import { parse, stringify } from 'yaml'
import { Service, SLOT, TOKEN } from '../faults/service.ts'
import { createDatabase, createState } from '../services/postgres.ts'
import { UNSENT } from '../services/sequin-destinations.ts'

/** A file for a set-up by containers: no TLS, a publication of its own SQL, variables with defaults, a destination that is not there yet. */
const START = `
account:
  name: "\${SEQUIN_ACCOUNT_NAME:-shop}"

users:
  - account: "shop"
    email: "admin@shop.example"
    password: "a-password-of-the-shop"

api_tokens:
  - name: "tests"
    token: "${TOKEN}"

databases:
  - name: "shop"
    hostname: "\${SHOP_HOST:-nowhere}"
    port: \${SHOP_PORT:-5432}
    database: "\${SHOP_DATABASE:-shop}"
    username: "\${SHOP_USER:-postgres}"
    password: "\${SHOP_PASSWORD:-postgres}"
    pool_size: 5
    slot:
      name: "${SLOT}_e2e"
      create_if_not_exists: true
    publication:
      name: "${SLOT}_e2e"
      create_if_not_exists: true
      init_sql: |-
        create publication ${SLOT}_e2e for all tables with (publish_via_partition_root = true)
    await_database:
      timeout_ms: 60000
      interval_ms: 5000

sinks:
  - name: "orders-to-kafka"
    database: "shop"
    table: "public.orders"
    batch_size: 10
    status: "active"
    actions:
      - insert
      - update
      - delete
    destination:
      type: "kafka"
      hosts: "\${KAFKA_BROKERS:-kafka:29092}"
      topic: "orders"
      tls: false
`

/** A whole example with older keys: flat slot and publication, tables in the database, endpoints with lists of headers. */
const whole = (database: object) => ({
  databases: [{ ...database, tables: [{ table_name: 'orders', sort_column_name: 'id' }] }],
  http_endpoints: [{ name: 'webhook', url: 'http://127.0.0.1:9/webhook', encrypted_headers: [{ key: 'Authorization', value: 'Bearer hook-token-1' }] }, { name: 'trial', 'webhook.site': 'true' }],
  sinks: [
    { name: 'order-trial', database: 'shop', table: 'public.orders', destination: { type: 'webhook', http_endpoint: 'trial' } },
    { name: 'order-redis', database: 'shop', table: 'orders', destination: { type: 'redis', host: 'redis', port: 6379, stream_key: 'orders' } },
    { name: 'order-changes', database: 'shop', table: 'orders', destination: { type: 'webhook', http_endpoint: 'webhook' } },
    { name: 'order-stream', database: 'shop', schema: 'public', table: 'orders', consumer_start: { position: 'end' }, message_kind: 'event', destination: { type: 'sequin_stream' } },
  ],
  change_capture_pipelines: [{ name: 'order-audit', source_database: 'shop', source_table_schema: 'public', source_table_name: 'orders', destination_database: 'shop', destination_table_schema: 'audit', destination_table_name: 'order_events' }],
}) // prettier-ignore

/** What Sequin's export has of the same kinds: everything, with null for what is not set. */
const EXPORT = {
  http_endpoints: [{ id: '11111111-1111-4111-8111-111111111111', name: 'webhook', url: 'http://127.0.0.1:9/webhook', headers: {}, encrypted_headers: '(1 encrypted header(s)) - sha256sum: 0123abcd' }],
  functions: [
    { id: '22222222-2222-4222-8222-222222222222', name: 'row', type: 'path', path: 'record', description: null },
    { name: 'filter-paid', type: 'filter', description: null, code: 'def filter(action, record, changes, metadata) do\n  record["state"] == "paid"\nend' },
    { name: 'topics', type: 'routing', sink_type: 'kafka', description: null, code: 'def route(action, record, changes, metadata) do\n  %{topic: record["state"]}\nend' },
  ],
  sinks: [
    {
      id: '33333333-3333-4333-8333-333333333333', name: 'order-changes', database: 'shop', status: 'active', source: null, tables: null,
      actions: ['insert', 'update', 'delete'], batch_size: 1, max_retry_count: null, load_shedding_policy: 'pause_on_full', timestamp_format: 'iso8601',
      message_grouping: true, annotations: {}, filter: 'none', transform: 'row', routing: 'none', enrichment: 'none', active_backfills: [],
      destination: { type: 'webhook', http_endpoint: 'webhook', http_endpoint_path: null, batch: false },
      health: { name: 'Consumer health', status: 'healthy', checks: [] },
    },
    {
      name: 'paid-orders', database: 'shop', status: 'active', tables: [{ name: 'public.orders', group_column_names: null }],
      source: { include_schemas: null, exclude_schemas: null, include_tables: ['public.orders'], exclude_tables: null },
      filter: 'filter-paid', routing: 'topics', destination: { ...UNSENT[0], sasl_mechanism: null },
    },
  ],
} // prettier-ignore

type Answer = Readonly<{ status: number; body: any }> // oxlint-disable-line typescript/no-explicit-any

test('files of Sequin are taken as they stand, exported, and planned again they are empty', async () => {
  await using source = await createDatabase('create table orders (id int primary key, state text)')
  await using state = await createState()
  const { hostname, port, database, username, password } = source.connection
  const env = { SHOP_HOST: hostname, SHOP_PORT: String(port), SHOP_DATABASE: database, SHOP_USER: username, SHOP_PASSWORD: password }
  await using service = await Service.prepare({ source: source.connection, stateUrl: state.url, sinks: [], env })
  const config = join(service.folder, 'sequin.yml')
  await writeFile(config, START)
  service.setVariables({ CONFIG_FILE_PATH: config })
  await service.startReady()
  const get = async (path: string) => (await service.get(path)) as Answer
  const post = async (verb: 'plan' | 'apply', yaml: string) => (await service.post(`/api/config/${verb}`, { yaml })) as Answer
  const changed = ({ status, body }: Answer) => {
    assert.equal(status, 200, JSON.stringify(body))
    return body.changes.filter(({ action }: { action: string }) => action !== 'delete')
  }
  const { body: kafka } = await get('/api/sinks/orders-to-kafka')
  assert.deepEqual([kafka.status, kafka.batch_size, kafka.source.include_tables], ['paused', 10, ['public.orders']])
  assert.match(service.log(), /the database \\"shop\\" is read without TLS/)

  const [entry] = parse((await get('/api/config/export?show-sensitive=true')).body.yaml).databases
  const { slot, publication, ssl: _, ...connection } = entry
  const older = { ...connection, slot_name: slot.name, publication_name: publication.name, ipv6: false, use_local_tunnel: false }
  // the command of Sequin puts in what anchors hold, and leaves their holder
  const file = { ...whole(older), base_sink_config: { database: 'shop', batch_size: 5 } }
  const applied = await post('apply', stringify(file))
  assert.equal(applied.status, 200, JSON.stringify(applied.body))
  const descriptions = applied.body.actions.map(({ description }: { description: string }) => description).join('\n')
  for (const told of [
    '"base_sink_config" is not a section',
    'database "shop": tables is ignored',
    'the HTTP endpoint "trial": its sinks keep their messages, for the HTTP endpoint has no url yet',
    'the sink "order-redis" is paused: destination.type is "redis_stream"',
    'the database "shop" sets pool_size: kept, and without effect here',
    'the change retention "order-audit" waits: the table audit.order_events of the database "shop" does not exist. Remedy: create table',
  ])
    assert.ok(descriptions.includes(told))
  for (const name of ['order-changes', 'order-stream'])
    assert.deepEqual((await get(`/api/sinks/${name}`)).body.source.include_tables, ['public.orders'])
  assert.equal((await get('/api/change_retentions/order-audit')).status, 200)
  assert.deepEqual(changed(await post('plan', stringify(file))), [])
  const trial = '/api/destinations/http_endpoints/trial'
  const { body: shown } = await get(trial)
  assert.equal(shown['webhook.site'], true)
  assert.equal(((await service.patch(trial, shown)) as Answer).status, 200, 'as it is shown it may be sent back')
  assert.match(((await service.post(`${trial}/test_connection`, {})) as Answer).body.reason, /no url yet/)

  const exported = await post('apply', stringify(EXPORT))
  assert.equal(exported.status, 200, JSON.stringify(exported.body))
  const reasons = exported.body.actions.filter(({ description }: { description: string }) =>
    description.includes('"paid-orders" is paused'),
  )
  assert.match(JSON.stringify(reasons), /destination\.type is .*its functions .*filter-paid.*, .*topics.* look like Elixir/)
  assert.equal((await get('/api/sinks/paid-orders')).body.status, 'paused')
  assert.equal((await get('/api/sinks/order-changes')).body.status, 'active')
  assert.deepEqual(changed(await post('plan', stringify(EXPORT))), [])
  for (const query of ['', '?show-sensitive=true']) {
    const { yaml } = (await get(`/api/config/export${query}`)).body
    assert.deepEqual(changed(await post('plan', yaml)), [])
  }
  assert.match((await get('/api/config/export?show-sensitive=true')).body.yaml, /Bearer hook-token-1/)

  // another start with the first file changes nothing but what it says
  await service.kill()
  await service.startReady()
  assert.deepEqual(changed(await post('plan', stringify(EXPORT))), [])
})

test('what is wrong in a file is told with resource and key, and nothing of it stays', async () => {
  await using source = await createDatabase('create table orders (id int primary key, state text)')
  await using state = await createState()
  await using service = await Service.prepare({ source: source.connection, stateUrl: state.url, sinks: [] })
  await service.startReady()
  const wrong = {
    http_endpoints: [{ name: 'webhook', url: 'ftp://x' }],
    functions: [{ name: 'topics', type: 'routing', code: 'export default () => ({})' }],
    change_retentions: [{ name: 'audit', source_database: 'source' }],
    sinks: [
      { name: 'none', database: 'source', destination: { type: 'pigeons' } },
      { name: 'batches', database: 'source', batch_size: 0, destination: { type: 'sequin_stream' } },
      {
        name: 'kafka',
        database: 'source',
        destination: { type: 'gcp_pubsub', credentials: '(credentials present) - sha256sum: 0123abcd' },
      },
    ],
  }
  const { status, body } = (await service.post('/api/config/apply', { yaml: stringify(wrong) })) as Answer
  assert.equal(status, 422)
  for (const told of [
    'HTTP endpoint "webhook": url must begin with',
    'function "topics": sink_type is missing',
    'change retention "audit": source_table_schema is missing',
    'sink "none": destination.type is "pigeons"',
    'sink "batches": batch_size must be at least 1',
    'sink "kafka": destination.credentials',
  ])
    assert.ok(body.summary.includes(told), `${told} in\n${body.summary}`)
  assert.deepEqual(((await service.get('/api/sinks')).body as { data: unknown[] }).data, [])
})
