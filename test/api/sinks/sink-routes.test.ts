import assert from 'node:assert/strict'
import { test } from 'node:test'
import { EngineError } from '../../../engine/errors.ts'
import { DATABASE, GOODS_ID, OTHER_TOKEN, SHOP } from '../scripted-engine.ts'
import { serve } from '../api-fixture.ts'

const GOODS = {
  id: GOODS_ID,
  name: 'goods',
  status: 'active',
  database: 'shop',
  source: { include_schemas: null, exclude_schemas: null, include_tables: ['public.goods'], exclude_tables: null },
  tables: [{ name: 'public.goods', group_column_names: ['id'] }],
  actions: ['insert', 'update', 'delete'],
  destination: { type: 'sequin_stream' },
  filter: 'none',
  transform: 'none',
  routing: 'none',
  enrichment: 'none',
  message_grouping: true,
  partitions: 1,
  replay_window: '1h',
  batch_size: 1,
  max_retry_count: null,
  load_shedding_policy: 'pause_on_full',
  timestamp_format: 'iso8601',
  key_changes: 'update',
  concurrency: null,
  traceparent_column: null,
  sensitive: false,
  annotations: { team: 'search' },
  active_backfills: [],
  health: { name: 'Consumer health', status: 'healthy', checks: [{ name: 'Sink configuration', status: 'healthy' }] },
}

test('sinks are listed and read in their wire form, those of the account alone', async () => {
  await using s = await serve()
  assert.deepEqual((await s.call('/api/sinks')).body, { data: [GOODS] })
  assert.deepEqual((await s.call('/api/sinks/goods')).body, GOODS)
  assert.deepEqual((await s.call(`/api/sinks/${GOODS_ID}`)).body, GOODS)
  assert.deepEqual((await s.call('/api/sinks', { token: OTHER_TOKEN })).body, { data: [] })
  assert.equal((await s.call('/api/sinks/goods', { token: OTHER_TOKEN })).status, 404)
  assert.equal((await s.call('/api/sinks', { token: null })).status, 401)
})

test('a sink without an actor is initializing, or paused when it is off', async () => {
  await using s = await serve()
  s.engine.add({ id: '66666666-6666-4666-8666-666666666666', name: 'off', status: 'disabled' }, { runs: false })
  s.engine.add({ id: '77777777-7777-4777-8777-777777777777', name: 'starting' }, { runs: false })
  const healthOf = async (name: string) => ((await s.call(`/api/sinks/${name}`)).body as typeof GOODS).health.status
  assert.deepEqual([await healthOf('off'), await healthOf('starting')], ['paused', 'initializing'])
})

test('PATCH and PUT set what they name, and answer the sink as it is then', async () => {
  await using s = await serve()
  const paused = await s.call('/api/sinks/goods', { method: 'PATCH', body: { status: 'paused' } })
  assert.deepEqual([paused.status, paused.body], [200, { ...GOODS, status: 'paused' }])
  const put = await s.call('/api/sinks/goods', {
    method: 'PUT',
    body: { status: 'active', max_retry_count: 5, ack_wait_ms: 500, message_grouping: 'true', tables: null, source: null },
  })
  assert.equal(put.status, 200)
  assert.deepEqual(s.engine.updates, [
    { sinkId: GOODS_ID, changes: { status: 'paused' } },
    {
      sinkId: GOODS_ID,
      changes: { status: 'active', max_retry_count: 5, ack_wait_ms: 500, message_grouping: true, tables: [], source: {} },
    },
  ])
  const cleared = await s.call('/api/sinks/goods', { method: 'PATCH', body: { max_retry_count: null } })
  assert.equal((cleared.body as typeof GOODS).max_retry_count, null)
})

