/** Backfills managed over HTTP, by an engine that runs them. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from '../../services/fast-check.ts'
import { until } from '../../waiting.ts'
import { ITEMS, upTo } from '../../actors/shop.ts'
import { OTHER_TOKEN, serveShop, type Called, type ShownBackfill } from './served-shop.ts'

const NOBODY = '99999999-9999-4999-8999-999999999999'
const BACKFILLS = '/sinks/a/backfills'

const reasonsOf = ({ status, body }: Called) => [status, body.validation_errors]

test('a backfill is begun with an empty body, watched to its end, listed and deleted', async () => {
  await using s = await serveShop([`name: a, ${ITEMS}`])
  await s.shop.insert(1, 50)
  await s.shop.take('a', 50)
  const { status, body: begun } = await s.call('POST', BACKFILLS)
  assert.equal(status, 200)
  assert.deepEqual(begun, {
    id: begun.id,
    sink_consumer: 'a',
    state: 'active',
    table: 'public.item',
    sort_column: null,
    start_position: null,
    where: null,
    max_timeout_ms: 5_000,
    rows_initial_count: null,
    rows_processed_count: 0,
    rows_ingested_count: 0,
    rows_per_second: null,
    seconds_left: null,
    waiting: null,
    error: null,
    inserted_at: begun.inserted_at,
    updated_at: begun.updated_at,
    completed_at: null,
    canceled_at: null,
    failed_at: null,
  })
  assert.match(begun.inserted_at, /^\d{4}-\d\d-\d\dT.*Z$/)
  assert.deepEqual(await s.shop.take('a', 50), upTo(1, 50))
  const done = await until('the backfill is completed', async () => {
    const { body } = await s.call('GET', `${BACKFILLS}/${begun.id}`)
    return body.state === 'completed' && body
  })
  assert.deepEqual([done.rows_processed_count, done.rows_ingested_count], [50, 50])
  assert.ok(done.completed_at >= done.inserted_at)
  assert.deepEqual((await s.call('GET', `${BACKFILLS}/${begun.id.toUpperCase()}`)).body, done)
  const { body: second } = await s.call('POST', BACKFILLS, { table: 'item', state: 'active', sort_column: null })
  assert.deepEqual(await s.shop.take('a', 50), upTo(1, 50), 'the same rows come again')
  await until('the second is completed', async () => (await s.call('GET', `${BACKFILLS}/${second.id}`)).body.state === 'completed')
  const listed = (await s.call('GET', BACKFILLS)).body.data as ShownBackfill[]
  assert.deepEqual(
    listed.map(({ id, state }) => [id, state]),
    [
      [second.id, 'completed'],
      [begun.id, 'completed'],
    ],
  )
  assert.deepEqual((await s.call('DELETE', `${BACKFILLS}/${begun.id}`)).body, { id: begun.id, deleted: true })
  assert.equal((await s.call('GET', `${BACKFILLS}/${begun.id}`)).status, 404)
  const { paths } = (await s.call('GET', '/openapi.json')).body
  assert.deepEqual(Object.keys(paths['/api/sinks/{id_or_name}/backfills']).toSorted(), ['get', 'post'])
  assert.deepEqual(Object.keys(paths['/api/sinks/{id_or_name}/backfills/{backfill_id}']).toSorted(), ['delete', 'get', 'patch', 'put'])
})

test('one that is disabled waits; it is paused, resumed and cancelled, and the sink shows those that have not ended', async () => {
  await using s = await serveShop([`name: a, ${ITEMS}`, `name: b, ${ITEMS}`])
  assert.equal((await s.call('PATCH', '/sinks/a', { status: 'disabled' })).status, 200)
  const { body: begun } = await s.call('POST', BACKFILLS)
  assert.deepEqual([begun.state, begun.waiting], ['active', 'the sink is disabled'])
  const one = `${BACKFILLS}/${begun.id}`
  const shown = async () => {
    const [list, single] = [await s.call('GET', '/sinks'), await s.call('GET', '/sinks/a')]
    assert.deepEqual(list.body.data.find(({ name }: { name: string }) => name === 'b').active_backfills, [])
    assert.deepEqual(list.body.data.find(({ name }: { name: string }) => name === 'a').active_backfills, single.body.active_backfills)
    return single.body.active_backfills
  }
  assert.deepEqual(await shown(), [begun])
  const paused = await s.call('PATCH', one, { state: 'paused' })
  assert.deepEqual([paused.status, paused.body.state, paused.body.waiting], [200, 'paused', null])
  assert.deepEqual(await shown(), [paused.body])
  assert.equal((await s.call('PATCH', one, { state: 'paused' })).body.state, 'paused', 'once more is no change')
  assert.deepEqual(reasonsOf(await s.call('POST', BACKFILLS)), [422, { table: ['has a backfill that is already active'] }])
  assert.equal((await s.call('PUT', one, { state: 'active' })).body.state, 'active')
  const cancelled = await s.call('PUT', one, { state: 'cancelled' })
  assert.equal(cancelled.body.state, 'cancelled')
  assert.ok(cancelled.body.canceled_at)
  assert.deepEqual(await shown(), [])
  assert.deepEqual(reasonsOf(await s.call('PATCH', one, { state: 'active' })), [422, { state: ["can't go from cancelled to active"] }])
  for (const state of ['completed', 'failed', 'canceled', 1])
    assert.deepEqual((await s.call('PATCH', one, { state })).status, 422, `${state}`)
  assert.deepEqual(reasonsOf(await s.call('PATCH', one, {})), [422, { state: ['is missing'] }])
  assert.equal((await s.call('PATCH', one, { state: 'paused', rows: 1 })).status, 422)
  const { body: last } = await s.call('POST', BACKFILLS)
  await s.call('PATCH', '/sinks/a', { source: { include_tables: ['other'] }, status: 'active' })
  const failed = await until('it has failed', async () => {
    const { body } = await s.call('GET', `${BACKFILLS}/${last.id}`)
    return body.state === 'failed' && body
  })
  assert.match(failed.error.message, /the sink does not take public\.item any more/)
  assert.deepEqual((await s.call('DELETE', `${BACKFILLS}/${last.id}`)).body, { id: last.id, deleted: true })
  assert.deepEqual(await shown(), [])
})

test('one that stands still says why, in its own answers and with its sink', async () => {
  await using s = await serveShop([`name: a, ${ITEMS}`])
  await s.call('PATCH', '/sinks/a', { status: 'disabled' })
  await s.shop.insert(1, 20)
  const { body: begun } = await s.call('POST', BACKFILLS)
  const other = await s.shop.db.connect()
  try {
    await other.query('begin; lock table item')
    await s.call('PATCH', '/sinks/a', { status: 'active' })
    const words = /^it failed for now, and is tried again: .*lock timeout/
    for (const look of [
      async () => (await s.call('GET', `${BACKFILLS}/${begun.id}`)).body,
      async () => (await s.call('GET', BACKFILLS)).body.data[0],
      async () => (await s.call('GET', '/sinks/a')).body.active_backfills[0],
    ])
      await until('it says what it waits for', async () => words.test((await look()).waiting))
  } finally {
    await other.end()
  }
  assert.deepEqual(await s.shop.take('a', 20), upTo(1, 20))
  const done = await until('it is completed', async () => {
    const { body } = await s.call('GET', `${BACKFILLS}/${begun.id}`)
    return body.state === 'completed' && body
  })
  assert.equal(done.waiting, null)
})

test('several tables are begun together, or none of them; a request without a table says what to send', async () => {
  await using s = await serveShop(['name: a, source: {}', `name: b, ${ITEMS}`])
  const nothing = await s.call('POST', BACKFILLS, {})
  assert.equal(nothing.status, 422)
  assert.match(nothing.body.summary, /table is missing.*\{"tables": "all"\}/)
  const { status, body } = await s.call('POST', BACKFILLS, { tables: 'all' })
  assert.equal(status, 200)
  assert.deepEqual(
    body.data.map(({ table, sink_consumer }: ShownBackfill) => [table, sink_consumer]),
    [
      ['public.item', 'a'],
      ['public.other', 'a'],
    ],
  )
  await until('both are completed', async () =>
    (await s.call('GET', BACKFILLS)).body.data.every(({ state }: ShownBackfill) => state === 'completed'),
  )
  const both = await s.call('POST', '/sinks/b/backfills', { tables: ['item', 'public.item'] })
  assert.deepEqual(
    both.body.data.map(({ table }: ShownBackfill) => table),
    ['public.item'],
    'a table that is named twice is backfilled once',
  )
  const mixed = await s.call('POST', BACKFILLS, { tables: ['item', 'nosuch'] })
  assert.equal(mixed.status, 422)
  assert.match(mixed.body.validation_errors.tables[0], /public\.nosuch can't be backfilled: there is no such table/)
  const { body: odd } = await s.call('POST', BACKFILLS, { tables: ['item', 'other'], where: 'length(name) > 1' })
  assert.match(odd.validation_errors.where.join(), /column "name" does not exist \(of public\.other\)$/)
  assert.equal((await s.call('GET', BACKFILLS)).body.data.length, 2, 'nothing was begun')
})

test('what can not be is refused at its field; another account and another sink know nothing of a backfill', async () => {
  await using s = await serveShop([`name: a, ${ITEMS}`, `name: b, ${ITEMS}`, 'name: all, source: {}'])
  const refused: [body: unknown, field: string, reason: RegExp][] = [
    [{ table: 'public.other' }, 'table', /names public\.other, which the sink does not take/],
    [{ table: 'nosuch' }, 'table', /names public\.nosuch, which the sink does not take/],
    [{ table: 'item', tables: 'all' }, 'tables', /beside table/],
    [{ tables: 'most' }, 'tables', /must be "all" or a list/],
    [{ tables: [] }, 'tables', /at least one item/],
    [{ colour: 'red' }, 'colour', /is not a known field/],
    [{ state: 'paused' }, 'state', /must be "active"/],
    [{ sort_column: 'id' }, 'start_position', /is missing/],
    [{ start_position: 3 }, 'sort_column', /is missing/],
    [{ sort_column: 'colour', start_position: 3 }, 'sort_column', /has no column "colour"/],
    [{ sort_column: 'id', start_position: 'x' }, 'start_position', /invalid input syntax for type integer: "x"/],
    [{ max_timeout_ms: 0 }, 'max_timeout_ms', /at least 1/],
    [{ max_timeout_ms: 600_001 }, 'max_timeout_ms', /at most 600000/],
    [{ where: '' }, 'where', /at least one character/],
  ]
  for (const [body, field, reason] of refused) {
    const answer = await s.call('POST', BACKFILLS, body)
    assert.equal(answer.status, 422, JSON.stringify(body))
    assert.match(answer.body.validation_errors[field]?.[0] ?? JSON.stringify(answer.body), reason)
    assert.match(answer.body.summary, new RegExp(field))
  }
  assert.match((await s.call('POST', '/sinks/all/backfills', { table: 'x.y' })).body.summary, /x\.y can't be backfilled: there is no such/)
  assert.equal((await s.call('POST', '/sinks/all/backfills', { table: 'a\0b' })).status, 422)
  assert.equal((await s.call('POST', BACKFILLS, [])).status, 400)
  assert.deepEqual((await s.call('GET', BACKFILLS)).body, { data: [] })
  const { body } = await s.call('POST', BACKFILLS)
  for (const [method, path, token] of [
    ['GET', '/sinks/nosuch/backfills'],
    ['POST', '/sinks/nosuch/backfills'],
    ['GET', `${BACKFILLS}/${NOBODY}`],
    ['GET', `${BACKFILLS}/x`],
    ['PATCH', `${BACKFILLS}/${NOBODY}`],
    ['DELETE', `${BACKFILLS}/${NOBODY}`],
    ['GET', `/sinks/b/backfills/${body.id}`],
    ['PATCH', `/sinks/b/backfills/${body.id}`],
    ['DELETE', `/sinks/b/backfills/${body.id}`],
    ['GET', `${BACKFILLS}/${body.id}`, OTHER_TOKEN],
  ] as const) {
    const answer = await s.call(method, path, method === 'PATCH' ? { state: 'paused' } : undefined, token)
    assert.equal(answer.status, 404, `${method} ${path}`)
    assert.equal(typeof answer.body.summary, 'string')
  }
})

test('where is one expression, which Postgres has looked at; nothing else comes through it', async () => {
  await using s = await serveShop([`name: a, ${ITEMS}`])
  await s.shop.insert(1, 20)
  await s.shop.take('a', 20)
  const hostile: [where: string, words: RegExp][] = [
    ['true) or pg_sleep(1) is null --', /syntax error at or near "\)"/],
    ['1=1); drop table item', /syntax error at or near "\)"/],
    ['1=1; drop table item', /cannot insert multiple commands/],
    ['1=1;', /syntax error at or near ";"/],
    ['true) or (true', /syntax error at or near "\)"/],
    ['true /*', /unterminated \/\* comment/],
    ["name = '", /unterminated quoted string/],
    ['true union select 1', /each UNION query must have the same number|syntax error/],
    ['true limit 1', /syntax error at or near "limit"/],
    ['true order by id', /syntax error at or near "order"/],
    ['select true', /syntax error at or near "select"/],
    ['colour = 1', /column "colour" does not exist/],
    ['id', /argument of WHERE must be type boolean/],
    ['true, true', /syntax error|record/],
    ['count(*) > 1', /aggregate functions are not allowed/],
    ['id = $1', /parameter/],
    ["nextval('nosuch') > 1", /"nosuch" does not exist/],
    ['exists (with gone as (delete from item returning 1) select from gone)', /WITH clause containing a data-modifying statement/],
    ['a\0b', /PostgreSQL/],
  ]
  for (const [where, words] of hostile) {
    const answer = await s.call('POST', BACKFILLS, { where })
    assert.equal(answer.status, 422, where)
    assert.match(answer.body.validation_errors.where?.[0], /^is refused by PostgreSQL: /)
    assert.match(answer.body.validation_errors.where?.[0], words)
  }
  assert.equal((await s.shop.db.query('select from item')).length, 20)
  for (const [where, ids] of [
    ["name = 'n3' or name = 'n4' -- these", [3, 4]],
    ["(id > 18) and ')' <> '('", [19, 20]],
    ['id in (select max(id) from item)', [20]],
    ['t.id = 1 and (select true)', [1]],
    ['id = 2\n', [2]],
  ] as const) {
    const { status, body } = await s.call('POST', BACKFILLS, { where })
    assert.deepEqual([status, body.where], [200, where])
    assert.deepEqual(await s.shop.take('a', ids.length), ids)
    await until('it is completed', async () => (await s.call('GET', `${BACKFILLS}/${body.id}`)).body.state === 'completed')
  }
  await s.shop.nothingMore('a')
})

test('where calls no function that could change something, and one that does so later fails its backfill by name', async () => {
  await using s = await serveShop([`name: a, ${ITEMS}`])
  await s.shop.insert(1, 20)
  await s.shop.take('a', 20)
  await s.shop.db.query(`create sequence n; create schema own;
    create function own."Odd"(id int, among int) returns boolean language plpgsql as 'begin insert into other values (id); return true; end';
    create function fine(id int) returns boolean language sql stable return id > 18; create function own.fine(id int) returns boolean return true`)
  const hostile: [where: string, words: RegExp][] = [
    [`set_config('DateStyle', 'German', false) is not null`, /calls pg_catalog\.set_config, which is volatile: .*use one that is stable/],
    [`exists (select from (values (Set_Config ('search_path', 'x', true))) v)`, /calls pg_catalog\.set_config/],
    [`"set_config"('statement_timeout', '0', false) = ''`, /calls pg_catalog\.set_config/],
    [`pg_catalog . set_config('role', 'none', false) = ''`, /calls pg_catalog\.set_config/],
    [`nextval('n') > 0`, /calls pg_catalog\.nextval/],
    [`pg_sleep(1) is null`, /calls pg_catalog\.pg_sleep/],
    [`pg_advisory_lock(1) is null`, /calls pg_catalog\.pg_advisory_lock/],
    [`pg_terminate_backend(pg_backend_pid())`, /calls pg_catalog\.pg_terminate_backend/],
    [`own."Odd"(id, 2)`, /calls own\.Odd, .*run: alter function "own"\."Odd"\(id integer, among integer\) stable;/],
    ['own.fine(id)', /alter function "own"\."fine"\(id integer\) stable;/],
  ]
  for (const [where, words] of hostile) {
    const answer = await s.call('POST', BACKFILLS, { where })
    assert.equal(answer.status, 422, where)
    assert.match(answer.body.validation_errors.where?.[0], words)
  }
  const { body } = await s.call('POST', BACKFILLS, { where: 'fine(id) and name in (select name from item)' })
  assert.deepEqual(await s.shop.take('a', 2), [19, 20])
  await until('it is completed', async () => (await s.call('GET', `${BACKFILLS}/${body.id}`)).body.state === 'completed')
  await s.call('PATCH', '/sinks/a', { status: 'disabled' })
  await s.shop.db.query('alter function own."Odd" stable')
  const { body: late } = await s.call('POST', BACKFILLS, { where: 'own."Odd"(id, 2)' })
  await s.shop.db.query('alter function own."Odd" volatile')
  await s.call('PATCH', '/sinks/a', { status: 'active' })
  const failed = await until('it has failed', async () => {
    const { body: now } = await s.call('GET', `${BACKFILLS}/${late.id}`)
    return now.state === 'failed' && now
  })
  assert.match(failed.error.message, /cannot execute INSERT in a read-only transaction \(25006\)/)
  assert.deepEqual(await s.shop.db.query('select from other'), [])
})

test('a part of a table is read from a position of a column on', async () => {
  await using s = await serveShop([`name: a, ${ITEMS}`])
  await s.shop.insert(1, 20)
  await s.shop.take('a', 20)
  const { body } = await s.call('POST', BACKFILLS, { sort_column: 'id', start_position: 18, max_timeout_ms: 100 })
  assert.deepEqual([body.sort_column, body.start_position, body.max_timeout_ms], ['id', '18', 100])
  assert.deepEqual(await s.shop.take('a', 3), [18, 19, 20])
  await s.shop.nothingMore('a')
})

test('a sink is created with its rows; one that exists gets none by an update', async () => {
  await using s = await serveShop([`name: a, ${ITEMS}`])
  await s.shop.insert(1, 20)
  const sink = { name: 'new', database: s.shop.db.name, destination: { type: 'sequin_stream' } }
  const made = await s.call('POST', '/sinks', { ...sink, initial_backfill: true })
  assert.equal(made.status, 200)
  assert.deepEqual(made.body.active_backfills.map(({ table }: ShownBackfill) => table).toSorted(), ['public.item', 'public.other'])
  assert.deepEqual(await s.shop.take('new', 20), upTo(1, 20))
  await s.shop.insert(21, 25)
  assert.deepEqual(await s.shop.take('new', 5), upTo(21, 25))
  const partial = { table: 'item', type: 'partial', sort_column: 'id', start_position: 24 }
  const part = await s.call('POST', '/sinks', { ...sink, name: 'part', source: { include_tables: ['item'] }, initial_backfill: [partial] })
  assert.equal(part.body.active_backfills[0].sort_column, 'id')
  assert.deepEqual(await s.shop.take('part', 2), [24, 25])
  for (const none of [null, false, []]) {
    const name = `none-${JSON.stringify(none).replaceAll(/\W/g, '_')}`
    assert.deepEqual((await s.call('POST', '/sinks', { ...sink, name, initial_backfill: none })).body.active_backfills, [])
    assert.equal((await s.call('PATCH', `/sinks/${name}`, { initial_backfill: none })).status, 200)
  }
  const late = await s.call('PATCH', '/sinks/a', { initial_backfill: true })
  assert.deepEqual([late.status, Object.keys(late.body.validation_errors)], [422, ['initial_backfill']])
  const refused: [unknown, string][] = [
    [[{ table: 'nosuch' }], 'table'],
    [[{ table: 'item', type: 'partial' }], 'sort_column'],
    [[{ table: 'item', type: 'partial', sort_column: 'colour', start_position: 1 }], 'sort_column'],
    [[{ table: 'item', type: 'whole' }], 'type'],
  ]
  for (const [initial, field] of refused) {
    const answer = await s.call('POST', '/sinks', { ...sink, name: 'refused', initial_backfill: initial })
    assert.equal(answer.status, 422)
    assert.ok(answer.body.validation_errors.initial_backfill?.['0']?.[field], JSON.stringify(answer.body))
    assert.equal((await s.call('GET', '/sinks/refused')).status, 404)
  }
})

test('one that failed says why, stops no other, and is resumed behind its last durable rows when that is mended', async () => {
  await using s = await serveShop(['name: a, source: {}'])
  await s.shop.db.query(`insert into item select i, case i when 2500 then 'x' else '1' end from generate_series(1, 3000) i`)
  await s.shop.take('a', 3_000)
  const { body: begun } = await s.call('POST', BACKFILLS, { table: 'item', where: 'name::int > 0' })
  const one = `${BACKFILLS}/${begun.id}`
  const failed = await until('it has failed', async () => {
    const { body } = await s.call('GET', one)
    return body.state === 'failed' && body
  })
  assert.equal(failed.error.code, 'BACKFILL_REFUSED')
  assert.match(failed.error.message, /invalid input syntax for type integer/)
  assert.ok(failed.failed_at)
  const { body: other } = await s.call('POST', BACKFILLS, { table: 'other' })
  await until('the other is completed', async () => (await s.call('GET', `${BACKFILLS}/${other.id}`)).body.state === 'completed')
  await s.call('PATCH', '/sinks/a', { status: 'disabled' })
  const { body: second } = await s.call('POST', BACKFILLS, { table: 'item' })
  const late = await s.call('PATCH', one, { state: 'active' })
  assert.deepEqual(reasonsOf(late), [422, { state: ['another backfill of the table is already active'] }])
  await s.call('DELETE', `${BACKFILLS}/${second.id}`)
  assert.equal((await s.call('PATCH', one, { state: 'paused' })).status, 422)
  await s.shop.db.query(`update item set name = '2' where id = 2500`)
  await s.call('PATCH', '/sinks/a', { status: 'active' })
  const { body: resumed } = await s.call('PATCH', one, { state: 'active' })
  assert.deepEqual([resumed.state, resumed.error, resumed.failed_at], ['active', null, null])
  const done = await until('it is completed', async () => {
    const { body } = await s.call('GET', one)
    return body.state === 'completed' && body
  })
  assert.equal(done.rows_processed_count, 3_000)
  const ids = await s.shop.take('a', 3_000)
  assert.deepEqual([...new Set(ids)], upTo(1, 3_000))
})

test('whatever is sent is begun or refused with reasons, and never a failure of ours', async () => {
  await using s = await serveShop([`name: a, ${ITEMS}`])
  await s.call('PATCH', '/sinks/a', { status: 'disabled' })
  const text = fc.oneof(
    fc.string({ unit: 'binary', maxLength: 40 }),
    fc.constantFrom('item', 'public.item', 'id', 'true', '.', 'a.', '%s', "'"),
  )
  const value = fc.oneof(
    text,
    fc.integer(),
    fc.boolean(),
    fc.constant(null),
    fc.array(text, { maxLength: 3 }),
    fc.constant('all'),
    fc.double(),
  )
  const keys = ['table', 'tables', 'state', 'sort_column', 'start_position', 'where', 'max_timeout_ms', 'id', '__proto__', 'toString']
  const body = fc.dictionary(fc.constantFrom(...keys), value, { maxKeys: 4 })
  await fc.assert(
    fc.asyncProperty(fc.constantFrom('POST', 'PATCH'), body, async (method, given) => {
      const { status, body: answer } = await s.call(method, method === 'POST' ? BACKFILLS : `${BACKFILLS}/${NOBODY}`, given)
      assert.ok(status < 500, JSON.stringify(answer))
      for (const { id } of status === 200 ? (answer.data ?? [answer]) : []) await s.call('DELETE', `${BACKFILLS}/${id}`)
    }),
    { numRuns: 150 },
  )
})
