import assert from 'node:assert/strict'
import { test } from 'node:test'
import { newSink } from '../../../actors/resources/sink-form.ts'
import { ResourceCache } from '../../../engine/state/resource-cache.ts'
import { ResourceStore, type DatabaseInput } from '../../../engine/state/resource-store.ts'
import type { Connection } from '../../../engine/postgres/client-config.ts'
import { Vault } from '../../../engine/state/secrets.ts'
import type { Query } from '../../../engine/postgres/query.ts'
import { openStore } from '../../../engine/state/store.ts'
import { allTokens, saveToken } from '../../../engine/state/token-store.ts'
import { hashToken } from '../../../engine/state/tokens.ts'
import { createState } from '../../services/postgres.ts'
import { until } from '../../waiting.ts'
import { STORED_DESTINATIONS } from '../../../sinks/destination-types.ts'

const PASSWORD = 'hunter2-of-the-source'
const input = (name: string, connection: Connection): DatabaseInput => ({
  name,
  connection: { ...connection, password: PASSWORD },
  poolSize: 3,
  annotations: { team: 'a' },
  slotName: 's',
  publicationName: 'p',
})
const sinkOf = (name: string, database: string, more: object = {}) =>
  newSink({ name, database, source: {}, destination: { type: 'stream' }, ...more })

/** A state database, and the resources in it. */
async function openResources() {
  const parts = new AsyncDisposableStack()
  const db = parts.use(await createState())
  const store = parts.use(await openStore(db.connection, 2, () => {}))
  const resources = new ResourceStore(new Vault(Buffer.alloc(32, 1)), { destinations: STORED_DESTINATIONS })
  return { db, store, resources, [Symbol.asyncDispose]: () => parts.disposeAsync() }
}

test('what is stored comes back as it was, and the password is nowhere in the state database', async () => {
  await using opened = await openResources()
  const { db, store, resources } = opened
  const sink = sinkOf('orders', 'shop', {
    partitions: 3,
    source: { include_tables: ['public.a'] },
    tables: [{ name: 'public.a', group_column_names: ['x', 'y'] }],
    annotations: { deep: [1, { 'quo"te': null }] },
  })
  await store.transaction(async (query) => {
    const account = await resources.saveAccount(query, 'main')
    await resources.save(query, 'database', { account, input: input('shop', db.connection) })
    await resources.save(query, 'sink', { account, input: sink })
  })
  const loaded = await resources.load(store.query)
  const [database] = loaded.databases
  assert.equal(database?.connection.password, PASSWORD)
  assert.deepEqual(database?.annotations, { team: 'a' })
  const { id: _id, accountId: _account, databaseId, ...settings } = loaded.sinks[0] ?? assert.fail('no sink')
  assert.equal(databaseId, database?.id)
  assert.deepEqual(settings, { ...sink, hasBackfills: false })
  const everything = await db.query<{ text: string }>('select d::text as text from tailrace.source_database d')
  for (const { text } of everything) {
    assert.equal(text.includes(PASSWORD), false)
    assert.equal(text.includes(Buffer.from(PASSWORD).toString('hex')), false)
  }
})

test('the same name twice is one resource with the last values, under the id it had', async () => {
  await using opened = await openResources()
  const { db, store, resources } = opened
  const save = (batchSize: number) =>
    store.transaction(async (query) => {
      const account = await resources.saveAccount(query, 'main')
      await saveToken(query, account, { name: 'ci', token: `token-${batchSize}` })
      await resources.save(query, 'database', { account, input: { ...input('shop', db.connection), poolSize: batchSize } })
      return resources.save(query, 'sink', { account, input: sinkOf('orders', 'shop', { batch_size: batchSize }) })
    })
  assert.equal((await save(1)).id, (await save(2)).id)
  const { sinks, databases } = await resources.load(store.query)
  assert.deepEqual(
    sinks.map(({ batch_size }) => batch_size),
    [2],
  )
  assert.deepEqual(
    databases.map(({ poolSize }) => poolSize),
    [2],
  )
  assert.deepEqual([...(await allTokens(store.query)).keys()], [hashToken('token-2')]) // the former token is no longer valid
})