test('max_ack_pending below the number of partitions is refused, whichever of the two would make it so', async () => {
  await using s = await serve()
  const patch = async (body: object) => (await s.call('/api/sinks/goods', { method: 'PATCH', body })).status
  assert.equal(await patch({ partitions: 3, max_ack_pending: 3 }), 200)
  assert.equal(await patch({ max_ack_pending: 2 }), 422)
  assert.equal(await patch({ partitions: 4 }), 422)
  assert.equal(await patch({ partitions: 1, max_ack_pending: 1 }), 200)
})

test('what was read can be sent back whole, and an empty update changes nothing', async () => {
  await using s = await serve()
  const read = (await s.call('/api/sinks/goods')).body
  const back = await s.call('/api/sinks/goods', { method: 'PUT', body: read })
  assert.deepEqual([back.status, back.body], [200, read])
  assert.deepEqual((await s.call('/api/sinks/goods', { method: 'PATCH', raw: '' })).body, read)
  assert.equal(s.engine.updates.length, 1)
})

test('spellings of the original are taken in: stream types, "none", older keys', async () => {
  await using s = await serve()
  const body = {
    destination: { type: 'stream' },
    transform: 'none',
    filter: null,
    routing: '',
    consumer_start: { position: 'beginning' },
    message_kind: 'event',
    table: 'goods',
    ...{ account_id: SHOP.id, inserted_at: '2025-02-03T04:05:06Z', updated_at: null, replication_slot_id: 'x', sequence_id: null },
    ...{ batch_size: null, annotations: null, status: null },
  }
  assert.equal((await s.call('/api/sinks/goods', { method: 'PATCH', body })).status, 200)
  assert.deepEqual(s.engine.updates[0]?.changes, {
    destination: { type: 'sequin_stream' },
    transform: null,
    filter: null,
    routing: null,
    source: { include_tables: ['public.goods'] },
  })
})

test('a table is named with its schema, which ends at the first dot, or is of the schema public', async () => {
  await using s = await serve()
  for (const [body, name] of [
    [{ table: 'goods' }, 'public.goods'],
    [{ table: 'public.users' }, 'public.users'],
    [{ table: 'inventory.a.b' }, 'inventory.a.b'],
    [{ schema: 'inventory', table: 'a.b' }, 'inventory.a.b'],
    [{ schema: null, table: 'public.users' }, 'public.users'],
    [{ source: { include_tables: ['public.users'] } }, 'public.users'],
  ] as const) {
    const { body: sink } = await s.call('/api/sinks/goods', { method: 'PATCH', body })
    assert.deepEqual((sink as typeof GOODS).source.include_tables, [name], JSON.stringify(body))
  }
  assert.equal((await s.call('/api/sinks/goods', { method: 'PATCH', body: { table: 7 } })).status, 422)
})

