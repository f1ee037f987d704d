import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { test } from 'node:test'
import { Client } from 'pg'
import { hashGroup } from '../../../engine/wal/decode/change.ts'
import { createDatabase } from '../../services/postgres.ts'
import { type Message, WalStream } from './wal-stream.ts'

/** Too long to stay in the row, and too random to be compressed. */
const incompressible = (bytes: number): string => randomBytes(bytes).toString('hex')

const shape = ({ json, isTombstone }: Message) => ({
  action: json.action,
  record: json.record,
  changes: json.changes,
  pks: json.metadata.record_pks,
  ...(isTombstone ? { tombstone: true } : {}),
})

test('the whole message of an insert', async () => {
  await using db = await createDatabase('create schema "sh\\op"; create table "sh\\op"."go""ods" (id bigint primary key, "ti""tle" text)')
  await using stream = await WalStream.open(db)
  await db.query('insert into "sh\\op"."go""ods" values (7, $1)', ['Lamp 😀\u0001'])
  const [message, ...more] = await stream.messages()
  assert.deepEqual(more, [])
  const { commit_timestamp, commit_lsn, ...metadata } = message!.json.metadata
  assert.deepEqual(
    { ...message!.json, metadata },
    {
      record: { id: 7, 'ti"tle': 'Lamp 😀\u0001' },
      changes: null,
      action: 'insert',
      metadata: {
        table_schema: 'sh\\op',
        table_name: 'go"ods',
        commit_idx: 0,
        idempotency_key: Buffer.from(`${commit_lsn}:0`).toString('base64'),
        record_pks: ['7'],
        transaction_annotations: null,
      },
    },
  )
  assert.match(String(commit_timestamp), /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$/)
  assert.ok(Math.abs(Date.parse(String(commit_timestamp)) - Date.now()) < 60_000)
  const [{ now }] = (await db.query<{ now: string }>(`select (pg_current_wal_lsn() - '0/0')::text as now`)) as [{ now: string }]
  assert.ok(BigInt(commit_lsn as number) < BigInt(now) && BigInt(commit_lsn as number) > BigInt(now) - 10_000_000n)
})

test('REPLICA IDENTITY DEFAULT: updates have empty changes, deletes only the key', async () => {
  await using db = await createDatabase('create table goods (id int primary key, title text, price numeric)')
  await using stream = await WalStream.open(db)
  await db.query(
    `insert into goods values (1, 'Lamp', 19.90); update goods set title = 'Lampe'; update goods set price = null; delete from goods`,
  )
  assert.deepEqual((await stream.messages()).map(shape), [
    { action: 'insert', record: { id: 1, title: 'Lamp', price: '19.90' }, changes: null, pks: ['1'] },
    { action: 'update', record: { id: 1, title: 'Lampe', price: '19.90' }, changes: {}, pks: ['1'] },
    { action: 'update', record: { id: 1, title: 'Lampe', price: null }, changes: {}, pks: ['1'] },
    { action: 'delete', record: { id: 1, title: null, price: null }, changes: null, pks: ['1'] },
  ])
})

test('REPLICA IDENTITY FULL: changes are the old values that differ, deletes the whole row, the key is the primary key', async () => {
  await using db = await createDatabase(`
    create table goods (title text, note text, id int primary key, price numeric); alter table goods replica identity full`)
  await using stream = await WalStream.open(db)
  await db.query(`
    insert into goods values ('Lamp', null, 1, 19.9); update goods set title = 'Lampe', note = 'new', price = 19.90;
    update goods set note = null; update goods set title = title; delete from goods`)
  const messages = await stream.messages()
  assert.deepEqual(messages.map(shape).slice(1), [
    {
      action: 'update',
      record: { title: 'Lampe', note: 'new', id: 1, price: '19.90' },
      changes: { title: 'Lamp', note: null, price: '19.9' },
      pks: ['1'],
    },
    { action: 'update', record: { title: 'Lampe', note: null, id: 1, price: '19.90' }, changes: { note: 'new' }, pks: ['1'] },
    { action: 'update', record: { title: 'Lampe', note: null, id: 1, price: '19.90' }, changes: {}, pks: ['1'] },
    { action: 'delete', record: { title: 'Lampe', note: null, id: 1, price: '19.90' }, changes: null, pks: ['1'] },
  ])
  assert.deepEqual(stream.described[0]!.key, ['id'])
})

