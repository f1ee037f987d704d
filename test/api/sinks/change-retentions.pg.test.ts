/** Change retentions on the real service: what they write, through kills, what they keep, and how they are managed. */
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { parse, stringify } from 'yaml'
import { retentionTableSql } from '../../../sinks/change-retention.ts'
import { Service, SLOT } from '../../faults/service.ts'
import { createDatabase, createState, type TestDatabase } from '../../services/postgres.ts'
import { until } from '../../waiting.ts'

const started = new AsyncDisposableStack()
let source: TestDatabase
let archive: TestDatabase
let service: Service

before(async () => {
  source = started.use(
    await createDatabase('create table goods (id int primary key, shop text, n bigint, price numeric, data jsonb); alter table goods replica identity full; create table part (a int, b text, primary key (a, b))'),
  ) // prettier-ignore
  archive = started.use(await createDatabase(`create schema history; ${retentionTableSql('history', 'goods')}`))
  const state = started.use(await createState())
  service = started.use(await Service.prepare({ source: source.connection, stateUrl: state.url, sinks: [{ name: 'goods', tables: ['public.goods'] }] })) // prettier-ignore
  await service.startReady()
  const { caCert: _, ...connection } = archive.connection
  const slot = `${SLOT}_a`
  const file = { databases: [{ name: 'archive', ...connection, slot: { name: slot, create_if_not_exists: true }, publication: { name: slot, create_if_not_exists: true } }] } // prettier-ignore
  const { status, body } = await service.post('/api/config/apply', { yaml: stringify(file) })
  assert.equal(status, 200, JSON.stringify(body))
})
after(() => started.disposeAsync())

type Answer = Readonly<{ status: number; body: any }> // oxlint-disable-line typescript/no-explicit-any
const GOODS = {
  name: 'goods', // as a sink is named, too
  source_database: 'source',
  source_table_schema: 'public',
  source_table_name: 'goods',
  destination_database: 'archive',
  destination_table_schema: 'history',
  destination_table_name: 'goods',
}
const post = (path: string, body: object) => service.post(path, body) as Promise<Answer>
const patch = (path: string, body: object) => service.patch(path, body) as Promise<Answer>
const get = (path: string) => service.get(path) as Promise<Answer>
const config = async (verb: 'plan' | 'apply', file: unknown) =>
  post(`/api/config/${verb}`, { yaml: typeof file === 'string' ? file : stringify(file) })
const told = ({ body }: Answer) =>
  body.changes
    .filter(({ action }: { action: string }) => action !== 'delete')
    .map((one: Record<string, string>) => `${one['action']} ${one['resource_type']} ${one['name']}`)
type Row = Readonly<Record<string, any>> // oxlint-disable-line typescript/no-explicit-any
const rows = (where = 'true') => archive.query<Row>(`select * from history.goods where ${where} order by id`)
const count = async () => Number((await archive.query<{ n: string }>('select count(*) as n from history.goods'))[0]?.n)