test('who reads again gets what was written since, also within a transaction and after one that was undone, and the rest as it was read before', async () => {
  await using db = await createState()
  await using store = await openStore(db.connection, 2, () => {})
  const vault = new Vault(Buffer.alloc(32, 1))
  const resources = new ResourceStore(vault, { destinations: STORED_DESTINATIONS })
  const elsewhere = new ResourceStore(vault, { destinations: STORED_DESTINATIONS }) // another process
  const edit = (query: Query, name: string, batchSize: number, by = resources) =>
    by.saveAccount(query, 'main').then(async (account) => {
      await by.save(query, 'database', { account, input: input('shop', db.connection) })
      const hook = { name: 'hook', kind: 'external', url: 'http://a', headers: {}, encryptedHeaders: { n: `${batchSize}` } } as const
      await by.save(query, 'http_endpoint', { account, input: hook })
      await by.save(query, 'sink', { account, input: sinkOf(name, 'shop', { batch_size: batchSize }) })
    })
  const sizes = async (query: Query) => {
    const { sinks, endpoints } = await resources.load(query)
    assert.equal(endpoints[0]?.encryptedHeaders['n'], `${sinks.find(({ name }) => name === 'b')?.batch_size}`)
    return sinks.map(({ batch_size }) => batch_size)
  }
  await store.transaction((query) => edit(query, 'a', 1))
  await store.transaction((query) => edit(query, 'b', 1))
  const before = await resources.load(store.query)
  await store.transaction((query) => edit(query, 'b', 2, elsewhere))
  assert.deepEqual(await sizes(store.query), [1, 2])
  assert.equal((await resources.load(store.query)).sinks[0], before.sinks[0]) // decoded once
  const undone = store.transaction(async (query) => {
    for (const size of [3, 4, 5]) {
      await edit(query, 'b', size)
      assert.deepEqual(await sizes(query), [1, size])
    }
    assert.deepEqual(await sizes(store.query), [1, 2])
    throw new Error('undone')
  })
  await assert.rejects(undone, { message: 'undone' })
  assert.deepEqual(await sizes(store.query), [1, 2])
  await store.query('update source_database set name = $1', ['store'])
  assert.deepEqual(
    (await resources.load(store.query)).sinks.map(({ database }) => database),
    ['store', 'store'],
  )
  await resources.delete(store.query, 'sink', before.sinks[1]?.id ?? '')
  await store.query(`update sink set updated_at = now() where name = 'a'`) // what was written since is not all that has changed
  assert.deepEqual(
    (await resources.load(store.query)).sinks.map(({ name }) => name),
    ['a'],
  )
})

test('reading what nobody has written costs one row, and gives what was read before; an edited sink costs its own row, and where another process wrote it one statement more', async () => {
  await using opened = await openResources()
  const { db, store, resources } = opened
  const elsewhere = new ResourceStore(new Vault(Buffer.alloc(32, 1)), { destinations: STORED_DESTINATIONS })
  const answers: number[] = []
  const counted: Query = async (sql, params) => {
    const answer = await store.query(sql, params)
    answers.push(answer.rows.length)
    return answer
  }
  const read = async () => {
    // what was written after the oldest open transaction of the whole server is read again: other tests have some
    const [{ next } = { next: '' }] = await db.query<{ next: string }>('select pg_snapshot_xmax(pg_current_snapshot())::text as next')
    const passed = 'select from pg_current_snapshot() where pg_snapshot_xmin(pg_current_snapshot()) >= $1::xid8'
    await until('the transactions of the server that were open have ended', async () => (await db.query(passed, [next])).length > 0)
    answers.length = 0
    const loaded = await resources.load(counted)
    assert.equal(await resources.print(store.query), loaded.print)
    return { loaded, rows: [...answers] }
  }
  assert.equal((await read()).loaded.sinks.length, 0)
  await store.transaction(async (query) => {
    const account = await resources.saveAccount(query, 'main')
    await resources.save(query, 'database', { account, input: input('shop', db.connection) })
    for (const name of ['orders', 'returns']) await resources.save(query, 'sink', { account, input: sinkOf(name, 'shop') })
  })
  const first = await read()
  const again = await read()
  assert.equal(again.loaded, first.loaded)
  assert.deepEqual(again.rows, [1])
  const edit = (batchSize: number, by: ResourceStore) =>
    store.transaction(async (query) => {
      const { accountId } = first.loaded.sinks[0] ?? assert.fail('no sink')
      const account = { id: accountId, name: 'main' }
      await by.save(query, 'sink', { account, input: sinkOf('orders', 'shop', { batch_size: batchSize }) })
    })
  for (const [batchSize, by, rows] of [
    [2, resources, [1]],
    [3, elsewhere, [1, 1]],
    [4, resources, [1]],
  ] as const) {
    await edit(batchSize, by)
    const edited = await read()
    assert.deepEqual([edited.loaded.sinks.map(({ batch_size }) => batch_size), edited.rows], [[batchSize, 1], rows])
    assert.equal(edited.loaded.sinks[1], first.loaded.sinks[1])
    assert.equal(edited.loaded.databases[0], first.loaded.databases[0])
  }
})