test('a TOASTed value that an update leaves alone: filled in under FULL, else a literal and a flag, never null', async () => {
  await using db = await createDatabase(`
    create table by_key (id int primary key, title text, body text);
    create table whole (id int primary key, title text, body text); alter table whole replica identity full`)
  await using stream = await WalStream.open(db)
  const body = incompressible(8192)
  for (const table of ['by_key', 'whole']) {
    await db.query(`insert into ${table} values (1, 'draft', $1)`, [body])
    await db.query(`update ${table} set title = 'final'`)
    await db.query(`update ${table} set id = 2`)
    await db.query(`delete from ${table}`)
  }
  const messages = await stream.messages()
  const seen = messages.map((message) => [
    message.json.action,
    message.json.record.body === body ? 'the body' : message.json.record.body,
    message.hasUnchanged,
  ])
  assert.deepEqual(seen, [
    ['insert', 'the body', false],
    ['update', 'unchanged_toast', true],
    ['delete', null, false],
    ['update', 'unchanged_toast', true],
    ['delete', null, false],
    ['insert', 'the body', false],
    ['update', 'the body', false],
    ['delete', 'the body', false],
    ['update', 'the body', false],
    ['delete', 'the body', false],
  ])
  assert.deepEqual(messages[6]!.json.changes, { title: 'draft' })
  assert.deepEqual(messages[8]!.json.changes, { id: 1 })
})

test('an update of the primary key also makes a tombstone: a delete of the old key in the old key’s group', async () => {
  await using db = await createDatabase(`
    create table by_key (id int primary key, title text);
    create table whole (id int primary key, title text); alter table whole replica identity full`)
  await using stream = await WalStream.open(db)
  for (const table of ['by_key', 'whole']) await db.query(`insert into ${table} values (1, 'Lamp'); update ${table} set id = 2`)
  const messages = await stream.messages()
  const titles = [null, 'Lamp'] // with REPLICA IDENTITY FULL the whole old row is known, as of any delete
  for (const [i, [insert, tombstone, update]] of (
    [messages.slice(0, 3), messages.slice(3, 6)] as [Message, Message, Message][]
  ).entries()) {
    const record = { id: 1, title: titles[i] }
    assert.deepEqual(shape(tombstone), { action: 'delete', record, changes: null, pks: ['1'], tombstone: true })
    assert.deepEqual(shape(update), { action: 'update', record: { id: 2, title: 'Lamp' }, changes: { id: 1 }, pks: ['2'] })
    assert.deepEqual([tombstone.keys, tombstone.groupKey, tombstone.hash], [insert.keys, insert.groupKey, insert.hash])
    assert.deepEqual([update.keys, update.groupKey], ['["2"]', '2'])
    assert.notEqual(update.hash, insert.hash)
    // one position, but not a repetition of the update
    assert.equal(tombstone.json.metadata.commit_idx, update.json.metadata.commit_idx)
    assert.notEqual(tombstone.json.metadata.idempotency_key, update.json.metadata.idempotency_key)
  }
})

test('composite keys: columns in table order; an update of one part names the whole old key', async () => {
  await using db = await createDatabase('create table item (qty int, tenant text, at timestamptz, sku text, primary key (sku, tenant, at))')
  await using stream = await WalStream.open(db)
  await db.query(
    `insert into item values (5, 'a:b', '2025-02-03 04:05:06+00', 'x"y'); update item set qty = 6; update item set sku = 'z'; delete from item`,
  )
  const messages = await stream.messages()
  assert.deepEqual(messages.map(shape), [
    {
      action: 'insert',
      record: { qty: 5, tenant: 'a:b', at: '2025-02-03T04:05:06.000000Z', sku: 'x"y' },
      changes: null,
      pks: ['a:b', '2025-02-03 04:05:06+00', 'x"y'],
    },
    {
      action: 'update',
      record: { qty: 6, tenant: 'a:b', at: '2025-02-03T04:05:06.000000Z', sku: 'x"y' },
      changes: {},
      pks: ['a:b', '2025-02-03 04:05:06+00', 'x"y'],
    },
    {
      action: 'delete',
      record: { qty: null, tenant: 'a:b', at: '2025-02-03T04:05:06.000000Z', sku: 'x"y' },
      changes: null,
      pks: ['a:b', '2025-02-03 04:05:06+00', 'x"y'],
      tombstone: true,
    },
    {
      action: 'update',
      record: { qty: 6, tenant: 'a:b', at: '2025-02-03T04:05:06.000000Z', sku: 'z' },
      changes: { tenant: 'a:b', at: '2025-02-03T04:05:06.000000Z', sku: 'x"y' },
      pks: ['a:b', '2025-02-03 04:05:06+00', 'z'],
    },
    {
      action: 'delete',
      record: { qty: null, tenant: 'a:b', at: '2025-02-03T04:05:06.000000Z', sku: 'z' },
      changes: null,
      pks: ['a:b', '2025-02-03 04:05:06+00', 'z'],
    },
  ])
  assert.equal(messages[0]!.groupKey, 'a:b:2025-02-03 04:05:06+00:x"y')
  for (const { keys, json } of messages) assert.deepEqual(JSON.parse(keys), json.metadata.record_pks)
})

