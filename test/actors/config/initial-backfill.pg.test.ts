/** `initial_backfill` of a configuration file: of a sink that is new, once, and all or nothing with the rest of the file. */
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { test } from 'node:test'
import { applyConfig } from '../../../actors/config/config-apply.ts'
import { parseConfig } from '../../../actors/config/config-document.ts'
import { exportedResources, exportYaml } from '../../../actors/config/config-export.ts'
import { ResourceStore } from '../../../engine/state/resource-store.ts'
import { Vault } from '../../../engine/state/secrets.ts'
import { openStore } from '../../../engine/state/store.ts'
import { createDatabase, createState, type TestDatabase } from '../../services/postgres.ts'
import { databaseEntry } from '../engine-node.ts'
import { NetProxy } from '../../faults/net-proxy.ts'
import { STORED_DESTINATIONS } from '../../../sinks/destination-types.ts'

const config = (source: TestDatabase, sink: string, { port }: { port: number } = source.connection) => `
account: { name: shop }
databases: [${databaseEntry(source, { port })}]
sinks:
  - { database: shop, destination: { type: sequin_stream }, ${sink} }`

async function stage() {
  const stack = new AsyncDisposableStack()
  const source = stack.use(
    await createDatabase('create table goods (id int primary key); create table orders (id int primary key, at date); create schema other'),
  )
  const state = stack.use(await createState())
  const store = stack.use(await openStore(state.connection, 3, () => {}))
  const withKey = () => new ResourceStore(new Vault(randomBytes(32)), { destinations: STORED_DESTINATIONS })
  const own = withKey()
  const run = (text: string, isTrial: boolean, resources = own) =>
    applyConfig(parseConfig(text, 'shop.yaml', {}), { store, resources, signal: new AbortController().signal, isTrial })
  const begun = async () => {
    const rows = await state.query<{ name: string; table_name: string; start: string | null; state: string }>(
      `select s.name, b.table_name, b.sort_column || '>=' || b.start_position as start, b.state
       from tailrace.backfill b join tailrace.sink s on s.id = b.sink_id order by s.name, b.table_name`,
    )
    return rows.map(({ name, table_name, start, state: now }) => [name, table_name, start, now])
  }
  const load = () => own.load(store.query)
  const exported = async () => {
    const lists = await own.load(store.query)
    return exportYaml(exportedResources(lists, lists.sinks[0]?.accountId ?? '', { partitions: 1 }), { showSensitive: false })
  }
  return {
    source,
    state,
    begun,
    load,
    exported,
    plan: (text: string) => run(text, true),
    apply: (text: string) => run(text, false),
    applyUnderAnotherKey: (text: string) => run(text, false, withKey()),
    [Symbol.asyncDispose]: () => stack.disposeAsync(),
  }
}

test('a new sink begins with every table that is published and that it takes; the plan shows it, an export does not', async () => {
  await using s = await stage()
  const file = config(s.source, 'name: a, source: { include_schemas: [public] }, initial_backfill: true')
  for (const isPublished of [false, true]) {
    const { changes } = await s.plan(file)
    const sink = changes.find(({ name }) => name === 'a')
    assert.equal(sink?.new?.['initial_backfill'], true, `shown while the publication is ${isPublished ? '' : 'not '}there`)
    if (!isPublished) await s.apply(config(s.source, 'name: first'))
  }
  assert.deepEqual(await s.begun(), [], 'a plan begins nothing')
  assert.deepEqual((await s.apply(file)).notices, [])
  const both = [
    ['a', 'public.goods', null, 'active'],
    ['a', 'public.orders', null, 'active'],
  ]
  assert.deepEqual(await s.begun(), both)
  assert.equal((await s.load()).backfills.length, 2, 'every process knows of them')
  assert.doesNotMatch(await s.exported(), /backfill/)
  assert.deepEqual(
    (await s.plan(file)).changes.filter(({ action }) => action !== 'delete'),
    [],
  )
  await s.state.query(`update tailrace.backfill set state = 'completed'`)
  await s.apply(file)
  await s.applyUnderAnotherKey(file)
  assert.deepEqual(
    (await s.begun()).map(([, , , state]) => state),
    ['completed', 'completed'],
    'a sink that is there begins with nothing',
  )
})

test('a list says which tables, and from where on', async () => {
  await using s = await stage()
  const list = '[{ table: goods, type: full }, { table: public.orders, type: partial, sort_column: at, start_position: 2025-01-01 }]'
  const file = config(s.source, `name: a, initial_backfill: ${list}`)
  const planned = (await s.plan(file)).changes.find(({ name }) => name === 'a')
  assert.deepEqual(planned?.new?.['initial_backfill'], [
    { table: 'public.goods' },
    { table: 'public.orders', type: 'partial', sort_column: 'at', start_position: '2025-01-01' },
  ])
  await s.apply(file)
  assert.deepEqual(await s.begun(), [
    ['a', 'public.goods', null, 'active'],
    ['a', 'public.orders', 'at>=2025-01-01', 'active'],
  ])
})

test('none is begun where the list is empty or false, and it is told where no table is published', async () => {
  await using s = await stage()
  for (const [i, none] of ['false', 'null', '[]'].entries()) await s.apply(config(s.source, `name: n${i}, initial_backfill: ${none}`))
  const { notices } = await s.apply(config(s.source, 'name: b, source: { include_schemas: [other] }, initial_backfill: true'))
  assert.match(notices.join(), /^shop\.yaml:\d+: the sink "b" takes no table that is published: its initial_backfill is of none/)
  assert.deepEqual(await s.begun(), [])
})

test('what the source refuses is told with its line, and nothing of the file stays', async () => {
  await using s = await stage()
  for (const [list, words] of [
    ['[{ table: nosuch }]', /^shop\.yaml:5: sink "a": .*public\.nosuch can't be backfilled: there is no such table/],
    ['[{ table: orders, type: partial, sort_column: at, start_position: soon }]', /start_position is refused by PostgreSQL: invalid input/],
    ['[{ table: orders, type: partial, sort_column: colour, start_position: 1 }]', /has no column "colour"/],
  ] as const) {
    await assert.rejects(s.apply(config(s.source, `name: a, initial_backfill: ${list}`)), { code: 'CONFIG_INVALID', message: words })
    assert.deepEqual((await s.load()).sinks, [])
  }
  await assert.rejects(s.apply(config(s.source, 'name: a, initial_backfill: true, filter: nosuch')), { code: 'CONFIG_INVALID' })
  assert.deepEqual([(await s.load()).sinks, await s.begun()], [[], []])
})

test('a new sink with it is refused while its database is away; one that is there does not need it', async () => {
  await using s = await stage()
  await using proxy = await NetProxy.start({ host: s.source.connection.hostname, port: s.source.connection.port })
  const file = (sink: string) => config(s.source, sink, proxy)
  await s.apply(file('name: a, initial_backfill: true'))
  proxy.cut()
  const { notices } = await s.apply(file('name: a, initial_backfill: true'))
  assert.match(notices.join(), /all else goes on without its source/)
  await assert.rejects(s.apply(file('name: b, initial_backfill: true')), /sink "b": initial_backfill needs the database "shop"/)
})
