/** Enrichment: rows of a real Postgres, found by the keys of messages as the stream has them. */
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { after, test } from 'node:test'
import { PackBuilder } from '../../engine/log/pack-builder.ts'
import { ACTION, MESSAGE_FLAG, Pack } from '../../engine/log/pack.ts'
import { PART } from '../../engine/position.ts'
import { SnapshotReader } from '../../engine/wal/connection/snapshot-reader.ts'
import { Enricher } from '../../transforms/enrichment.ts'
import { createDatabase } from '../services/postgres.ts'

const db = await createDatabase(`
  create type size as enum ('small', 'large');
  create table tenant (id int primary key, name text);
  create table goods (id bigint primary key, tenant_id int, price numeric, tags text[], size size, sold_at timestamptz, about jsonb);
  create table part (z text, a int, note text, primary key (z, a));
  insert into tenant values (3, 'North');
  insert into goods values (7, 3, 19.90, '{home,null}', 'large', '2025-02-03 04:05:06+00', '{"w": 1}'), (9007199254740993, 3, 1, null, null, null, null);
  insert into part values ('x', 1, 'one'), ('x', 2, 'two'), ('y:', 1, 'three');
`)
const reader = new SnapshotReader(db.connection, 'test')
after(async () => {
  await reader.close()
  await db[Symbol.asyncDispose]()
})

type Given = Readonly<{ key: readonly (string | null)[]; table?: string; xid?: number; flags?: number; commitTimeUs?: number }>

async function messagesOf(rows: readonly Given[]) {
  const builder = new PackBuilder({ history: 0, term: 1, routing: 1 })
  for (const [idx, { key, table = 'goods', xid = 0, flags = 0, commitTimeUs = Date.now() * 1000 }] of rows.entries()) {
    const [{ oid } = { oid: 0 }] = await db.query<{ oid: number }>('select $1::regclass::oid::int as oid', [table])
    builder.begin(BigInt(4096 + idx), xid, commitTimeUs)
    const text = JSON.stringify(key)
    builder.bodies.copy(Buffer.from(`${text}"record":{}`))
    builder.add(0, PART.row, ACTION.update, oid, flags, idx, Buffer.byteLength(text), 0)
  }
  const pack = Pack.decode(builder.encode())
  return rows.map((_, place) => ({ view: pack, place }))
}

async function enriched(sql: string, rows: readonly Given[]) {
  const { rows: found, failures } = await new Enricher({ name: 'names', sql, reader }).enrich(await messagesOf(rows))
  return { rows: found.map((row) => row?.toString()), failures: [...failures.values()].map(({ text }) => text) }
}