test('a wrong field is 422 with its reason at its place, and nothing is changed', async () => {
  await using s = await serve()
  const refused: [body: Record<string, unknown>, path: string[]][] = [
    [{ status: 'sleeping' }, ['status']],
    [{ batch_size: 0 }, ['batch_size']],
    [{ batch_size: '5' }, ['batch_size']],
    [{ actions: [] }, ['actions']],
    [{ name: 'a b' }, ['name']],
    [{ max_retry_count: 0 }, ['max_retry_count']],
    [{ ack_wait_ms: 499 }, ['ack_wait_ms']],
    [{ ack_wait_ms: 86_400_001 }, ['ack_wait_ms']],
    [{ max_ack_pending: 1_000_001 }, ['max_ack_pending']],
    [{ max_waiting: 10_001 }, ['max_waiting']],
    [{ source: { include_tables: [] } }, ['source', 'include_tables']],
    [{ source: { include_tables: ['a'], exclude_tables: ['b'] } }, ['source', 'exclude_tables']],
    [{ source: { tables: ['a'] } }, ['source', 'tables']],
    [{ tables: [{ group_column_names: ['a'] }] }, ['tables', '0', 'name']],
    [{ message_grouping: false }, ['tables']],
    [{ annotations: [] }, ['annotations']],
    [{ annotations: { big: 'x'.repeat(9_000) } }, ['annotations']],
    [{ database: 'another' }, ['database']],
    [{ destination: { type: 'kafka', hosts: 'h:1' } }, ['destination', 'type']],
    [{ destination: { type: 'sequin_stream', password: 'x' } }, ['destination', 'password']],
    [{ transform: 'goods doc' }, ['transform']],
    [{ routing: 'by-tenant' }, ['routing']],
    [{ colour: 'red' }, ['colour']],
  ]
  for (const [body, path] of refused) {
    const answer = await s.call('/api/sinks/goods', { method: 'PATCH', body })
    const { summary, code, validation_errors } = answer.body as { summary: string; code: string; validation_errors: unknown }
    assert.deepEqual([answer.status, code], [422, 'VALIDATION_FAILED'], answer.text)
    const reasons = path.reduce<unknown>((at, name) => (at as Record<string, unknown>)[name], validation_errors)
    assert.ok(Array.isArray(reasons) && typeof reasons[0] === 'string', answer.text)
    assert.ok(summary.includes(path[0] as string), summary)
  }
  assert.deepEqual(s.engine.updates, [])
  const all = await s.call('/api/sinks/goods', { method: 'PATCH', body: { status: 'x', batch_size: 0, database: 'y' } })
  assert.deepEqual(Object.keys((all.body as { validation_errors: object }).validation_errors).toSorted(), [
    'batch_size',
    'database',
    'status',
  ])
})

test('what the engine refuses is answered from the table', async () => {
  await using s = await serve()
  s.engine.updateSink = async () => {
    throw new EngineError('VALIDATION_FAILED', 'The name is taken.', { name: 'has already been taken' })
  }
  const taken = await s.call('/api/sinks/goods', { method: 'PATCH', body: { name: 'other' } })
  const { remedy, ...refused } = taken.body as { remedy: string }
  assert.deepEqual(
    [taken.status, refused],
    [422, { summary: 'The name is taken.', code: 'VALIDATION_FAILED', validation_errors: { name: ['has already been taken'] } }],
  )
  assert.match(remedy, /Correct these fields/)
})

const HOOK = { type: 'webhook', http_endpoint: 'hooks' }
const newHook = { name: 'partner', database: 'shop.main', destination: HOOK }
type SinkBody = typeof GOODS & { destination: Record<string, unknown>; summary: string; validation_errors: Record<string, unknown> }

async function withDatabase() {
  const s = await serve()
  s.engine.databases = [DATABASE]
  return s
}

test('POST and PATCH tell an unknown field, and a type of destination that is not there, in the same words', async () => {
  await using s = await withDatabase()
  const body = { colour: 'red', batch_size: 0, destination: { type: 'kafka', hosts: 'h:1' } }
  const told = async (path: string, method: string, more: object) => {
    const answer = await s.call(path, { method, body: { ...more, ...body } })
    return [answer.status, (answer.body as SinkBody).summary, (answer.body as SinkBody).validation_errors]
  }
  const type = 'is "kafka", which is not supported yet: the sink "goods" can have sequin_stream, webhook, elasticsearch, meilisearch'
  const words = { colour: 'is not a field of a sink', batch_size: 'must be at least 1, got 0' }
  assert.deepEqual(await told('/api/sinks/goods', 'PATCH', {}), [
    422,
    `Validation failed: colour ${words.colour}; batch_size ${words.batch_size}; destination.type ${type}.`,
    { colour: [words.colour], batch_size: [words.batch_size], destination: { type: [type] } },
  ])
  assert.deepEqual(await told('/api/sinks', 'POST', { name: 'goods', database: 'shop.main' }), await told('/api/sinks/goods', 'PATCH', {}))
  const odd = await s.call('/api/sinks', { body: { ...newHook, destination: { type: 'pigeon' } } })
  assert.match(
    (odd.body as SinkBody).summary,
    /type is "pigeon", which is no type of destination: the sink "partner" can have sequin_stream/,
  )
})

