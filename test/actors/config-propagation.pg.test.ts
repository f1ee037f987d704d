/** An edit on one process, or by another program, takes effect in every process, and restarts nothing else. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createDatabase, createState, type TestDatabase } from '../services/postgres.ts'
import { applyYaml, databaseEntry, startNode, type EngineNode } from './engine-node.ts'
import { gather, until } from '../waiting.ts'

const database = (source: TestDatabase) => `\n  - ${databaseEntry(source, { name: source.name })}`
const sink = (name: string, { name: of }: TestDatabase, more = '') =>
  `\n  - { name: ${name}, database: ${of}, source: {}, destination: { type: sequin_stream }${more} }`
const config = (databases: string, sinks: string) => `account: { name: shop }\ndatabases:${databases}\nsinks:${sinks}\n`

async function stage() {
  const stack = new AsyncDisposableStack()
  const state = stack.use(await createState())
  const shop = stack.use(await createDatabase('create table goods (id int primary key); create table users (id int primary key)'))
  const apply = (text: string) => applyYaml(state.connection, text)
  await apply(config(database(shop), sink('goods', shop) + sink('others', shop)))
  return { state: state.connection, db: state, shop, apply, stack, [Symbol.asyncDispose]: () => stack.disposeAsync() }
}

const idOf = ({ cache }: EngineNode, name: string) => cache.sinks.find((candidate) => candidate.name === name)?.id ?? ''
const actorsOf = ({ engine }: EngineNode, kind: string) => engine.actors().filter((actor) => actor.kind === kind)
const streaming = (node: EngineNode, count = 1) =>
  until('streaming', async () => actorsOf(node, 'source').filter(({ state }) => state === 'streaming').length === count)
/** The node that serves a sink's only partition, once there is one and all of them know the sink. */
const serving = (nodes: readonly EngineNode[], name: string) =>
  until(`sink ${name}`, async () => {
    const sinks = nodes.map((node) => actorsOf(node, 'sink').find((actor) => actor.name === name))
    return sinks.every(Boolean) ? nodes.find((_, i) => sinks[i]?.partitions?.[0]?.['state'] === 'running') : undefined
  })
const take = async (node: EngineNode, name: string, waitMs = 10_000) => {
  const request = { batchSize: 100, waitMs, shape: 'flat' as const, signal: new AbortController().signal }
  const { body } = (await node.engine.sink(idOf(node, name))?.receive(request)) ?? assert.fail(`${name} does not run`)
  const { data } = JSON.parse(body.toString()) as {
    data: { record: { id: number }; action: string; metadata: { consumer: { annotations: object } } }[]
  }
  return data
}

test('an edit on a node that does not stream takes effect on the one that does, and restarts nothing there', async () => {
  await using s = await stage()
  await using a = await startNode({ name: 'a', state: s.state })
  await streaming(a)
  await using b = await startNode({ name: 'b', state: s.state })
  for (const name of ['goods', 'others']) assert.equal(await serving([a, b], name), a)
  const before = [...actorsOf(a, 'source'), ...actorsOf(a, 'sink')].map(({ id, since }) => ({ id, since }))
  const terms = await s.db.query('select key, term from tailrace.term order by key')
  await s.shop.query('insert into goods values (1)')
  await b.edits.update('sink', idOf(b, 'goods'), { annotations: { team: 'edited' }, actions: ['delete'] })
  await a.engine.reload() // what the API tells each node before it answers
  await s.shop.query('insert into goods values (2)')
  await s.shop.query('delete from goods where id = 2')
  const taken = [...(await take(a, 'goods')), ...(await take(a, 'goods'))]
  assert.deepEqual(
    taken.map(({ record, action }) => [action, record.id]),
    [
      ['insert', 1],
      ['delete', 2],
    ],
    'actions hold from the edit on, whenever messages are read',
  )
  assert.deepEqual(taken.at(-1)?.metadata.consumer.annotations, { team: 'edited' }, 'the description is new')
  const others = [...(await take(a, 'others')), ...(await take(a, 'others', 100))]
  assert.deepEqual(new Set(others.map(({ record }) => record.id)), new Set([1, 2]), 'the other reader of the stream gets all of it')
  assert.deepEqual(
    [...actorsOf(a, 'source'), ...actorsOf(a, 'sink')].map(({ id, since }) => ({ id, since })),
    before,
  )
  assert.deepEqual(await s.db.query('select key, term from tailrace.term order by key'), terms, 'no partition was taken over anew')
})

