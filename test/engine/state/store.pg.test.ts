import assert from 'node:assert/strict'
import { readdirSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { rowOf } from '../../../engine/postgres/rows.ts'
import { openStore } from '../../../engine/state/store.ts'
import { NetProxy } from '../../faults/net-proxy.ts'
import { withMoreTime } from '../../services/more-time.ts'
import { createDatabase } from '../../services/postgres.ts'
import { until } from '../../waiting.ts'

const unexpected = (error: Error) => assert.fail(error)

/** The limit of a statement and of a connection, in ms: short at first, so that the tests are quick, and longer where a busy machine breaks it. */
const LIMITS_MS = [400, 4_000] as const

test('many processes that start at once on an empty state database make its schema once', async () => {
  await using db = await createDatabase()
  const stores = await Promise.all(Array.from({ length: 5 }, () => openStore(db.connection, 2, unexpected)))
  for (const store of stores) await store[Symbol.asyncDispose]()
  const applied = await db.query<{ number: number }>('select number from tailrace.migration order by number')
  assert.deepEqual(
    applied.map(({ number }) => number),
    applied.map((_, i) => i + 1),
  )
  assert.ok(applied.length > 0)
  assert.deepEqual(await db.query(`select to_regclass('tailrace.sink') is not null as there`), [{ there: true }])
})

test('each migration has a number of its own, and none is left out', () => {
  const numbers = readdirSync(join(import.meta.dirname, '../../../engine/state/migrations')).map((file) => Number(file.slice(0, 4)))
  assert.deepEqual(
    numbers.sort((a, b) => a - b),
    numbers.map((_, i) => i + 1),
  )
})

test('a second start changes nothing, and a state of a newer version is refused', async () => {
  await using db = await createDatabase()
  await (await openStore(db.connection, 1, unexpected))[Symbol.asyncDispose]()
  const before = await db.query('select * from tailrace.migration')
  await (await openStore(db.connection, 1, unexpected))[Symbol.asyncDispose]()
  assert.deepEqual(await db.query('select * from tailrace.migration'), before)
  await db.query(`insert into tailrace.migration (number, name) values (9999, 'later')`)
  await assert.rejects(openStore(db.connection, 1, unexpected), { code: 'STATE_TOO_NEW' })
})

test('names without a schema are found in "tailrace" before "public"', async () => {
  await using db = await createDatabase('create table public.account (wrong int)')
  await using store = await openStore(db.connection, 1, unexpected)
  await store.query(`insert into account (name) values ('a')`)
  assert.deepEqual(await db.query('select name from tailrace.account'), [{ name: 'a' }])
})

test('a transaction that throws leaves nothing, and its session can be used again', async () => {
  await using db = await createDatabase()
  await using store = await openStore(db.connection, 1, unexpected)
  const failing = store.transaction(async (query) => {
    await query(`insert into account (name) values ('gone')`)
    throw new Error('on purpose')
  })
  await assert.rejects(failing, /on purpose/)
  const refused = store.transaction((query) => query('select 1 / 0'))
  await assert.rejects(refused, { code: '22012' })
  assert.deepEqual((await store.query('select name from account')).rows, [])
  assert.equal(await store.transaction(async () => 7), 7)
})

test('what is asked first in a transaction that locks a row sees what the holder before it left, and a lock that fails fails all of it', async () => {
  await using db = await createDatabase()
  await using store = await openStore(db.connection, 2, unexpected)
  await using elsewhere = await openStore(db.connection, 1, unexpected)
  const { rows } = await store.query(`insert into account (name) values ('before') returning id`)
  const lock = { table: 'account', id: rowOf({ id: 'text' }, rows[0]).id, how: 'update' } as const
  const holds = Promise.withResolvers<void>()
  const mayEnd = Promise.withResolvers<void>()
  const former = store.transaction(async (query) => {
    await query(`update account set name = 'after'`)
    holds.resolve()
    await mayEnd.promise
  }, lock)
  await holds.promise
  const next = elsewhere.transaction((query) => query('select name from account'), lock)
  const waiting = `select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`
  await until('the next one waits', async () => (await db.query(waiting))[0]).finally(mayEnd.resolve)
  await former
  assert.deepEqual((await next).rows, [{ name: 'after' }])
  const failing = store.transaction((query) => query(`update account set name = 'wrong'`), { ...lock, table: 'nothing' })
  await assert.rejects(failing, { code: '42P01' })
  assert.deepEqual((await store.query('select name from account')).rows, [{ name: 'after' }])
})

test('transactions that wait for the same row leave the sessions to others, come in turn, and give up in time', () =>
  withMoreTime(LIMITS_MS, async (limitMs) => {
    await using db = await createDatabase()
    await using store = await openStore(db.connection, 2, unexpected, limitMs)
    const { rows } = await store.query(`insert into account (name) values ('a') returning id`)
    const lock = { table: 'account', id: rowOf({ id: 'text' }, rows[0]).id, how: 'update' } as const
    const mayEnd = Promise.withResolvers<void>()
    const order: number[] = []
    const first = store.transaction(() => mayEnd.promise, lock)
    const others = [1, 2, 3].map((i) => store.transaction(async () => order.push(i), lock))
    await store.query('select 1').finally(mayEnd.resolve)
    await Promise.all([first, ...others])
    assert.deepEqual(order, [1, 2, 3])
    const never = Promise.withResolvers<void>()
    const holding = store.transaction(() => never.promise, lock)
    await assert
      .rejects(
        store.transaction(async () => 0, lock),
        { code: 'STATE_UNAVAILABLE' },
      )
      .finally(never.resolve)
    await holding
    assert.equal(await store.transaction(async () => 7, lock), 7)
  }))

test('a state database that refuses or does not answer is STATE_UNAVAILABLE with its address', async () => {
  await using db = await createDatabase()
  const { hostname, port } = db.connection
  const expected = { code: 'STATE_UNAVAILABLE', message: new RegExp(`${hostname}:${port}`) }
  await assert.rejects(openStore({ ...db.connection, password: 'wrong' }, 1, unexpected), expected)
  await assert.rejects(openStore({ ...db.connection, port: 1 }, 1, unexpected), { code: 'STATE_UNAVAILABLE' })
})

test('a session that the server ends in a transaction fails that one, and the next gets another session', async () => {
  await using db = await createDatabase()
  const idle: Error[] = []
  await using store = await openStore(db.connection, 1, (error) => idle.push(error))
  const cut = store.transaction(async (query) => {
    await query(`insert into account (name) values ('gone')`)
    const { rows } = await query('select pg_backend_pid() as pid')
    await db.query('select pg_terminate_backend($1, 5000)', [rows[0]?.pid])
    await query('select 1')
  })
  await assert.rejects(cut)
  assert.deepEqual((await store.query('select name from account')).rows, [])
})

test('a state database that falls silent is STATE_UNAVAILABLE in time, for queries and transactions, and is used again once it is back', () =>
  withMoreTime(LIMITS_MS, async (limitMs) => {
    await using db = await createDatabase()
    await using proxy = await NetProxy.start({ host: db.connection.hostname, port: db.connection.port })
    const connection = { ...db.connection, hostname: '127.0.0.1', port: proxy.port }
    await using store = await openStore(connection, 2, () => undefined, limitMs)
    await store.query('select 1')
    const silent = store.transaction(async (query) => {
      await query(`insert into account (name) values ('gone')`)
      proxy.fallSilent()
      await query('select 1')
    })
    await assert.rejects(silent, { code: 'STATE_UNAVAILABLE' })
    for (let i = 0; i < 3; i++) await assert.rejects(store.query('select 1'), { code: 'STATE_UNAVAILABLE' })
    await assert.rejects(
      store.transaction((query) => query('select 1')),
      { code: 'STATE_UNAVAILABLE' },
    )
    proxy.heal()
    assert.deepEqual((await store.query('select name from account')).rows, [])
  }))

test('a statement that the server never finishes ends in time, on the server too', () =>
  withMoreTime(LIMITS_MS, async (limitMs) => {
    await using db = await createDatabase()
    await using store = await openStore(db.connection, 1, unexpected, limitMs)
    await assert.rejects(store.query('select pg_sleep(60)'), { code: 'STATE_UNAVAILABLE', message: /statement timeout/ })
    await db.query('begin; lock table tailrace.account')
    await assert.rejects(store.query('select from account'), { code: 'STATE_UNAVAILABLE' })
    await db.query('rollback')
    assert.deepEqual((await store.query('select from account')).rows, [])
  }))