test('each message gets the row of its key, rendered as rows of messages are, and null where there is none', async () => {
  const sql = 'select g.*, t.name as tenant_name from goods g left join tenant t on t.id = g.tenant_id where g.id = any($1)'
  const keys = [['7'], ['8'], ['9007199254740993'], ['7']]
  const { rows, failures } = await enriched(
    sql,
    keys.map((key) => ({ key })),
  )
  const lamp =
    '{"id":7,"tenant_id":3,"price":"19.90","tags":["home",null],"size":"large","sold_at":"2025-02-03T04:05:06.000000Z","about":{"w": 1},"tenant_name":"North"}'
  assert.deepEqual(rows, [lamp, undefined, rows[2], lamp])
  assert.match(rows[2] ?? '', /^\{"id":9007199254740993,"tenant_id":3,"price":"1","tags":null,/)
  assert.deepEqual(failures, [])
})

test('the example joins what belongs to a row', async () => {
  await db.query(`
    create table product (id int primary key, tenant_id int);
    create table stock (product_id int, amount int);
    insert into product values (1, 3), (2, 3);
    insert into stock values (1, 2), (1, 3);
  `)
  const sql = readFileSync(new URL('../../transforms/examples/tenant-names.sql', import.meta.url), 'utf8')
  const { rows } = await enriched(
    sql,
    ['1', '2', '3'].map((id) => ({ key: [id], table: 'product' })),
  )
  assert.deepEqual(rows, ['{"id":1,"tenant_name":"North","in_stock":5}', '{"id":2,"tenant_name":"North","in_stock":0}', undefined])
})

test('columns of a key are given in the order of their names, as arrays side by side', async () => {
  const sql = 'select p.* from part p join unnest($1::int[], $2::text[]) k(a, z) using (a, z)'
  const { rows } = await enriched(sql, [
    { key: ['x', '2'], table: 'part' },
    { key: ['y:', '1'], table: 'part' },
    { key: ['y:', '2'], table: 'part' },
  ])
  assert.deepEqual(rows, ['{"z":"x","a":2,"note":"two"}', '{"z":"y:","a":1,"note":"three"}', undefined])
})

test('what a query gives wrong, and what Postgres says of it, fails the messages of that table and no others', async () => {
  const wrong: [sql: string, text: RegExp][] = [
    ['select *\nfrom goods where nosuch = any($1)', /column "nosuch" does not exist, line 2, column 18 \(42703\)/],
    ['select g.nme from goods g where id = any($1)', /column g\.nme does not exist, line 1, column 8.* \(42703\)/],
    ['select * from goods whree id = any($1)', /syntax error .*, line 1, column \d+ \(42601\)/],
    ['select * from goods where id = $1', /invalid input syntax .*"\{.*; a parameter is an array: = any\(\$1\) \(22P02\)/],
    ['select id, 1 / 0 as x from goods where id = any($1)', /division by zero \(22012\)/],
    ['select g.id, n from goods g, generate_series(1, 2) n where g.id = any($1)', /more than one row for a primary key/],
    ['select g.*, t.* from goods g join tenant t on t.id = g.tenant_id where g.id = any($1)', /two columns named "id"/],
    ['select price from goods where id = any($1)', /does not select "id" of the primary key/],
    ['with gone as (delete from goods where id = any($1) returning *) select * from gone', /read-only transaction \(25006\)/],
  ]
  for (const [sql, text] of wrong) {
    const { rows, failures } = await enriched(sql, [{ key: ['7'] }, { key: ['7'] }])
    assert.deepEqual(rows, [undefined, undefined])
    assert.equal(failures.length, 2, sql)
    assert.match(failures[0] ?? '', text)
  }
  const { rows, failures } = await enriched('select * from part where a = any($1) and z = any($2)', [
    { key: ['7'] },
    { key: ['x', '2'], table: 'part' },
  ])
  assert.match(rows[1] ?? '', /"note":"two"/)
  assert.match(failures.join(), /bind message supplies 1 parameters/)
})

test('a row is read when the commit of its message is visible, and not before', async () => {
  const session = await db.connect()
  await session.query('begin')
  const { rows } = await session.query(`insert into tenant values (4, 'South') returning pg_current_xact_id()::xid::text::bigint as xid`)
  const xid = Number((rows[0] as { xid: string }).xid)
  let isDone = false
  const sql = 'select * from tenant where id = any($1)'
  const found = enriched(sql, [{ key: ['4'], table: 'tenant', xid }]).finally(() => (isDone = true))
  const past = await enriched(sql, [{ key: ['4'], table: 'tenant', xid: xid + 1_000_000 }]) // of another server's past
  assert.deepEqual([past.rows, isDone], [[undefined], false])
  await session.query('commit')
  assert.deepEqual((await found).rows, ['{"id":4,"name":"South"}'])
})

test('tombstones and keys that Postgres does not tell are not asked for', async () => {
  const { rows, failures } = await enriched('select * from goods where id = any($1)', [
    { key: ['7'], flags: MESSAGE_FLAG.tombstone },
    { key: [null] },
  ])
  assert.deepEqual([rows, failures], [[undefined, undefined], []])
})

test('a source that can not be asked fails nothing: nothing is known of any message', async () => {
  const away = new SnapshotReader({ ...db.connection, port: 1 }, 'test')
  const messages = await messagesOf([{ key: ['7'] }])
  await assert.rejects(new Enricher({ name: 'names', sql: 'select $1', reader: away }).enrich(messages), { code: 'SOURCE_UNREACHABLE' })
  await away.close()
})

test('a value of 120 MB fails the messages before it has been put together, and the connection is replaced', async () => {
  const before = process.memoryUsage.rss()
  let largest = before
  const looking = setInterval(() => (largest = Math.max(largest, process.memoryUsage.rss())), 5).unref()
  const sql = `select id, repeat('x', 120 * 1024 * 1024) as text from goods where id = any($1)`
  let text = ''
  // a machine that stands still has no time for so much: then it is asked again
  for (let tries = 0; tries < 3 && !text.includes('more than'); tries++) text = (await enriched(sql, [{ key: ['7'] }])).failures.join()
  clearInterval(looking)
  largest = Math.max(largest, process.memoryUsage.rss())
  assert.match(text, /more than 64 MB for one batch/)
  assert.ok(largest - before < 230 * 1024 * 1024, `${Math.round((largest - before) / 1024 / 1024)} MB`)
  const { rows } = await enriched('select * from goods where id = any($1)', [{ key: ['7'] }])
  assert.match(rows[0] ?? '', /"id":7/)
})

test('what a query leaves in its session is gone for the next one', async () => {
  const sql = `select id, set_config('work_mem', '1MB', false) as m, pg_try_advisory_lock(4711)::text as got from goods where id = any($1)`
  await enriched(sql, [{ key: ['7'] }])
  const left = `select id, current_setting('work_mem') = '1MB' as changed, (select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()) as locks from goods where id = any($1)`
  const { rows } = await enriched(left, [{ key: ['7'] }])
  assert.match(rows[0] ?? '', /"changed":false,"locks":0/)
})