test('a key long enough to be TOASTed is known also where the update left it alone', async () => {
  await using db = await createDatabase(
    `create table page (path text primary key, n int); alter table page alter path set storage external`,
  )
  await using stream = await WalStream.open(db)
  const path = incompressible(1250)
  await db.query('insert into page values ($1, 1)', [path])
  await db.query('update page set n = 2')
  const [, update, ...more] = await stream.messages()
  assert.deepEqual(shape(update!), { action: 'update', record: { path, n: 2 }, changes: {}, pks: [path] })
  assert.deepEqual([update!.hasUnchanged, more], [false, []])
})

test('USING INDEX: the index’s columns are what is known of an old row; a primary key outside it is a warning', async () => {
  await using db = await createDatabase(`
    create table inside (id int not null, code text not null, title text, primary key (code));
    create unique index inside_idx on inside (id, code); alter table inside replica identity using index inside_idx;
    create table outside (id int primary key, code text not null unique, title text);
    alter table outside replica identity using index outside_code_key`)
  await using stream = await WalStream.open(db)
  for (const table of ['inside', 'outside']) {
    await db.query(
      `insert into ${table} values (1, 'a', 'x'); update ${table} set title = 'y'; update ${table} set code = 'b'; delete from ${table}`,
    )
  }
  const messages = await stream.messages()
  assert.deepEqual(messages.slice(0, 5).map(shape), [
    { action: 'insert', record: { id: 1, code: 'a', title: 'x' }, changes: null, pks: ['a'] },
    { action: 'update', record: { id: 1, code: 'a', title: 'y' }, changes: {}, pks: ['a'] },
    { action: 'delete', record: { id: 1, code: 'a', title: null }, changes: null, pks: ['a'], tombstone: true },
    { action: 'update', record: { id: 1, code: 'b', title: 'y' }, changes: { id: 1, code: 'a' }, pks: ['b'] },
    { action: 'delete', record: { id: 1, code: 'b', title: null }, changes: null, pks: ['b'] },
  ])
  assert.deepEqual(messages.slice(5).map(shape), [
    { action: 'insert', record: { id: 1, code: 'a', title: 'x' }, changes: null, pks: ['1'] },
    { action: 'update', record: { id: 1, code: 'a', title: 'y' }, changes: {}, pks: ['1'] },
    { action: 'update', record: { id: 1, code: 'b', title: 'y' }, changes: { code: 'a' }, pks: ['1'] },
    { action: 'delete', record: { id: null, code: 'b', title: null }, changes: null, pks: [null] },
  ])
  assert.deepEqual(
    stream.described.map((d) => [d.key, d.warnings.map((w) => w.code)]),
    [
      [['code'], []],
      [['id'], ['key_outside_identity']],
    ],
  )
})