test('what is stored after an edit is known without being read, as whoever reads it has it; what others have written meanwhile is found by the next reading', async () => {
  await using opened = await openResources()
  const { db, store, resources } = opened
  const elsewhere = new ResourceStore(new Vault(Buffer.alloc(32, 1)), { destinations: STORED_DESTINATIONS })
  const account = await resources.saveAccount(store.query, 'main')
  await resources.save(store.query, 'database', { account, input: input('shop', db.connection) })
  const save = (name: string, batchSize: number, by: ResourceStore) =>
    by.save(store.query, 'sink', { account, input: sinkOf(name, 'shop', { batch_size: batchSize }) })
  for (const name of ['orders', 'returns', 'stock']) await save(name, 1, resources)
  const sizes = ({ sinks }: { sinks: readonly { batch_size: number }[] }) => sinks.map(({ batch_size }) => batch_size)

  const before = await resources.load(store.query)
  const { id } = await save('returns', 2, resources)
  const known = resources.afterSaved(before, 'sink', id) ?? assert.fail('it is not known')
  const { print: _print, ...found } = await elsewhere.load(store.query)
  const { print, ...rows } = known
  assert.deepEqual(rows, found)
  assert.equal(print, await elsewhere.print(store.query))
  assert.ok(resources.isNewest(known))
  assert.equal(await resources.load(store.query), known)

  const made = await save('pallets', 7, resources)
  const more = resources.afterSaved(known, 'sink', made.id) ?? assert.fail('a new one is not known')
  assert.deepEqual(sizes(more), [1, 7, 2, 1])
  assert.equal(await resources.load(store.query), more)
  await resources.delete(store.query, 'sink', made.id)
  const fewer = resources.afterDeleted(more, 'sink', made.id) ?? assert.fail('that it is gone is not known')
  assert.deepEqual(fewer, known)
  assert.equal(await resources.load(store.query), fewer)
  await resources.delete(store.query, 'sink', made.id)
  assert.equal(resources.afterDeleted(fewer, 'sink', made.id), undefined, 'it was gone already')

  await save('orders', 3, elsewhere)
  await resources.delete(store.query, 'sink', known.sinks[2]?.id ?? '')
  await save('returns', 4, resources)
  assert.deepEqual(sizes(resources.afterSaved(fewer, 'sink', id) ?? assert.fail('it is not known')), [1, 4, 1])
  assert.deepEqual(sizes(await resources.load(store.query)), [3, 4])

  await save('returns', 5, resources)
  assert.equal(resources.afterSaved(before, 'sink', id), undefined, 'something else was read since')
  assert.equal(resources.afterSaved(await resources.load(store.query), 'sink', id), undefined, 'it was read')
})

test('a new sink that does not say its partitions gets the default, and keeps what it has from then on', async () => {
  await using db = await createState()
  await using store = await openStore(db.connection, 2, () => {})
  const vault = new Vault(Buffer.alloc(32, 1))
  /** @returns partitions and generation of the sink. @param log the default of the log that the process has */
  const saved = async (log: number, more: object) => {
    const resources = new ResourceStore(vault, { destinations: STORED_DESTINATIONS, partitions: log })
    await store.transaction(async (query) => {
      const account = await resources.saveAccount(query, 'main')
      await resources.save(query, 'database', { account, input: input('shop', db.connection) })
      await resources.save(query, 'sink', { account, input: sinkOf('orders', 'shop', more) })
    })
    const { sinks } = await resources.load(store.query)
    const [newest] = await db.query('select max(generation) as generation from tailrace.generation')
    return [sinks[0]?.partitions, newest?.['generation']]
  }
  assert.deepEqual(await saved(4, {}), [4, 1])
  assert.deepEqual(await saved(1, { batch_size: 2 }), [4, 1])
  assert.deepEqual(await saved(4, { partitions: 2 }), [2, 2])
  assert.deepEqual(await saved(4, {}), [2, 2])
})

