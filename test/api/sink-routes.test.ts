import assert from 'node:assert/strict'
import { test } from 'node:test'
import { EngineError } from '../../engine/errors.ts'
import { GOODS_ID, OTHER_TOKEN } from './scripted-engine.ts'
import { serve } from './api-fixture.ts'

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
  batch_size: 1,
  max_retry_count: null,
  load_shedding_policy: 'pause_on_full',
  timestamp_format: 'iso8601',
  annotations: { team: 'search' },
  active_backfills: [],
  health: { name: 'Consumer health', status: 'healthy', checks: [{ name: 'Sink configuration', status: 'healthy' }] },
}

test('sinks are listed and read in the contract’s form, those of the account alone', async () => {
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
  }
  assert.equal((await s.call('/api/sinks/goods', { method: 'PATCH', body })).status, 200)
  assert.deepEqual(s.engine.updates[0]?.changes, {
    destination: { type: 'sequin_stream' },
    transform: null,
    filter: null,
    source: { include_tables: ['public.goods'] },
  })
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
  assert.deepEqual(
    [taken.status, taken.body],
    [422, { summary: 'The name is taken.', code: 'VALIDATION_FAILED', validation_errors: { name: ['has already been taken'] } }],
  )
})