test('a sink is created with its defaults, read, and deleted', async () => {
  await using s = await withDatabase()
  const created = await s.call('/api/sinks', { body: newHook })
  assert.equal(created.status, 200, created.text)
  const sink = created.body as SinkBody
  assert.deepEqual(sink.destination, { ...HOOK, batch: true, item_results: false })
  assert.deepEqual([sink.status, sink.actions, sink.batch_size, sink.concurrency], ['active', ['insert', 'update', 'delete'], 1, null])
  assert.deepEqual((await s.call('/api/sinks/partner')).body, sink)
  assert.deepEqual((await s.call(`/api/sinks/${sink.id}`, { method: 'DELETE' })).body, { id: sink.id, deleted: true })
  assert.equal((await s.call('/api/sinks/partner')).status, 404)
})

test('what a new sink lacks or may not be is told at its field; an unknown database is 404', async () => {
  await using s = await withDatabase()
  const refused = async (body: object, ...path: string[]) => {
    const answer = await s.call('/api/sinks', { body })
    assert.equal(answer.status, 422, answer.text)
    let at: unknown = (answer.body as SinkBody).validation_errors
    for (const name of path) at = (at as Record<string, unknown> | undefined)?.[name]
    assert.ok(at !== undefined, `${path.join('.')} in ${answer.text}`)
  }
  assert.equal((await s.call('/api/sinks', { body: { ...newHook, database: 'nowhere' } })).status, 404)
  await refused({ ...newHook, name: undefined }, 'name')
  await refused({ ...newHook, database: undefined }, 'database')
  await refused({ ...newHook, destination: undefined }, 'destination')
  await refused({ ...newHook, destination: 7 }, 'destination')
  await refused({ ...newHook, destination: { type: 'carrier_pigeon' } }, 'destination', 'type')
  await refused({ ...newHook, destination: { type: 'webhook' } }, 'destination', 'http_endpoint')
  await refused({ ...newHook, destination: { ...HOOK, colour: 'red' } }, 'destination', 'colour')
  await refused({ ...newHook, destination: { ...HOOK, batch: 'yes' } }, 'destination', 'batch')
  for (const http_endpoint_path of ['in', 'a/b', '/a b', '/ü', `/${'x'.repeat(2000)}`])
    await refused({ ...newHook, destination: { ...HOOK, http_endpoint_path } }, 'destination', 'http_endpoint_path')
  for (const http_endpoint_path of ['', '/in', '?a=1', '#x', '/a%20b?c=[d]&e=1', null])
    assert.equal((await s.call('/api/sinks', { body: { ...newHook, destination: { ...HOOK, http_endpoint_path } } })).status, 200)
  await refused({ ...newHook, batch_size: 10, destination: { ...HOOK, batch: false } }, 'batch_size')
  await refused({ ...newHook, batch_size: 1001 }, 'batch_size')
  await refused({ ...newHook, concurrency: 0 }, 'concurrency')
  await refused({ ...newHook, actions: [] }, 'actions')
  await refused({ ...newHook, max_retry_count: 0 }, 'max_retry_count')
  await refused({ ...newHook, destination: { ...HOOK, signing_secrets: ['short'] } }, 'destination', 'signing_secrets')
})

const SEARCH = { type: 'meilisearch', endpoint_url: 'http://search.internal:7700/', index_name: 'goods', api_key: 'a-long-secret-key' }