test('what another program stores starts, changes and stops on every node by a notice alone', async () => {
  await using s = await stage()
  await using a = await startNode({ name: 'a', state: s.state, lookEveryMs: 3_600_000 })
  await using b = await startNode({ name: 'b', state: s.state, lookEveryMs: 3_600_000 })
  await using depot = await createDatabase('create table boxes (id int primary key)')
  const both = database(s.shop) + database(depot)
  await s.apply(config(both, sink('goods', s.shop) + sink('late', s.shop) + sink('boxes', depot)))
  const [late, boxes] = [await serving([a, b], 'late'), await serving([a, b], 'boxes')]
  await depot.query('insert into boxes values (7)')
  assert.deepEqual(
    (await take(boxes, 'boxes')).map(({ record }) => record.id),
    [7],
  )
  const marked = () => s.db.query(`select from tailrace.routing_version where lsn is null`)
  await until('the new sink is routed to', async () => (await marked()).length === 0)
  await s.shop.query('insert into goods values (8)')
  assert.deepEqual(
    (await take(late, 'late')).map(({ record }) => record.id),
    [8],
  )
  await s.db.query(`delete from tailrace.sink where name in ('boxes', 'late')`)
  await s.db.query('delete from tailrace.source_database where name = $1', [depot.name])
  for (const node of [a, b]) {
    await until('gone', async () => actorsOf(node, 'sink').length === 2 && actorsOf(node, 'source').length === 1)
    assert.equal(node.cache.sinks.length, 2)
  }
})

test('other partitions are served by every node, also by one that had none of the former', async () => {
  await using s = await stage()
  await using a = await startNode({ name: 'a', state: s.state, lookEveryMs: 3_600_000 })
  await streaming(a)
  assert.equal(await serving([a], 'goods'), a)
  await using b = await startNode({ name: 'b', state: s.state, lookEveryMs: 3_600_000 })
  await serving([a, b], 'goods')
  await a.edits.update('sink', idOf(a, 'goods'), { partitions: 3 })
  await until('both in the new generation', async () =>
    [a, b].every((node) => actorsOf(node, 'sink').find(({ name }) => name === 'goods')?.details?.['generation'] === 2),
  )
})

test('an edit whose notice is lost is found by a look', async () => {
  await using s = await stage()
  await using a = await startNode({ name: 'a', state: s.state, hears: false, lookEveryMs: 100 })
  await s.db.query(`update tailrace.sink set status = 'paused' where name = 'goods'`)
  await until('paused', async () => actorsOf(a, 'sink').some(({ name, state }) => name === 'goods' && state === 'paused'))
})

test('notices are heard again after the session that brought them was cut', async () => {
  await using s = await stage()
  await using a = await startNode({ name: 'a', state: s.state, lookEveryMs: 3_600_000 })
  const session = `application_name = 'tailrace notices' and datname = current_database()`
  const [former] = await until('listening', async () => {
    const rows = await s.db.query<{ pid: number }>(`select pid from pg_stat_activity where ${session} and query = 'listen tailrace'`)
    return rows.length > 0 ? rows : undefined
  })
  await s.db.query(`select pg_terminate_backend($1)`, [former?.pid])
  await s.db.query(`update tailrace.sink set status = 'paused' where name = 'goods'`) // nobody hears this one
  await until('paused', async () => actorsOf(a, 'sink').some(({ name, state }) => name === 'goods' && state === 'paused'))
})

test('edits of one sink on two nodes at once both stay', async () => {
  await using s = await stage()
  await using a = await startNode({ name: 'a', state: s.state })
  await using b = await startNode({ name: 'b', state: s.state })
  for (let round = 0; round < 10; round++) {
    await Promise.all([
      a.edits.update('sink', idOf(a, 'goods'), { annotations: { round } }),
      b.edits.update('sink', idOf(b, 'goods'), { ack_wait_ms: 1_000 + round }),
    ])
    for (const node of [a, b]) {
      await node.engine.reload()
      const { annotations, ack_wait_ms } = node.cache.sinks.find(({ name }) => name === 'goods') ?? assert.fail()
      assert.deepEqual([annotations, ack_wait_ms], [{ round }, 1_000 + round])
    }
  }
})

test('a new address of a database restarts its source and nothing else', async () => {
  await using s = await stage()
  await using depot = await createDatabase('create table boxes (id int primary key)')
  await s.apply(config(database(s.shop) + database(depot), sink('goods', s.shop) + sink('boxes', depot)))
  await using a = await startNode({ name: 'a', state: s.state })
  await streaming(a, 2)
  for (const name of ['goods', 'boxes']) await serving([a], name)
  const others = () =>
    [...actorsOf(a, 'sink'), ...actorsOf(a, 'source').filter(({ name }) => name === depot.name)].map(({ id, since }) => ({ id, since }))
  const before = others()
  const since = actorsOf(a, 'source').find(({ name }) => name === s.shop.name)?.since
  await s.db.query(`update tailrace.source_database set connection = jsonb_set(connection, '{hostname}', '"localhost"') where name = $1`, [
    s.shop.name,
  ])
  await until('streams again', async () => {
    const source = actorsOf(a, 'source').find(({ name }) => name === s.shop.name)
    return source?.state === 'streaming' && source.since?.getTime() !== since?.getTime()
  })
  await s.shop.query('insert into goods values (1)')
  assert.equal((await take(a, 'goods')).length, 1)
  assert.deepEqual(others(), before)
})