test('a file makes one: each change becomes a row of the columns, in order; exported and planned again it is empty', async () => {
  const file = { change_retentions: [GOODS] }
  assert.deepEqual(told(await config('plan', file)), ['create change_retention goods'])
  const applied = await config('apply', file)
  assert.equal(applied.status, 200, JSON.stringify(applied.body))
  assert.deepEqual(applied.body.resources[0], { resource_type: 'change_retention', id: applied.body.resources[0].id, ...GOODS })
  const [{ oid }] = (await source.query<{ oid: string }>(`select 'goods'::regclass::oid::text as oid`)) as [{ oid: string }]
  await source.query(`begin; select pg_logical_emit_message(true, 'tailrace:transaction_annotations.set', '{"by": "u-9"}');
    insert into goods values (1, 'a', 9007199254740993, 19.90, '{"x": null}'); commit`)
  await source.query('update goods set price = 17.50 where id = 1')
  await source.query('delete from goods where id = 1')
  await until('three rows', async () => (await count()) === 3)
  const kept = await rows()
  assert.deepEqual(
    kept.map(({ action, changes, record_pk, transaction_annotations, source_table_schema, source_table_name, source_table_oid }) => [action, changes, record_pk, transaction_annotations, source_table_schema, source_table_name, source_table_oid]),
    [
      ['insert', null, '1', { by: 'u-9' }, 'public', 'goods', oid],
      ['update', { price: '19.90' }, '1', null, 'public', 'goods', oid],
      ['delete', null, '1', null, 'public', 'goods', oid],
    ],
  ) // prettier-ignore
  const [{ text }] = (await archive.query<{ text: string }>('select record::text as text from history.goods order by id limit 1')) as [{ text: string }] // prettier-ignore
  assert.match(text, /"n": 9007199254740993/)
  assert.match(text, /"price": "19.90"/)
  assert.match(text, /"data": \{"x": null\}/)
  for (const [i, row] of kept.entries()) {
    assert.ok(i === 0 || BigInt(row['seq']) > BigInt(kept[i - 1]?.['seq']))
    assert.ok(row['committed_at'] instanceof Date && row['inserted_at'] >= row['committed_at'])
  }
  assert.equal(new Set(kept.map((row) => row['source_database_id'])).size, 1)
  const { yaml } = (await get('/api/config/export')).body
  assert.deepEqual(parse(yaml).change_retentions, [GOODS])
  assert.deepEqual(parse(yaml).sinks.map(({ name }: { name: string }) => name), ['goods']) // prettier-ignore
  for (const again of [yaml, file]) assert.deepEqual(told(await config('plan', again)), [])
})

test('it is listed, read, changed and deleted by its own routes, and is no sink', async () => {
  const { body: list } = await get('/api/change_retentions')
  assert.deepEqual(list.data.map(({ name }: { name: string }) => name), ['goods']) // prettier-ignore
  const { body: one } = await get('/api/change_retentions/goods')
  const { id, health, ...fields } = one
  assert.deepEqual(fields, { ...GOODS, status: 'active', actions: ['insert', 'update', 'delete'], filters: [], retention: null })
  assert.ok(health.checks.some(({ name }: { name: string }) => name === 'Destination insert'))
  assert.equal(health.name, 'Change retention health')
  assert.equal((await get(`/api/sinks/${id}`)).status, 404)
  assert.equal((await get('/api/sinks')).body.data.length, 1)
  assert.equal((await get('/api/sinks/goods')).body.destination.type, 'sequin_stream')
  assert.equal((await post('/api/sinks', { name: 'x', database: 'source', destination: { type: 'change_retention' } })).status, 422)
  const other = {
    ...GOODS,
    name: 'other',
    actions: ['insert'],
    filters: [{ column_name: 'shop', operator: 'in', comparison_value: ['a'] }],
    retention: '30d',
  }
  const asSequinExports = { ...other, id: '00000000-0000-4000-8000-000000000000', filters: [{ column_name: 'shop', operator: '==', comparison_value: 'a' }, { column_name: 'n', operator: 'not_null', comparison_value: null }] } // prettier-ignore
  assert.deepEqual((await config('plan', { change_retentions: [asSequinExports] })).body.changes[0].new.filters.map(({ operator }: { operator: string }) => operator), ['=', 'is not null']) // prettier-ignore
  const made = await post('/api/change_retentions', other)
  assert.equal(made.status, 200, JSON.stringify(made.body))
  assert.deepEqual(parse((await get('/api/config/export')).body.yaml).change_retentions.find(({ name }: { name: string }) => name === 'other'), other) // prettier-ignore
  assert.equal((await post('/api/change_retentions/other/test_connection', {})).body.success, true)
  const edited = await patch('/api/change_retentions/other', { filters: [], retention: null, status: 'paused', actions: ['insert', 'delete'] }) // prettier-ignore
  assert.deepEqual(
    [edited.status, edited.body.filters, edited.body.retention, edited.body.status, edited.body.actions],
    [200, [], null, 'paused', ['insert', 'delete']],
  )
  const back = await patch('/api/change_retentions/other', { ...edited.body, status: 'active' })
  assert.equal(back.status, 200, JSON.stringify(back.body))
  const refused: [object, string, RegExp][] = [
    [{ source_database: 'none' }, '', /no database "none"/],
    [{ destination_database: 'none' }, 'destination_database', /"none", which does not exist/],
    [{ source_table_name: 'none' }, 'source_table_name', /public\.none, which the source database does not have/],
    [{ filters: [{ column_name: 'none', operator: 'is null' }] }, 'filters', /the column none, which public\.goods does not have/],
    [{ filters: [{ column_name: 'shop', operator: 'like', comparison_value: 'a' }] }, 'filters', /./],
    [{ filters: [{ column_name: 'shop', operator: '=' }] }, 'filters', /needs a comparison_value/],
    [{ retention: '1ms' }, 'retention', /at least 1s/],
    [{ retention: 'long' }, 'retention', /./],
    [{ colour: 'red' }, 'colour', /./],
    [{ name: 'goods' }, 'name', /is taken/],
    [{ destination_database: 'source', destination_table_schema: 'public' }, 'destination_table_name', /whose changes are kept/],
  ]
  for (const [wrong, field, reason] of refused) {
    const { status, body } = await post('/api/change_retentions', { ...GOODS, name: 'wrong', ...wrong })
    assert.ok(status === 422 || (field === '' && status === 404), JSON.stringify([wrong, status, body]))
    assert.match(field === '' ? body.summary : JSON.stringify(body.validation_errors[field]).replaceAll('\\', ''), reason)
  }
  assert.deepEqual((await service.delete('/api/change_retentions/other')).body, { id: made.body.id, deleted: true })
  assert.equal((await get('/api/change_retentions/other')).status, 404)
})