test('groups by other columns: their values joined; null and what a delete doesn’t tell are empty', async () => {
  await using db = await createDatabase(`
    create table goods (id int primary key, tenant text, shop int);
    create table whole (id int primary key, tenant text, shop int); alter table whole replica identity full`)
  await using stream = await WalStream.open(db)
  stream.groupColumns = ['shop', 'tenant']
  for (const table of ['goods', 'whole']) {
    await db.query(
      `insert into ${table} values (1, 'a', 5); update ${table} set tenant = null; update ${table} set id = 2, tenant = 'b'; delete from ${table}`,
    )
  }
  const messages = await stream.messages()
  const groups = messages.map(({ json, groupKey, isTombstone }) => `${isTombstone ? 'tombstone' : json.action} ${groupKey}`)
  assert.deepEqual(groups.slice(0, 5), ['insert 5:a', 'update 5:', 'tombstone 5:b', 'update 5:b', 'delete :'])
  assert.deepEqual(groups.slice(5), ['insert 5:a', 'update 5:', 'tombstone 5:', 'update 5:b', 'delete 5:b'])
  const oids = await db.query<{ oid: string }>(`select unnest(array['goods', 'whole'])::regclass::oid::text as oid`)
  for (const [i, { hash, groupKey }] of messages.entries())
    assert.equal(hash, hashGroup(Number(oids[i < 5 ? 0 : 1]!.oid), Buffer.from(groupKey)))
})

test('a table without a key streams in one group, with a warning', async () => {
  await using db = await createDatabase('create table event (at int, what text); alter table event replica identity full')
  await using stream = await WalStream.open(db)
  await db.query(`insert into event values (1, 'a'); update event set what = 'b'; delete from event`)
  const messages = await stream.messages()
  assert.deepEqual(messages.map(shape), [
    { action: 'insert', record: { at: 1, what: 'a' }, changes: null, pks: [] },
    { action: 'update', record: { at: 1, what: 'b' }, changes: { what: 'a' }, pks: [] },
    { action: 'delete', record: { at: 1, what: 'b' }, changes: null, pks: [] },
  ])
  assert.deepEqual(
    messages.map(({ keys, groupKey }) => [keys, groupKey]),
    Array.from({ length: 3 }, () => ['[]', '']),
  )
  assert.deepEqual(
    stream.described[0]!.warnings.map(({ code }) => code),
    ['no_primary_key'],
  )
})

test('changes of a partition are the root’s, also where its columns stand in another order', async () => {
  await using db = await createDatabase(`
    create table sale (id int, region text, amount numeric, primary key (id, region)) partition by list (region);
    create table sale_eu partition of sale for values in ('eu');
    create table sale_us (amount numeric, gone int, region text not null, id int not null); alter table sale_us drop column gone;
    alter table sale attach partition sale_us for values in ('us')`)
  await using stream = await WalStream.open(db)
  await db.query(
    `insert into sale values (1, 'eu', 1.5), (2, 'us', 2.5); update sale set amount = 3 where id = 2; update sale set region = 'us' where id = 1`,
  )
  const messages = await stream.messages()
  assert.deepEqual(new Set(messages.map(({ json }) => json.metadata.table_name)), new Set(['sale']))
  assert.deepEqual(messages.map(shape), [
    { action: 'insert', record: { id: 1, region: 'eu', amount: '1.5' }, changes: null, pks: ['1', 'eu'] },
    { action: 'insert', record: { id: 2, region: 'us', amount: '2.5' }, changes: null, pks: ['2', 'us'] },
    { action: 'update', record: { id: 2, region: 'us', amount: '3' }, changes: {}, pks: ['2', 'us'] },
    { action: 'delete', record: { id: 1, region: 'eu', amount: null }, changes: null, pks: ['1', 'eu'] }, // Postgres moves a row by delete and insert
    { action: 'insert', record: { id: 1, region: 'us', amount: '1.5' }, changes: null, pks: ['1', 'us'] },
  ])
})

test('a generated column is absent, unless it is published', async () => {
  await using db = await createDatabase('create table box (id int primary key, w int, area int generated always as (w * w) stored)')
  await using stream = await WalStream.open(db)
  await db.query('insert into box values (1, 3)')
  assert.deepEqual(
    (await stream.messages()).map(({ json }) => json.record),
    [{ id: 1, w: 3 }],
  )
  const [{ version }] = (await db.query<{ version: number }>(`select current_setting('server_version_num')::int as version`)) as [
    { version: number },
  ]
  if (version < 180_000) return
  await db.query('alter publication p set (publish_generated_columns = stored); insert into box values (2, 4)')
  assert.deepEqual(
    (await stream.messages()).map(({ json }) => json.record),
    [{ id: 2, w: 4, area: 16 }],
  )
})