test('functions come with the file, and a changed one holds for what is committed after it, without a restart', async () => {
  await using s = await stage()
  const functions = (transform: string) => `functions:
  - name: odd
    type: filter
    code: |
      export default (action: string, record: { id: number }): boolean => record.id % 2 === 1
  - name: named
    type: transform
    code: |
      ${transform}
  - { name: key, type: path, path: record.id }
`
  const withFunctions = (transform: string) =>
    functions(transform) +
    config(database(s.shop), sink('goods', s.shop, ', filter: odd, transform: named') + sink('others', s.shop, ', transform: key'))
  await s.apply(withFunctions('export default (action, record, changes, metadata) => `${metadata.table_name} ${record.id}`'))
  await using a = await startNode({ name: 'a', state: s.state, lookEveryMs: 3_600_000 })
  await streaming(a)
  await serving([a], 'goods')
  const taken = async (name: string) => ((await take(a, name)) as unknown as { data: unknown }[]).map((message) => message.data)
  const data = (name: string, count: number) => gather(`messages of ${name}`, () => taken(name), count)
  await s.shop.query('insert into goods select generate_series(1, 4)')
  assert.deepEqual(await data('goods', 2), ['goods 1', 'goods 3'])
  assert.deepEqual(await data('others', 4), [1, 2, 3, 4])
  const { since } = actorsOf(a, 'sink').find(({ name }) => name === 'goods') ?? {}
  await s.apply(withFunctions('export default (action, record) => ({ action, id: record.id })'))
  await until('the edit', async () => a.cache.functions.some(({ code }) => code.includes('{ action, id')))
  await a.engine.reload()
  await s.shop.query('insert into goods values (5)')
  assert.deepEqual(await data('goods', 1), [{ action: 'insert', id: 5 }])
  assert.equal(actorsOf(a, 'sink').find(({ name }) => name === 'goods')?.since, since)
})

test('a file whose function can not be built is refused with its line and the place in the function, and changes nothing', async () => {
  await using s = await stage()
  const wrong = `functions:
  - { name: bad, type: transform, code: "export default (a, r) => {" }
  - { name: gone, type: path, path: row.id }
`
  await assert.rejects(s.apply(wrong + config(database(s.shop), sink('goods', s.shop, ', transform: missing'))), (error: Error) => {
    for (const part of [
      /test.yaml:2:68: .*Expected/,
      /test.yaml:3:37: function "gone": path must begin with/,
      /"missing", which does not exist/,
    ])
      assert.match(error.message, part)
    return true
  })
  assert.equal((await s.db.query('select from tailrace.function')).length, 0)
})

test('an edit whose mark can not be written is named in health, and takes effect by itself once it can', async () => {
  await using s = await stage()
  await using node = await startNode({ name: 'a', state: s.state })
  await streaming(node)
  const admit = await s.shop.refuseSessions()
  await node.edits.update('sink', idOf(node, 'goods'), { source: { include_tables: ['public.users'] } })
  const health = async () => (await node.health('goods')) ?? assert.fail('it does not run')
  const { status, checks } = await health()
  assert.equal(status, 'warning')
  assert.match(
    checks.find(({ error }) => error?.code === 'ROUTING_NOT_PLACED')?.error?.message ?? '',
    /version 2\) .*not currently accepting/,
  )
  assert.deepEqual(
    actorsOf(node, 'source').map(({ state }) => state),
    ['streaming'],
  )
  await admit()
  await until('it has taken effect', async () => (await health()).status === 'healthy')
  await s.shop.query('insert into goods values (1); insert into users values (2)')
  assert.deepEqual(
    (await take(node, 'goods')).map(({ record }) => record.id),
    [2],
  )
})

test('a backfill that is begun, paused and resumed on a node that does not stream is read by the one that does', async () => {
  await using s = await stage()
  await using a = await startNode({ name: 'a', state: s.state })
  await streaming(a)
  await using b = await startNode({ name: 'b', state: s.state })
  for (const name of ['goods', 'others']) assert.equal(await serving([a, b], name), a)
  const goods = b.cache.sinks.find(({ name }) => name === 'goods') ?? assert.fail()
  await b.edits.update('sink', goods.id, { status: 'disabled', actions: ['delete'] })
  await s.shop.query('insert into goods select generate_series(1, 50)')
  const [begun] = await b.backfills.start(goods, [{ table: 'public.goods', max_timeout_ms: 5_000 }])
  assert.ok(begun)
  const heardBy = (node: EngineNode, state: string | undefined) => until(`${state} there`, () => node.cache.backfills[0]?.state === state)
  await b.backfills.move(goods, begun.id, { state: 'paused' })
  for (const node of [a, b]) await heardBy(node, 'paused')
  await b.edits.update('sink', goods.id, { status: 'active' })
  await b.backfills.move(goods, begun.id, { state: 'active' })
  const next = async () => {
    const node = (await serving([a, b], 'goods')) ?? assert.fail()
    return take(node, 'goods', 1_000)
  }
  const reads = await gather('rows of the backfill', next, (came) => came.filter(({ action }) => action === 'read').length >= 50)
  assert.equal(new Set(reads.map(({ record }) => record.id)).size, 50)
  for (const node of [a, b]) await heardBy(node, undefined)
  assert.equal((await b.backfills.find(goods, begun.id)).state, 'completed')
})