test('what a filter leaves out is not written, and all else goes on', async () => {
  await archive.query('delete from history.goods')
  const { status } = await patch('/api/change_retentions/goods', {
    filters: [
      { column_name: 'shop', operator: '=', comparison_value: 'b', field_type: 'cistring' },
      { column_name: 'data', operator: '>', comparison_value: 4, field_path: 'deep.n' },
    ],
  })
  assert.equal(status, 200)
  await source.query(
    `insert into goods (id, shop, data) select i, case when i % 2 = 0 then 'B' else 'a' end, jsonb_build_object('deep', jsonb_build_object('n', i)) from generate_series(1, 10) i`,
  )
  await source.query(`insert into goods (id, shop, data) values (99, 'b', '{"deep": {"n": 100}}')`)
  await until('the last row', async () => (await rows(`record_pk = '99'`)).length === 1)
  assert.deepEqual((await rows()).map((row) => row['record_pk']), ['6', '8', '10', '99']) // prettier-ignore
  assert.equal((await patch('/api/change_retentions/goods', { filters: [] })).status, 200)
})

test('killed in the midst, every change is there once, and in order', async () => {
  await archive.query('delete from history.goods')
  await source.query('delete from goods where true')
  await until('the deletes', async () => (await count()) === 11)
  await archive.query('delete from history.goods')
  const TRANSACTIONS = 60
  const PER = 40
  let written = 0
  const writing = (async () => {
    for (let t = 0; t < TRANSACTIONS; t++) {
      await source.query(`insert into goods (id, shop) select $1::int * ${PER} + i, 'k' from generate_series(1, ${PER}) i`, [t])
      written = t + 1
    }
  })()
  for (let kill = 1; kill <= 3; kill++) {
    await until('some rows', async () => (await count()) >= (kill * TRANSACTIONS * PER) / 8)
    await service.kill()
    await service.startReady()
  }
  await writing
  assert.equal(written, TRANSACTIONS)
  await until('all rows', async () => (await count()) >= TRANSACTIONS * PER)
  await source.query(`insert into goods (id, shop) values (1000000, 'end')`)
  await until('the end', async () => (await rows(`record_pk = '1000000'`)).length === 1)
  const [all] = await archive.query<{ n: string; unsorted: string; keys: string }>(`select count(*) as n, count(distinct record_pk) as keys,
      count(*) filter (where seq <= before) as unsorted from (select *, lag(seq) over (order by id) as before from history.goods where action = 'insert') r`)
  assert.deepEqual(all, { n: String(TRANSACTIONS * PER + 1), keys: String(TRANSACTIONS * PER + 1), unsorted: '0' })
})