test('columns added, dropped, renamed and retyped, and a table renamed, show from the next change on', async () => {
  await using db = await createDatabase('create table t (id int primary key, a text)')
  await using stream = await WalStream.open(db)
  await db.query(`
    insert into t values (1, 'x'); alter table t add b int default 5; update t set a = 'y'; alter table t rename a to c; update t set b = 6;
    alter table t alter b type text; update t set b = 'seven'; alter table t drop c; update t set b = '8'; alter table t rename to u; update u set b = '9'`)
  const messages = await stream.messages()
  assert.deepEqual(
    messages.map(({ json }) => [json.metadata.table_name, json.record]),
    [
      ['t', { id: 1, a: 'x' }],
      ['t', { id: 1, a: 'y', b: 5 }],
      ['t', { id: 1, c: 'y', b: 6 }],
      ['t', { id: 1, c: 'y', b: 'seven' }],
      ['t', { id: 1, b: '8' }],
      ['u', { id: 1, b: '9' }],
    ],
  )
})

test('indexes count every message of a transaction, wanted or not, and a rolled back savepoint leaves none', async () => {
  await using db = await createDatabase('create table t (id int primary key); create table emptied (id int)')
  await using stream = await WalStream.open(db)
  await db.query(`
    begin; insert into t values (1); savepoint s; insert into t values (2); rollback to s; truncate emptied;
    select pg_logical_emit_message(true, 'something', 'else'); insert into t values (3); commit`)
  const messages = await stream.messages()
  assert.deepEqual(
    messages.map(({ json }) => [json.record.id, json.metadata.commit_idx]),
    [
      [1, 0],
      [3, 3],
    ],
  )
  assert.equal(new Set(messages.map(({ json }) => json.metadata.commit_lsn)).size, 1)
  assert.equal(stream.truncated.length, 1)
})

test('annotations hold for what follows in their transaction, until they are replaced, cleared or broken', async () => {
  await using db = await createDatabase('create table t (id serial primary key)')
  await using stream = await WalStream.open(db)
  const emit = (prefix: string, content: string, transactional = true) =>
    `select pg_logical_emit_message(${transactional}, '${prefix}', '${content}')`
  const insert = 'insert into t default values'
  await db.query(
    [
      'begin',
      insert,
      emit('sequin:transaction_annotations.set', '{"user": "u-9",\n "n": 9007199254740993}'),
      insert,
      emit('tailrace:transaction_annotations.set', '"second"'),
      emit('other:transaction_annotations.set', '"other"'),
      insert,
      emit('sequin:transaction_annotations.clear', 'ignored'),
      insert,
      emit('tailrace:transaction_annotations.set', '[1]'),
      emit('sequin:transaction_annotations.set', '{broken'),
      insert,
      emit('tailrace:transaction_annotations.set', '{"last": true}'),
      emit('tailrace:transaction_annotations.set', '{"not": "transactional"}', false),
      insert,
      'commit',
      insert,
    ].join(';'),
  )
  const messages = await stream.messages()
  assert.deepEqual(
    messages.map(({ json }) => json.metadata.transaction_annotations),
    [null, { user: 'u-9', n: 9007199254740993n }, 'second', null, null, { last: true }, null],
  )
  assert.ok(messages.every(({ text }) => !text.includes('\n')))
  assert.deepEqual(
    stream.annotationMarks
      .filter(({ kind }) => kind === 'invalid')
      .map((mark) => mark.kind === 'invalid' && mark.ignored)
      .sort(),
    [false, true],
  )
})

test('a database in another encoding is read as UTF-8', async () => {
  await using db = await createDatabase()
  const name = `${db.name}_latin`
  await db.query(`create database ${name} encoding 'LATIN1' lc_collate 'C' lc_ctype 'C' template template0`)
  const url = Object.assign(new URL(db.url), { pathname: `/${name}` }).href
  const client = new Client({ connectionString: url })
  await client.connect()
  try {
    await using stream = await WalStream.open({ ...db, url, query: async (sql) => (await client.query(sql)).rows })
    await client.query(`create table "größe" (id text primary key, "fuß" text); insert into "größe" values ('ä', 'é "ü"')`)
    const [message] = await stream.messages()
    assert.deepEqual([message!.json.metadata.table_name, message!.json.record], ['größe', { id: 'ä', fuß: 'é "ü"' }])
  } finally {
    await client.query(`select pg_drop_replication_slot('s_' || current_database())`)
    await client.end()
    await db.query(`drop database ${name} with (force)`)
  }
})