test('a Meilisearch sink has its defaults, shows its key in part, and is told of what it lacks', async () => {
  await using s = await withDatabase()
  const body = { name: 'search', database: 'shop.main', destination: SEARCH }
  const created = await s.call('/api/sinks', { body })
  assert.equal(created.status, 200, created.text)
  const { destination } = created.body as SinkBody
  assert.deepEqual(destination, { ...SEARCH, api_key: 'a-l*************y', primary_key: 'id', batch_size: 100, timeout_seconds: 5 })
  assert.equal(
    (await s.call('/api/sinks/search', { method: 'PATCH', body: { destination: { ...destination, batch_size: 10_000 } } })).status,
    200,
  )
  const split = await s.call('/api/sinks/search', { method: 'PATCH', body: { key_changes: 'delete_insert' } })
  assert.match((split.body as SinkBody).summary, /key_changes is only for pull and webhook sinks/)
  assert.equal((await s.call('/api/sinks/goods', { method: 'PATCH', body: { key_changes: 'delete_insert' } })).status, 200)
  const shownOfAnother = { destination: { api_key: 'b-l*************y' } }
  assert.equal((await s.call('/api/sinks/search', { method: 'PATCH', body: shownOfAnother })).status, 422)
  const stored = s.engine.find('sink', SHOP.id, 'search')?.destination
  assert.deepEqual(stored, { ...SEARCH, primary_key: 'id', batch_size: 10_000, timeout_seconds: 5 })
  const without = (name: string) => Object.fromEntries(Object.entries(SEARCH).filter(([one]) => one !== name))
  const wrong: readonly (readonly [object, string])[] = [
    [without('endpoint_url'), 'endpoint_url'],
    [without('index_name'), 'index_name'],
    [without('api_key'), 'api_key'],
    ...['ftp://x', 'http://', 'http://user:secret@x', 'http://x?a=1', 'http://x/#a', `http://x/${'y'.repeat(4096)}`].map(
      (endpoint_url) => [{ ...SEARCH, endpoint_url }, 'endpoint_url'] as const,
    ),
    ...['x'.repeat(401), '..', 'a/b', 'a.b'].map((index_name) => [{ ...SEARCH, index_name }, 'index_name'] as const),
    [{ ...SEARCH, api_key: 'two lines\n' }, 'api_key'],
    [{ ...SEARCH, api_key: 'a-l*************y' }, 'api_key'], // as some other sink shows it
    [{ ...SEARCH, primary_key: '' }, 'primary_key'],
    ...[0, 10_001, 'ten'].map((batch_size) => [{ ...SEARCH, batch_size }, 'batch_size'] as const),
    ...[0, 301].map((timeout_seconds) => [{ ...SEARCH, timeout_seconds }, 'timeout_seconds'] as const),
    [{ ...SEARCH, colour: 'red' }, 'colour'],
  ]
  for (const [form, field] of wrong) {
    const answer = await s.call('/api/sinks', { body: { ...body, destination: form } })
    assert.equal(answer.status, 422, `${field}: ${answer.text}`)
    const { destination: told } = (answer.body as SinkBody).validation_errors as { destination?: object }
    assert.deepEqual(Object.keys(told ?? {}), [field], answer.text)
  }
})