test('rows beyond the retention are deleted in batches, those of other tables stay', async () => {
  await archive.query(`insert into history.goods (seq, source_database_id, source_table_oid, source_table_schema, source_table_name, record_pk, record, action, committed_at, inserted_at)
    select 1, (select source_database_id from history.goods limit 1), 1, 'public', 'elsewhere', 'x', '{}', 'insert', now() - interval '1 day', now()`)
  assert.ok((await count()) > 2000)
  assert.equal((await patch('/api/change_retentions/goods', { retention: '2s' })).status, 200)
  await until('the deletes', async () => (await count()) === 1)
  assert.deepEqual((await rows()).map((row) => row['record_pk']), ['x']) // prettier-ignore
  assert.equal((await patch('/api/change_retentions/goods', { retention: null })).status, 200)
})

test('health says what is wrong with the table, with the SQL that makes it; what was committed meanwhile comes then', async () => {
  const parts = { ...GOODS, name: 'parts', source_table_name: 'part', destination_table_name: 'Parts of all' }
  assert.equal((await post('/api/change_retentions', parts)).status, 200)
  await source.query(`insert into part values (1, 'x')`)
  const insertHealth = async () => {
    const { body } = await get('/api/change_retentions/parts')
    return body.health.checks.find(({ name }: { name: string }) => name === 'Destination insert')
  }
  const missing = await until('an error', async () => {
    const check = await insertHealth()
    return check.status === 'error' ? check.error : undefined
  })
  assert.equal(missing.code, 'DESTINATION_REFUSED')
  const [, sql] = /the table history\.Parts of all of the database "archive" does not exist\. Remedy: (.*)$/.exec(missing.message) ?? []
  assert.ok(sql)
  const test = await post('/api/change_retentions/parts/test_connection', {})
  assert.deepEqual([test.status, test.body.success], [422, false])
  // as tables made for pg_partman are, which have no annotations
  await archive.query(sql.replace(/create unique index [^;]*;/, '').replace(', transaction_annotations jsonb', ''))
  const ambiguous = await until('another error', async () => {
    const { error } = await insertHealth()
    return error?.message.includes('no unique index') ? error : undefined
  })
  await archive.query(/Remedy: (.*)$/.exec(ambiguous.message)?.[1] ?? '')
  await until('its row', async () => (await archive.query('select from history."Parts of all"')).length === 1)
  const [row] = await archive.query<Row>('select * from history."Parts of all"')
  assert.equal(row?.['record_pk'], '1,x')
  await until('health', async () => (await insertHealth()).status === 'healthy')
})

test('a database that a change retention writes to is not deleted, and may be renamed', async () => {
  const { status, body } = (await service.delete('/api/postgres_databases/archive')) as Answer
  assert.equal(status, 422)
  assert.match(body.summary, /the database "archive" is in use by the change retentions "(?:goods|parts)", "(?:goods|parts)"/)
  assert.equal((await patch('/api/postgres_databases/archive', { name: 'history' })).status, 200)
  assert.equal((await get('/api/change_retentions/parts')).body.destination_database, 'history')
  await source.query(`insert into part values (2, 'y')`)
  await until('its row', async () => (await archive.query('select from history."Parts of all"')).length === 2)
})