test('an account sees its own sinks alone, by id in any case and by name', async () => {
  await using opened = await openResources()
  const { db, store, resources } = opened
  for (const name of ['a', 'b']) {
    await store.transaction(async (query) => {
      const account = await resources.saveAccount(query, name)
      await saveToken(query, account, { name: 'ci', token: `token-of-${name}` })
      await resources.save(query, 'database', { account, input: input('shop', db.connection) })
      await resources.save(query, 'sink', { account, input: sinkOf('orders', 'shop') })
    })
  }
  const cache = new ResourceCache(await resources.load(store.query))
  const tokens = await allTokens(store.query)
  const accountOf = (token: string) => tokens.get(hashToken(token))?.account
  const a = accountOf('token-of-a') ?? assert.fail('no account')
  const b = accountOf('token-of-b') ?? assert.fail('no account')
  assert.equal(accountOf('token-of-c'), undefined)
  const mine = cache.find('sink', a.id, 'orders') ?? assert.fail('no sink')
  assert.equal(mine.accountId, a.id)
  assert.equal(cache.find('sink', a.id, mine.id.toUpperCase()), mine)
  assert.equal(cache.find('sink', b.id, mine.id), undefined)
  assert.deepEqual(cache.list('sink', a.id), [mine])
  assert.equal(cache.find('database', b.id, mine.databaseId), undefined)
  assert.equal(cache.find('database', a.id, mine.databaseId)?.name, 'shop')
})

test('a state that was encrypted under another key is SECRET_UNREADABLE', async () => {
  await using opened = await openResources()
  const { db, store, resources } = opened
  await store.transaction(async (query) => {
    const account = await resources.saveAccount(query, 'main')
    await resources.save(query, 'database', { account, input: input('shop', db.connection) })
  })
  await assert.rejects(new ResourceStore(new Vault(Buffer.alloc(32, 2)), { destinations: STORED_DESTINATIONS }).load(store.query), {
    code: 'SECRET_UNREADABLE',
  })
})

test('settings that an older version did not store come with their defaults, and nothing else changes', async () => {
  await using opened = await openResources()
  const { db, store, resources } = opened
  const sink = sinkOf('orders', 'shop', { batch_size: 7, annotations: { a: null }, source: { include_tables: ['public.a'] } })
  await store.transaction(async (query) => {
    const account = await resources.saveAccount(query, 'main')
    await resources.save(query, 'database', { account, input: input('shop', db.connection) })
    await resources.save(query, 'sink', { account, input: sink })
  })
  const [before] = (await resources.load(store.query)).sinks
  await db.query(
    `update tailrace.sink set settings = settings - array['max_backlog_mb', 'ack_wait_ms', 'actions', 'max_retry_count', 'tables']`,
  )
  const [after] = (await resources.load(store.query)).sinks
  assert.deepEqual(after, before)
  assert.equal(after?.max_backlog_mb, 10_240)
})

test('a login in the URL of an endpoint, as older versions kept it, is encrypted once and for all', async () => {
  await using opened = await openResources()
  const { db, store, resources } = opened
  const account = await store.transaction((query) => resources.saveAccount(query, 'main'))
  const old = {
    name: 'old',
    kind: 'external',
    url: 'https://user:secret@host/in?x=@',
    headers: {},
    encryptedHeaders: { 'x-a': '1' },
  } as const
  await resources.save(store.query, 'http_endpoint', { account, input: old })
  await resources.save(store.query, 'http_endpoint', { account, input: { ...old, name: 'new', url: 'https://host/a@b' } })
  const encrypted = { authorization: `Basic ${Buffer.from('user:secret').toString('base64')}`, 'x-a': '1' }
  const loaded = async () => (await resources.load(store.query)).endpoints.map(({ url, encryptedHeaders }) => [url, encryptedHeaders])
  const wanted = [
    ['https://host/a@b', { 'x-a': '1' }],
    ['https://host/in?x=@', encrypted],
  ]
  assert.deepEqual(await loaded(), wanted)
  const urls = () => db.query('select url, xmin::text from tailrace.http_endpoint order by name')
  const [untouched, before] = await urls()
  await store.transaction((query) => resources.encryptLogins(query))
  const [same, after] = await urls()
  assert.deepEqual([same, after?.['url'], before?.['url']], [untouched, 'https://host/in?x=@', old.url])
  assert.deepEqual(await loaded(), wanted)
  await store.transaction((query) => resources.encryptLogins(query))
  assert.deepEqual(await urls(), [same, after])
})