test('an Elasticsearch sink has its defaults, hides its login, and is told of what it lacks', async () => {
  await using s = await withDatabase()
  const index = {
    type: 'elasticsearch',
    endpoint_url: 'https://search.internal:9200',
    index_name: 'goods',
    auth_value: 'a-long-secret-key',
  }
  const body = { name: 'search', database: 'shop.main', destination: index }
  const created = await s.call('/api/sinks', { body })
  assert.equal(created.status, 200, created.text)
  const { destination } = created.body as SinkBody
  const defaults = { auth_type: 'api_key', batch_size: 100, timeout_seconds: 60, versioning: 'external_gte' }
  assert.deepEqual(destination, { ...index, ...defaults, auth_value: 'a-l*************y' })
  const patched = await s.call('/api/sinks/search', { method: 'PATCH', body: { destination: { ...destination, batch_size: 10_000 } } })
  assert.equal(patched.status, 200, patched.text)
  assert.deepEqual(s.engine.find('sink', SHOP.id, 'search')?.destination, { ...index, ...defaults, batch_size: 10_000 })
  const open = { name: 'open', database: 'shop.main', destination: { ...index, auth_type: 'none', auth_value: null } }
  assert.equal((await s.call('/api/sinks', { body: open })).status, 200)
  const wrong: readonly (readonly [object, string])[] = [
    [{ ...index, endpoint_url: undefined }, 'endpoint_url'],
    [{ ...index, endpoint_url: 'http://user:secret@x' }, 'endpoint_url'],
    [{ ...index, index_name: null }, 'index_name'],
    ...['x'.repeat(256), '..', '_all', 'a*', 'a/b'].map((index_name) => [{ ...index, index_name }, 'index_name'] as const),
    [{ ...index, auth_type: 'digest' }, 'auth_type'],
    [{ ...index, auth_value: null }, 'auth_value'],
    [{ ...index, auth_type: 'bearer', auth_value: 'two words' }, 'auth_value'],
    [{ ...index, auth_type: 'basic', auth_value: 'no colon' }, 'auth_value'],
    ...[0, 10_001].map((batch_size) => [{ ...index, batch_size }, 'batch_size'] as const),
    [{ ...index, versioning: 'internal' }, 'versioning'],
    [{ ...index, ca_cert: 'no certificate' }, 'ca_cert'],
  ]
  for (const [form, field] of wrong) {
    const answer = await s.call('/api/sinks', { body: { ...body, name: 'other', destination: form } })
    assert.equal(answer.status, 422, `${field}: ${answer.text}`)
    const { destination: told } = (answer.body as SinkBody).validation_errors as { destination?: object }
    assert.deepEqual(Object.keys(told ?? {}), [field], answer.text)
    assert.ok(!answer.text.includes('secret@'))
  }
})

test('an update of a destination changes what it names; secrets sent back as shown stay, and the type can’t be changed', async () => {
  await using s = await withDatabase()
  const secrets = [1, 2].map((byte) => `whsec_${Buffer.alloc(24, byte).toString('base64')}`)
  const created = (await s.call('/api/sinks', { body: { ...newHook, destination: { ...HOOK, signing_secrets: secrets } } }))
    .body as SinkBody
  const shown = created.destination['signing_secrets'] as string[]
  assert.deepEqual(shown, ['whs********************B', 'whs********************C'])
  const set = (destination: object) => s.call('/api/sinks/partner', { method: 'PATCH', body: { destination } })
  assert.equal((await set({ batch: true, http_endpoint_path: '/in', signing_secrets: [shown[1]] })).status, 200)
  assert.deepEqual(s.engine.find('sink', SHOP.id, 'partner')?.destination, {
    ...HOOK,
    batch: true,
    item_results: false,
    http_endpoint_path: '/in',
    signing_secrets: [secrets[1]],
  })
  assert.equal((await set({ ...HOOK, http_endpoint_path: null, signing_secrets: null })).status, 200)
  assert.deepEqual(s.engine.find('sink', SHOP.id, 'partner')?.destination, { ...HOOK, batch: true, item_results: false })
  const changed = await set({ type: 'stream' })
  assert.equal(changed.status, 422)
  assert.deepEqual((changed.body as SinkBody).validation_errors, { destination: { type: ['cannot be changed'] } })
  assert.equal((await s.call('/api/sinks/partner', { method: 'PATCH', body: { batch_size: 5 } })).status, 200)
  assert.equal((await set({ batch: false })).status, 422, 'the batch size stays 5')
})

test('a test of the connection says yes, or what is wrong in the destination’s own words', async () => {
  await using s = await serve()
  assert.deepEqual((await s.call('/api/sinks/goods/test_connection', { method: 'POST' })).body, { success: true })
  s.engine.troubles.set(GOODS_ID, 'status 401: no')
  const { status, body } = await s.call('/api/sinks/goods/test_connection', { method: 'POST' })
  assert.deepEqual([status, body], [422, { success: false, reason: 'status 401: no' }])
})
