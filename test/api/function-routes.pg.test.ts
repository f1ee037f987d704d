/** Functions managed over HTTP, on a real state database and with real sandboxes. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { RECENT, serve } from './served-functions.ts'

test('a function is created, read by id and name, changed, renamed with the sinks that have it, and deleted when no sink has it', async () => {
  await using s = await serve()
  const code = 'export default (a: string, record: { id: number }) => record.id'
  const made = await s.call('POST', '/functions', { name: 'doc', type: 'transform', code })
  assert.equal(made.status, 200)
  assert.deepEqual(made.body, { id: made.body.id, name: 'doc', type: 'transform', description: null, code, used_by: ['goods'] })
  for (const key of ['doc', made.body.id]) assert.deepEqual((await s.call('GET', `/functions/${key}`)).body, made.body)
  assert.deepEqual((await s.call('GET', '/functions')).body, { data: [made.body] })
  assert.deepEqual((await s.call('GET', '/functions', undefined, 'another-token')).body, { data: [] })
  assert.equal((await s.call('GET', '/functions/doc', undefined, 'another-token')).status, 404)
  const again = await s.call('POST', '/functions', { name: 'doc', type: 'path', path: 'record.id' })
  assert.deepEqual([again.status, again.body.validation_errors], [422, { name: ['is taken'] }])
  const changed = await s.call('PATCH', '/functions/doc', { name: 'document', description: 'what is searched' })
  assert.deepEqual([changed.body.name, changed.body.code, changed.body.used_by], ['document', code, ['goods']])
  assert.equal(s.cache.sinks[0]?.transform, 'document')
  assert.deepEqual((await s.call('PUT', '/functions/document', changed.body)).body, changed.body) // an answer can be sent back
  const used = await s.call('DELETE', '/functions/document')
  assert.deepEqual(
    [used.status, used.body.validation_errors],
    [422, { name: ['is attached to the sink "goods": set "none" there to detach it'] }],
  )
  const kind = await s.call('PATCH', '/functions/document', { type: 'filter' })
  assert.deepEqual(
    [kind.status, kind.body.validation_errors],
    [422, { transform: ['of the sink "goods" names "document", which is a function of type filter'] }],
  )
  const free = await s.call('POST', '/functions', { name: 'free', type: 'path', path: 'record.id' })
  assert.equal(free.body.path, 'record.id')
  assert.deepEqual((await s.call('DELETE', '/functions/free')).body, { id: free.body.id, deleted: true })
  assert.equal((await s.call('GET', '/functions/free')).status, 404)
  assert.equal(s.reloads(), 5)
})

test('what can not be built is refused on its field with line and column, and nothing is stored', async () => {
  await using s = await serve()
  const refused: [body: object, field: string, reason: RegExp][] = [
    [{ type: 'transform', code: '\nexport default (a, r) => {' }, 'code', /Expected/],
    [{ type: 'transform', code: '\nexport default async () => 1' }, 'code', /not async.*\(line 2, column 1\)/],
    [
      { type: 'transform', code: 'module.exports = (a, r) => r' },
      'code',
      /module is not defined: .*write `export default` \(line 1, column 1\)/,
    ],
    [{ type: 'filter', code: 'import "x"\nexport default () => true' }, 'code', /can not import "x"/],
    [{ type: 'transform', code: `export default () => '${'x'.repeat(10_000)}'` }, 'code', /more than 10000/],
    [{ type: 'transform', code: 'def transform(action, record, changes, metadata) do\n  record\nend' }, 'code', /Elixir/],
    [{ type: 'transform', path: 'record.id' }, 'code', /is missing/],
    [{ type: 'path', path: 'row.id' }, 'path', /must begin with/],
    [{ type: 'path', path: 'record.tags[0].id' }, 'path', /can not go into lists/],
    [{ type: 'routing', code: 'export default () => ({})' }, 'sink_type', /is missing/],
    [{ type: 'routing', sink_type: 'stream', code: 'export default () => ({})' }, 'sink_type', /must be one of webhook/],
    [{ type: 'filter', sink_type: 'webhook', code: 'export default () => true' }, 'sink_type', /only of functions of type routing/],
    [{ type: 'enrichment', code: 'select * from goods where id = any($10)' }, 'code', /must contain \$1/],
    [{ type: 'sql', code: 'select 1' }, 'type', /./],
    [{ name: 'none', type: 'path', path: 'record' }, 'name', /./],
    [{ name: 'my key', type: 'path', path: 'record' }, 'name', /may have only letters, digits, "_", "\." and "-"/],
  ]
  for (const [body, field, reason] of refused) {
    const answer = await s.call('POST', '/functions', { name: 'bad', ...body })
    assert.equal(answer.status, 422, JSON.stringify(body).slice(0, 80))
    assert.match(String(answer.body.validation_errors[field]), reason)
  }
  assert.equal(s.cache.functions.length, 0)
})

test('code is tried without being saved: result or error with its place, time and what it printed', async () => {
  await using s = await serve()
  const code =
    'export default (action, record) => {\n  console.log("id", record.id)\n  if (record.id > 1) throw new Error("too big")\n  return { id: record.id }\n}'
  const tried = await s.call('POST', '/functions/test', {
    type: 'transform',
    code,
    messages: [{ record: { id: 1 } }, { record: { id: 2 } }],
  })
  assert.equal(tried.status, 200)
  const [good, bad] = tried.body.data
  assert.deepEqual([good.output, good.logs, good.input.action], [{ id: 1 }, ['id 1'], 'insert'])
  assert.deepEqual(bad.error, { code: 'FUNCTION_FAILED', message: 'Error: too big', line: 3, column: 28 })
  assert.ok(good.time_us >= 0)
  assert.equal(s.cache.functions.length, 0)
  const loop = await s.call('POST', '/functions/test', { type: 'filter', code: 'export default () => { for (;;); }' })
  assert.equal(loop.body.data[0].error.code, 'FUNCTION_TIMEOUT')
  await s.call('POST', '/functions', { name: 'odd', type: 'filter', code: 'export default (a, r) => r.id % 2 === 1' })
  const stored = await s.call('POST', '/functions/odd/test', { messages: [{ record: { id: 1 } }, { record: { id: 2 } }] })
  assert.deepEqual(stored.body.data.map(({ output }: { output: boolean }) => output), [true, false]) // prettier-ignore
  assert.equal((await s.call('POST', '/functions/odd/test')).body.data[0].output, true)
  const odd = await s.call('POST', '/functions/odd/test', { messages: [{ record: { id: 1 }, action: 'insrt' }] })
  assert.deepEqual([odd.status, Object.keys(odd.body.validation_errors)], [422, ['messages']])
})

test('a routing function is tried with what it leaves out, built in or as a sink has it', async () => {
  await using s = await serve()
  const code = 'export default (a, r) => (r.id === 2 ? { index: "own" } : r.id === 3 ? { index_name: "own" } : {})'
  const routing = { name: 'route', type: 'routing', code }
  const body = { ...routing, name: undefined, sink_type: 'meilisearch', messages: [1, 2, 3].map((id) => ({ record: { id } })) }
  const { data } = (await s.call('POST', '/functions/test', body)).body
  assert.deepEqual([data[0].routing, data[0].output], [{ action: 'index' }, {}])
  assert.deepEqual(
    [data[1].error.message, data[1].output],
    ['index is not a known field: known are action, index_name, filter, function, context', { index: 'own' }],
  )
  assert.deepEqual(data[2].routing, { action: 'index', index_name: 'own' })
  const made = await s.call('POST', '/functions', { ...routing, sink_type: 'meilisearch' })
  assert.deepEqual([made.status, made.body.type, made.body.sink_type], [200, 'routing', 'meilisearch'])
  const onSink = await s.call('POST', '/functions/route/test', { sink: 'search', messages: [{ action: 'delete', record: {} }] })
  assert.deepEqual(onSink.body.data[0].routing, { action: 'delete', index_name: 'all' })
  for (const sink of ['goods', 'none-such']) {
    const answer = await s.call('POST', '/functions/route/test', { sink })
    assert.deepEqual([answer.status, Object.keys(answer.body.validation_errors)], [422, ['sink']])
  }
  await s.store.query(`update sink set settings = settings || '{"routing": "route"}' where name = 'search'`)
  await s.reload()
  assert.deepEqual((await s.call('POST', '/functions/route/test')).body.data[0].routing, { action: 'index', index_name: 'all' })
  await s.store.query(`update sink set settings = settings - 'routing' where name = 'search'`)
  await s.reload()
  const moved = await s.call('PATCH', '/functions/route', { sink_type: 'http_push' })
  assert.deepEqual([moved.status, moved.body.sink_type], [200, 'webhook'])
})

test('an enrichment is tried on its database: what it was given, and the row or what Postgres says', async () => {
  await using s = await serve()
  await s.store.query(`create table public.lamp as select 7 as id, 'Lamp' as name`)
  await s.store.query('alter table public.lamp add primary key (id)')
  const code = 'select id, name, 10 / (id - 8) as x from public.lamp where id = any($1)'
  assert.equal((await s.call('POST', '/functions', { name: 'lamps', type: 'enrichment', code })).status, 200)
  const message = (key: string, table = 'lamp') => ({
    record: {},
    metadata: { table_schema: 'public', table_name: table, record_pks: [key] },
  })
  const messages = [message('7'), message('9'), message('7', 'nosuch')]
  const { body } = await s.call('POST', '/functions/lamps/test', { database: 'shop', messages })
  const [found, none, gone] = body.data
  assert.deepEqual([found.parameters, found.output], [[['7']], { id: 7, name: 'Lamp', x: -10 }])
  assert.deepEqual([none.parameters, none.output, none.error], [[['9']], null, undefined])
  assert.match(gone.error.message, /table public\.nosuch, which does not exist/)
  await s.store.query('update public.lamp set id = 8')
  const bad = await s.call('POST', '/functions/test', { type: 'enrichment', code, database: 'shop', messages: [message('8')] })
  assert.match(bad.body.data[0].error.message, /division by zero/)
  for (const body of [{ messages }, { messages, database: 'nosuch' }])
    assert.equal((await s.call('POST', '/functions/lamps/test', body)).status, 422)
})

test('what a function does on a message is told when it is saved, and keeps it from nothing', async () => {
  await using s = await serve()
  const code = 'export default (a, r) => {\n  return r.name.length + r.size.length\n}'
  const made = await s.call('POST', '/functions', { name: 'size', type: 'transform', code })
  assert.deepEqual(
    [made.status, made.body.warnings],
    [200, ["on an example: TypeError: Cannot read properties of undefined (reading 'length') (line 2, column 33)"]],
  )
  const good = await s.call('PATCH', '/functions/size', { code: 'export default (a, r) => r.name.length' })
  assert.deepEqual([good.status, good.body.warnings], [200, undefined])
  const strict = { name: 'strict', type: 'filter', code: 'export default (a, r) => r.name' }
  assert.match((await s.call('POST', '/functions', strict)).body.warnings[0], /^on an example: TypeError: a filter returns true or false/)
  const routing = { name: 'way', type: 'routing', sink_type: 'meilisearch', code: 'export default () => ({ index: "a" })' }
  assert.match((await s.call('POST', '/functions', routing)).body.warnings[0], /^on an example: index is not a known field/)
  assert.match(
    (await s.call('POST', '/functions', { ...strict, name: 'loop', code: 'export default () => { for (;;); }' })).body.warnings[0],
    /longer than/,
  )
  s.recent.list = RECENT
  await s.store.query(`update sink set settings = settings || '{"transform": "size"}' where name = 'search'`)
  await s.reload()
  const seen = await s.call('PATCH', '/functions/size', {
    code: 'export default (a, r) => { if (r.id !== 1) throw new Error(`no ${r.id}`) }',
  })
  assert.deepEqual(seen.body.warnings, [
    'on the last message of public.goods: TypeError: the function returned nothing (undefined): return a value, null for none; what shall not be sent is dropped by a filter',
    'on the last message of public.goods: Error: no 9007199254740993 (line 1, column 50)',
  ])
  await s.store.query('create table public.named as select 1::bigint as id, $1::text as word', ['first']) // beside goods, which has the key
  await s.store.query('create table public.goods (id bigint primary key)')
  const words = { name: 'words', type: 'enrichment', code: 'select id, word from public.named where id = any($1)' }
  await s.call('POST', '/functions', words)
  await s.store.query(`update sink set settings = settings || '{"enrichment": "words"}' where name = 'search'`)
  await s.reload()
  const worded = await s.call('PATCH', '/functions/size', { code: 'export default (a, r, c, m) => ({ id: 1, word: m.enrichment.word })' })
  assert.deepEqual(worded.body.warnings, [
    "on the last message of public.goods: TypeError: Cannot read properties of null (reading 'word') (line 1, column 61)",
  ]) // the row 1 has a word, the other none
  const seenBy = await s.call('POST', '/functions/size/test', { table: 'goods' })
  assert.equal(seenBy.body.data[0].output.word, 'first', seenBy.text)
  const keyless = await s.call('PATCH', '/functions/size', { code: 'export default (a, r) => (r.id === 1 ? { sku: 1 } : [r.id])' })
  assert.deepEqual(keyless.body.warnings, [
    'on the last message of public.goods: the document has no field "id", which is the primary key of the index',
    'on the last message of public.goods: a sink of type meilisearch takes objects only, and this returned a list',
  ])
  const query = { name: 'q', type: 'enrichment', code: 'select * from nosuch where id = any($1)' }
  assert.equal((await s.call('POST', '/functions', query)).body.warnings, undefined)
  await s.store.query(`update sink set settings = settings || '{"enrichment": "q"}' where name = 'search'`)
  await s.reload()
  assert.match((await s.call('PATCH', '/functions/q', { description: 'x' })).body.warnings[0], /^on the last message of public\.goods: /)
})

test('a function is tried on the last messages of a table', async () => {
  await using s = await serve()
  s.recent.list = RECENT
  const code = 'export default (a, r, c, m) => [r.id, m.database.name]'
  const on = (body: object) => s.call('POST', '/functions/test', { type: 'transform', code, ...body })
  assert.match((await on({ database: 'shop', table: 'goods' })).text, /"output":\[1,"shop"\].*"output":\[9007199254740993,"shop"\]/)
  for (const [body, field] of [
    [{ table: 'goods' }, 'database'],
    [{ database: 'shop', table: 'sales.goods' }, 'table'],
  ] as const) {
    const { status, body: answer } = await on(body)
    assert.deepEqual([status, Object.keys(answer.validation_errors)], [422, [field]])
  }
})

test('a table of which no message was seen is tried on one that is made up for its columns, and says so', async () => {
  await using s = await serve()
  await s.store.query('create schema sales')
  await s.store.query('create table sales.customer (id int primary key, email text, price numeric(6, 2), tags text[])')
  const code = 'export default (a, r, c, m) => ({ ...r, from: m.database.name, key: m.record_pks })'
  const { status, body, text } = await s.call('POST', '/functions/test', {
    type: 'transform',
    code,
    database: 'shop',
    table: 'sales.customer',
  })
  assert.equal(status, 200, text)
  const [{ input, synthetic, output }, ...more] = body.data
  const record = { id: 1, email: 'ada@example.com', price: '19.90', tags: ['tags'] }
  assert.deepEqual([synthetic, output, more], [true, { ...record, from: 'shop', key: ['1'] }, []])
  assert.deepEqual([input.action, input.record, input.metadata.table_schema], ['insert', record, 'sales'])
  await s.call('POST', '/functions', { name: 'doc', type: 'path', path: 'record.email' })
  const [stored] = (await s.call('POST', '/functions/doc/test', { database: 'shop', table: 'sales.customer' })).body.data
  assert.deepEqual([stored.synthetic, stored.output], [true, 'ada@example.com'])
  s.recent.list = RECENT
  const seen = await s.call('POST', '/functions/doc/test', { database: 'shop', table: 'goods' })
  assert.deepEqual(
    seen.body.data.map((one: object) => 'synthetic' in one),
    [false, false],
  )
})

test('numbers of a try keep their digits, on the way in and out', async () => {
  await using s = await serve()
  const { rawJSON } = JSON as typeof JSON & { rawJSON: (text: string) => unknown }
  const record = { id: rawJSON('9007199254740993') }
  const code = 'export default (a, r) => ({ next: r.id + 1n })'
  const { text } = await s.call('POST', '/functions/test', { type: 'transform', code, messages: [{ record }] })
  assert.match(text, /"input":\{"record":\{"id":9007199254740993\}/)
  assert.match(text, /"output":\{"next":9007199254740994\}/)
  const context = '({ action: "function", filter: "a = 1", function: "doc.a = 2", context: { id: r.id } })'
  const route = { type: 'routing', sink_type: 'meilisearch', code: `export default (a, r) => ${context}` }
  assert.match((await s.call('POST', '/functions/test', { ...route, messages: [{ record }] })).text, /"context":\{"id":9007199254740993\}/)
})

test('another account sees, runs and changes nothing of it, whatever names it gives', async () => {
  await using s = await serve()
  s.recent.list = RECENT
  await s.call('POST', '/functions', { name: 'doc', type: 'transform', code: 'export default (a, r) => r.id' })
  const other = (method: string, path: string, body?: unknown) => s.call(method, path, body, 'another-token')
  for (const [method, path] of [
    ['GET', ''],
    ['PATCH', ''],
    ['DELETE', ''],
    ['POST', '/test'],
  ] as const)
    // prettier-ignore
    assert.equal((await other(method, `/functions/doc${path}`, method === 'GET' ? undefined : {})).status, 404, method + path)
  const spy = { type: 'transform', code: 'export default (a, r, c, m) => { throw new Error(JSON.stringify(r) + m.database.name) }' }
  for (const [body, field] of [
    [{ ...spy, database: 'shop', table: 'goods' }, 'database'],
    [
      { type: 'enrichment', code: 'select 1 as id where 1 = any($1)', database: s.cache.databases[0]?.id, messages: [{ record: {} }] },
      'database',
    ],
    [{ type: 'routing', sink_type: 'meilisearch', code: 'export default () => ({})', sink: 'search' }, 'sink'],
  ] as const) {
    const { status, body: answer } = await other('POST', '/functions/test', body)
    assert.deepEqual([status, Object.keys(answer.validation_errors)], [422, [field]])
  }
  const mine = await other('POST', '/functions', { ...spy, name: 'doc' }) // a sink of the first account has one of this name
  assert.deepEqual([mine.status, mine.body.used_by], [200, []])
  assert.match(mine.body.warnings[0], /^on an example: .*"name":"Example"/)
})

test('a try shows all that the function was given', async () => {
  await using s = await serve()
  const { data } = (await s.call('POST', '/functions/test', { type: 'transform', code: 'export default (a, r, c, m) => m' })).body
  assert.deepEqual(data[0].input.metadata, data[0].output)
  assert.deepEqual(Object.keys(data[0].output.database), ['id', 'name', 'annotations', 'database', 'hostname'])
})
