/** The source against a real Postgres: what arrives in the log, in which order, and what comes again after a cut. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Client } from 'pg'
import type { SourceActor } from '../../../actors/source/source-actor.ts'
import { ByteWriter } from '../../../engine/byte-writer.ts'
import { comparePositions } from '../../../engine/position.ts'
import { type Change, type Side, writeKeys } from '../../../engine/wal/decode/change.ts'
import { ReadingGate } from '../../../engine/wal/flow.ts'
import { withMoreTime } from '../../services/more-time.ts'
import { messagesOf, reaches, routedSink, type Seen, SourceFixture } from './source-fixture.ts'
import { pass, until } from '../../waiting.ts'

const TABLE = 'create table item (id int primary key, name text)'
const ids = (seen: readonly Seen[]) => seen.map((m) => Number(m.json.record.id))
const inOrder = (seen: readonly Seen[]) => seen.every((m, i) => i === 0 || comparePositions(seen[i - 1]!.position, m.position) < 0)

async function streaming(it: SourceFixture, ...args: Parameters<SourceFixture['start']>): Promise<SourceActor> {
  const actor = it.start(...args)
  await reaches(actor, 'streaming')
  return actor
}

test('changes arrive in commit order, with positions that grow, and are confirmed: saved before sent', async () => {
  await using it = await SourceFixture.create({ ddl: TABLE })
  const actor = await streaming(it)
  await it.db.query(`insert into item select i, 'n' || i from generate_series(1, 3) i`)
  await it.db.query(`update item set name = 'two' where id = 2`)
  await it.db.query('delete from item where id = 3')
  const seen = await it.until((s) => s.length >= 5)
  assert.deepEqual(
    seen.map((m) => [m.action, m.key, m.position.idx]),
    [
      ['insert', '["1"]', 0],
      ['insert', '["2"]', 1],
      ['insert', '["3"]', 2],
      ['update', '["2"]', 0],
      ['delete', '["3"]', 0],
    ],
  )
  assert.ok(inOrder(seen))
  const last = seen.at(-1)!.position.lsn
  const slot = await until('the slot is confirmed beyond the last commit', async () => {
    const row = await it.slotRow()
    return row.confirmed > last ? row : undefined
  })
  assert.ok((await it.savedConfirmed()) >= slot.confirmed)
  await actor.stop()
  // the server notices in its own time that the line has ended
  await until('the slot is free', async () => !(await it.slotRow()).active)
})

test('interleaved transactions arrive one after the other, in the order of their commits', async () => {
  await using it = await SourceFixture.create({ ddl: TABLE })
  await streaming(it)
  const [a, b] = [await it.db.connect(), await it.db.connect()]
  await a.query('begin')
  await b.query('begin')
  await a.query('insert into item values (1)')
  await b.query('insert into item values (2)')
  await a.query('insert into item values (3)')
  await b.query('commit')
  await a.query('commit')
  const seen = await it.until((s) => s.length >= 3)
  assert.deepEqual(ids(seen), [2, 1, 3])
  assert.ok(inOrder(seen))
})

/** Begin and end LSN of each transaction that the slot would send, without consuming them. */
async function commits(it: SourceFixture): Promise<{ lsn: bigint; end: bigint }[]> {
  const rows = await it.db.query<{ data: Buffer }>(
    `select data from pg_logical_slot_peek_binary_changes($1, null, null, 'proto_version', '1', 'publication_names', 'pub')`,
    [it.slot],
  )
  return rows
    .filter(({ data }) => data[0] === 0x43 /* C */)
    .map(({ data }) => ({ lsn: data.readBigUInt64BE(2), end: data.readBigUInt64BE(10) }))
}

test('of two transactions whose commit records touch, a cut between them loses neither', async () => {
  await using it = await SourceFixture.create({ ddl: TABLE })
  const sessions = await Promise.all(Array.from({ length: 4 }, () => it.db.connect()))
  let id = 0
  const touching = await until('two commits that touch', async () => {
    await Promise.all(
      sessions.map(async (session) => {
        for (let i = 0; i < 50; i++) await session.query('insert into item values ($1)', [++id])
      }),
    )
    const all = await commits(it)
    const at = all.findIndex((commit, i) => commit.end === all[i + 1]?.lsn)
    return at < 0 ? undefined : { first: all[at]!, second: all[at + 1]!, left: all.length - at }
  })
  await it.db.query('select pg_replication_slot_advance($1, $2)', [it.slot, lsnText(touching.first.lsn)])
  // each message is a pack of its own, and the first append takes what there is: the first transaction alone
  let appends = 0
  it.log.before = async () => {
    if (++appends === 1) return
    await until('the first is confirmed', async () => (await it.slotRow()).confirmed > touching.first.lsn)
    throw new Error('cut')
  }
  const cut = await streaming(it, { packBytes: 1 })
  await reaches(cut, 'waiting')
  assert.deepEqual(
    (await it.messages()).map((m) => m.position.lsn),
    [touching.first.lsn],
  )
  await cut.stop()
  assert.equal((await it.slotRow()).confirmed, touching.first.end) // not one byte more
  it.log.before = undefined
  await streaming(it)
  const seen = await it.until((s) => s.length >= touching.left)
  assert.equal(seen[1]?.position.lsn, touching.second.lsn)
  assert.equal(seen.length, touching.left)
})

test('while an append is open nothing of it is confirmed, whatever else moves the log', async () => {
  await using it = await SourceFixture.create({ ddl: TABLE })
  const open = Promise.withResolvers<void>()
  const begun = Promise.withResolvers<void>()
  it.log.before = () => {
    begun.resolve()
    return open.promise
  }
  await streaming(it, { heartbeatMs: 20, walSenderTimeoutMs: 1_000, idleConfirmEveryMs: 1 })
  await it.db.query('insert into item values (1)')
  await begun.promise
  const [row] = await it.db.query<{ lsn: string }>(`select (pg_current_wal_lsn() - '0/0')::text as lsn`)
  for (let i = 0; i < 30; i++) {
    await it.db.query(`select pg_logical_emit_message(true, 'somebody', 'else'), pg_sleep(0.02)`) // commits behind it, keepalives, heartbeats
    assert.ok((await it.slotRow()).confirmed < BigInt(row!.lsn))
    assert.ok((await it.savedConfirmed()) < BigInt(row!.lsn))
  }
  open.resolve()
  const end = await it.walEnd()
  await until('all is confirmed', async () => (await it.slotRow()).confirmed >= end)
})

test('a cut between receiving and appending loses nothing, and nothing is appended after the failed append', async () => {
  await using it = await SourceFixture.create({ ddl: TABLE })
  let isCut = false
  it.log.before = (_records, { position }) => {
    if (!isCut && it.log.appends.length === 2) {
      isCut = true
      throw new Error(`cut at ${position.lsn}`)
    }
  }
  await streaming(it, { lingerMs: 0 })
  let id = 0
  for (let left = 50; left > 0; left -= isCut ? 1 : 0) await it.db.query('insert into item values ($1)', [++id])
  const seen = await it.until((s) => s.length >= id)
  assert.deepEqual(
    ids(seen),
    Array.from({ length: id }, (_, i) => i + 1),
  )
  assert.ok(inOrder(seen), 'no hole that was filled behind later messages')
})

test('a cut between appending and confirming brings nothing twice: the log knows how far it is', async () => {
  await using it = await SourceFixture.create({ ddl: TABLE })
  let isCut = false
  it.log.after = () => {
    if (!isCut && it.log.appends.length === 3) {
      isCut = true
      throw new Error('cut')
    }
  }
  await streaming(it, { lingerMs: 0, confirmEveryMs: 3_600_000 }) // the slot stays behind
  let id = 0
  for (let left = 50; left > 0; left -= isCut ? 1 : 0) await it.db.query('insert into item values ($1)', [++id])
  const seen = await it.until((s) => s.length >= id)
  assert.deepEqual(
    ids(seen),
    Array.from({ length: id }, (_, i) => i + 1),
  )
})

test('a long transaction makes progress over a line that keeps breaking, each message once', async () => {
  await using it = await SourceFixture.create({ ddl: TABLE })
  await it.db.query(`insert into item select i, repeat('x', 200) from generate_series(1, 20000) i`)
  let left = 4
  it.log.after = () => {
    if (it.log.appends.length % 3 === 0 && left-- > 0) throw new Error('cut')
  }
  await streaming(it, { packBytes: 64 * 1024, maxBytesInFlight: 256 * 1024 })
  const seen = await it.until((s) => s.length >= 20_000)
  assert.ok(left <= 0)
  assert.equal(seen.length, 20_000)
  assert.ok(inOrder(seen))
  assert.equal(new Set(seen.map((m) => m.position.lsn)).size, 1)
})

test('two runs over the same log append the same messages, whatever the catalogue and the cuts say by then', async () => {
  const sinks = [
    routedSink({ partitions: 3 }),
    routedSink({ sinkId: 'other', partitions: 2, groupColumns: { 'public.item': ['name'] } }),
    routedSink({ sinkId: 'spread', partitions: 2, grouping: false, timestampFormat: 'unix_microsecond' }),
  ]
  await using it = await SourceFixture.create({
    ddl: `${TABLE}; alter table item replica identity full; create type mood as enum ('ok', 'sad'); create table note (id int, no int, mood mood, primary key (no))`,
    sinks,
  })
  await it.db.query('select pg_copy_logical_replication_slot($1, $2)', [it.slot, `${it.slot}_b`])
  const first = await streaming(it)
  for (let i = 1; i <= 40; i++) {
    await it.db.query(`insert into item values ($1, $2); `.replace('; ', ''), [i, `n${i % 5}`])
    if (i % 4 === 0) await it.db.query('update item set id = id + 1000 where id = $1', [i])
    await it.db.query(`insert into note values ($1, $2, 'ok')`, [i, i + 1])
    if (i === 20) await it.route(first, [...sinks.slice(0, 2), { ...sinks[2]!, actions: ['delete'] }])
    if (i === 30) await it.db.query('delete from item where id < 5')
  }
  const topics = ['sink.1', 'other.1', 'spread.1']
  await it.until((s) => s.filter((m) => m.json.metadata.table_name === 'note').length >= 40)
  await first.stop()
  const byTopic = async () => Object.fromEntries(await Promise.all(topics.map(async (topic) => [topic, await it.messages(topic)] as const)))
  const before = await byTopic()

  // the same stretch of the log once more, into an empty log, after the key has become another one
  await it.db.query('alter table item drop constraint item_pkey')
  await it.db.query('alter table item add column more int, add primary key (id, name)')
  await it.db.query('select pg_drop_replication_slot($1)', [it.slot])
  await it.db.query('select pg_copy_logical_replication_slot($1, $2)', [`${it.slot}_b`, it.slot])
  await it.replaceLog()
  await it.state.query('update tailrace.source set log_identity = $1, log_appends = 0', [it.log.identity])
  await streaming(it, { packBytes: 4096, lingerMs: 0 })
  const count = (all: Record<string, readonly Seen[]>) => Object.values(all).reduce((sum, seen) => sum + seen.length, 0)
  await until('as many messages again', async () => count(await byTopic()) >= count(before))
  const after = await byTopic()
  for (const topic of topics) assert.deepEqual(after[topic], before[topic], topic)
  assert.ok(before['spread.1']!.length > 20 && new Set(before['spread.1']!.map((m) => m.partition)).size === 2)
  assert.ok(before['sink.1']!.some((m) => m.isTombstone))
  assert.deepEqual([...new Set(before['sink.1']!.map((m) => m.routing))].sort(), [1, 2])
})

test('an update of the key appends a tombstone to the group of the old key, ahead of the row', async () => {
  await using it = await SourceFixture.create({ ddl: TABLE, sinks: [routedSink({ partitions: 8 })] })
  await streaming(it)
  await it.db.query(`insert into item values (1, 'a')`)
  await it.db.query('update item set id = 2')
  await it.db.query(`update item set name = 'b'`)
  const seen = await it.until((s) => s.length >= 4)
  const by = (action: string, part: number) => seen.find((m) => m.action === action && m.position.part === part)!
  const tombstone = by('delete', 0)
  assert.ok(tombstone.isTombstone)
  assert.equal(tombstone.key, '["1"]')
  assert.equal(tombstone.group, by('insert', 1).group)
  const moved = seen.find((m) => m.action === 'update' && m.position.lsn === tombstone.position.lsn)!
  assert.equal(moved.key, '["2"]')
  assert.equal(moved.position.idx, tombstone.position.idx)
  assert.notEqual(moved.group, tombstone.group)
  assert.equal(seen.filter((m) => m.isTombstone).length, 1)
})

test('truncates, own types, origins, other messages and our own tables never stop the stream, and take their index', async () => {
  await using it = await SourceFixture.create({
    ddl: `${TABLE}; create type mood as enum ('ok'); create table feel (id int primary key, m mood); create schema tailrace; create table tailrace.own (id int primary key)`,
  })
  const notices: string[] = []
  const actor = await streaming(it, {}, { observer: { notice: (notice) => notices.push(notice) } })
  await it.db.query('insert into item values (1)')
  await it.db.query(`begin; truncate item; insert into tailrace.own values (1); insert into feel values (1, 'ok'); commit`)
  await it.db.query(`select pg_logical_emit_message(true, 'somebody', 'else'), pg_logical_emit_message(false, 'tailrace:routing', 'junk')`)
  await it.db.query(`select pg_logical_emit_message(true, 'tailrace:routing', 'junk')`)
  await it.db.query(`select pg_logical_emit_message(true, 'tailrace:routing', $1)`, [JSON.stringify({ database: it.id, version: 77 })])
  await it.db.query(`select pg_replication_origin_create($1)`, [it.db.name])
  const replayer = await it.db.connect()
  await replayer.query(`select pg_replication_origin_session_setup($1)`, [it.db.name])
  await replayer.query('insert into item values (2)')
  await replayer.query(`select pg_replication_origin_session_reset()`)
  const seen = await it.until((s) => s.length >= 3)
  assert.deepEqual(
    seen.map((m) => [m.json.metadata.table_name, m.json.record.id, m.position.idx]),
    [
      ['item', 1, 0],
      ['feel', 1, 2],
      ['item', 2, 0],
    ],
  )
  assert.equal(actor.state, 'streaming')
  assert.ok(notices.some((notice) => notice.includes('version 77')))
  await it.db.query(`select pg_replication_origin_drop($1)`, [it.db.name])
})

test('a table that changes its shape while it streams goes on under the new one, without a restart', async () => {
  await using it = await SourceFixture.create({ ddl: TABLE })
  const actor = await streaming(it)
  await it.db.query(`insert into item values (1, 'a')`)
  await it.db.query('alter table item add column price numeric(10,2) default 3.50')
  await it.db.query(`insert into item values (2, 'b', 7.25)`)
  await it.db.query('alter table item rename column name to title')
  await it.db.query(`update item set title = 'c' where id = 1`)
  await it.db.query('alter table item drop column price')
  await it.db.query('alter table item alter column id type bigint')
  await it.db.query('alter table item rename to thing')
  await it.db.query(`insert into thing values (9007199254740993, 'd')`)
  await it.db.query('create table later (k text primary key)')
  await it.db.query(`insert into later values ('x')`)
  // the rewrite for the new type is no change of a row
  const seen = await it.until((s) => s.length >= 5)
  assert.deepEqual(
    seen.map((m) => [m.json.metadata.table_name, m.action, Object.keys(m.json.record)]),
    [
      ['item', 'insert', ['id', 'name']],
      ['item', 'insert', ['id', 'name', 'price']],
      ['item', 'update', ['id', 'title', 'price']],
      ['thing', 'insert', ['id', 'title']],
      ['later', 'insert', ['k']],
    ],
  )
  assert.equal(seen[3]?.key, '["9007199254740993"]')
  assert.equal(actor.state, 'streaming')
})

test('a look-up in the catalogue holds the stream without losing order or a chunk', async () => {
  await using it = await SourceFixture.create({
    ddl: `${TABLE}; create table full_one (a int, b int, primary key (b)); alter table full_one replica identity full`,
  })
  await it.db.query(
    `begin; insert into item select i from generate_series(1, 500) i; insert into full_one select i, i + 1 from generate_series(1, 500) i; insert into item values (501); commit`,
  )
  await it.db.query('insert into item values (502)')
  await streaming(it)
  const seen = await it.until((s) => s.length >= 1002)
  assert.ok(inOrder(seen))
  assert.deepEqual(
    seen.map((m) => m.position.idx),
    [...Array.from({ length: 1001 }, (_, i) => i), 0],
  )
  assert.equal(seen[500]?.key, '["2"]') // the primary key, not the whole row that FULL flags
})

test('what several sinks take of one change is the same, and each gets only the actions it asked for', async () => {
  const sinks = [
    routedSink(),
    routedSink({ sinkId: 'deletes', actions: ['delete'] }),
    routedSink({ sinkId: 'micro', timestampFormat: 'unix_microsecond' }),
    routedSink({ sinkId: 'none', source: { exclude_tables: ['item'] } }),
  ]
  await using it = await SourceFixture.create({ ddl: 'create table item (id int primary key, at timestamptz)', sinks })
  await streaming(it)
  await it.db.query(`insert into item values (1, '2025-01-01T00:00:00Z')`)
  await it.db.query('delete from item')
  const deletes = await it.until((s) => s.length >= 1, 'deletes.1')
  const all = await it.until((s) => s.length >= 2)
  const micro = await it.until((s) => s.length >= 2, 'micro.1')
  assert.deepEqual(deletes[0]?.json, all[1]?.json)
  assert.equal(all[0]?.json.record.at, '2025-01-01T00:00:00.000000Z')
  assert.equal(micro[0]?.json.record.at, 1_735_689_600_000_000)
  assert.deepEqual(await it.messages('none.1'), [])
})

test('routing switches exactly where its mark stands, and an ended generation gets its last pack there', async () => {
  await using it = await SourceFixture.create({ ddl: TABLE })
  const actor = await streaming(it)
  await it.db.query('insert into item values (1)')
  await it.route(actor, [routedSink({ generation: 2, partitions: 4 }), routedSink({ sinkId: 'new' })])
  await it.db.query('insert into item values (2)')
  await it.until((s) => s.length >= 1, 'sink.2')
  assert.deepEqual(ids(await it.messages('sink.1')), [1])
  assert.deepEqual(ids(await it.messages('sink.2')), [2])
  assert.deepEqual(ids(await it.until((s) => s.length >= 1, 'new.1')), [2])
  const closing = it.log.appends
    .flatMap(({ records }) => records)
    .filter(({ topic }) => topic === 'sink.1')
    .at(-1)!
  assert.equal(closing.pack.readUInt8(3) & 2, 2) // empty, and the last of its generation
  assert.deepEqual(messagesOf('sink.1', 0, closing.pack), [])
  const { rows } = await it.state.query('select version, lsn is not null as placed from tailrace.routing_version order by version')
  assert.deepEqual(rows, [
    { version: 1, placed: true },
    { version: 2, placed: true },
  ])
})

test('a version saved while the source was away takes effect when it comes back, a source without sinks confirms on', async () => {
  await using it = await SourceFixture.create({ ddl: TABLE, sinks: [] })
  const first = await streaming(it)
  await it.db.query('insert into item values (1)')
  const end = await it.walEnd()
  await until('unwanted changes are confirmed', async () => (await it.slotRow()).confirmed >= end)
  await first.stop()
  await it.save([routedSink()]) // by a process that died before it wrote the mark
  await it.db.query('insert into item values (2)')
  const second = await streaming(it)
  await until('the version is in effect', async () => second.figures?.routingVersion === 1)
  await it.db.query('insert into item values (3)')
  const seen = await it.until((s) => s.length >= 1)
  assert.deepEqual(ids(seen), [3])
})

test('a source that does not stream still gets the mark of a new version at once', async () => {
  await using it = await SourceFixture.create({ ddl: TABLE, sinks: [] })
  const actor = await streaming(it)
  await actor.stop()
  await it.db.query('insert into item values (1)')
  assert.equal(await it.route(actor, [routedSink()]), true)
  await it.db.query('insert into item values (2)')
  await streaming(it)
  assert.deepEqual(ids(await it.until((s) => s.length >= 1)), [2])
})

test('a mark can add rows at its place, and a watcher sees the keys of changes before any filter', async () => {
  await using it = await SourceFixture.create({ ddl: TABLE, sinks: [routedSink({ actions: ['insert'] })] })
  const keys: string[] = []
  let oid = 0
  const xids: number[] = []
  const bytes = Buffer.from('["page"]"record":{"id":0},"changes":null,"action":"read","metadata":{"commit_timestamp":","table_name":"item"')
  const place = bytes.indexOf(',"table_name"')
  const written = new ByteWriter()
  written.copy(bytes)
  await streaming(
    it,
    {},
    {
      backfills: {
        prepare: () => Promise.resolve(),
        begin: () => {},
        end: () => {},
        progressed: () => {},
        hooks: {
          marks: new Map([
            [
              'tailrace:test',
              (mark) => {
                assert.equal(mark.content.toString(), 'page 1')
                for (let idx = 0; idx < 3; idx++) {
                  mark.add({
                    topic: 'sink.1',
                    partition: 0,
                    idx,
                    relation: oid,
                    flags: 2,
                    group: 7,
                    bytes: written,
                    start: 0,
                    place,
                    end: bytes.length,
                    keyLength: 8,
                    groupKeyLength: 0,
                  })
                }
              },
            ],
          ]),
          watcher: {
            watches: (relation) => ((oid = relation), true),
            changed: (change, action) => {
              const old = change.action === 'insert' ? undefined : keyOf(change, 'old')
              keys.push(`${action}: ${old} -> ${change.action === 'delete' ? undefined : keyOf(change, 'new')}`)
            },
            truncated: () => keys.push('truncated'),
            committed: (xid) => xids.push(xid),
          },
        },
      },
    },
  )
  await it.db.query('insert into item values (1)')
  await it.db.query(`select pg_logical_emit_message(true, 'tailrace:test', 'page 1')`)
  await it.db.query('update item set id = 5')
  await it.db.query('delete from item')
  await it.db.query('truncate item')
  await it.db.query('insert into item values (9)')
  const seen = await it.until((s) => s.length >= 5)
  assert.deepEqual(
    seen.map((m) => [m.action, m.key, m.position.idx]),
    [
      ['insert', '["1"]', 0],
      ['read', '["page"]', 0],
      ['read', '["page"]', 1],
      ['read', '["page"]', 2],
      ['insert', '["9"]', 0],
    ],
  )
  assert.ok(inOrder(seen))
  assert.deepEqual(keys, ['1: undefined -> ["1"]', '2: ["1"] -> ["5"]', '4: ["5"] -> undefined', 'truncated', '1: undefined -> ["9"]'])
  assert.ok(xids.length >= 6 && xids.every((xid) => xid > 0))
})

function keyOf(change: Change, side: Side): string {
  const out = new ByteWriter()
  writeKeys(out, change, side)
  return out.view().toString()
}

test('annotations of a transaction go with its later changes only', async () => {
  await using it = await SourceFixture.create({ ddl: TABLE })
  const notices: string[] = []
  await streaming(it, {}, { observer: { notice: (notice) => notices.push(notice) } })
  const emit = (action: string, json = '') =>
    `select pg_logical_emit_message(true, 'tailrace:transaction_annotations.${action}', '${json}')`
  await it.db.query(
    `begin; insert into item values (1); ${emit('set', '{"by":"me"}')}; insert into item values (2); ${emit('set', '{')}; insert into item values (3); ${emit('set', '{"by":"you"}')}; insert into item values (4); ${emit('clear')}; insert into item values (5); ${emit('set', '{"by":"x"}')}; commit`,
  )
  await it.db.query('insert into item values (6)')
  const seen = await it.until((s) => s.length >= 6)
  assert.deepEqual(
    seen.map((m) => m.json.metadata.transaction_annotations),
    [null, { by: 'me' }, null, { by: 'you' }, null, null],
  )
  assert.deepEqual(
    seen.map((m) => m.position.idx),
    [0, 2, 4, 6, 8, 0],
  )
  assert.equal(notices.length, 1)
})

test('while a sink holds the gate nothing more is read, the cause is shown, and the line stays alive', () =>
  withMoreTime([1_000, 4_000], holdsTheGate))

async function holdsTheGate(walSenderTimeoutMs: number): Promise<void> {
  await using it = await SourceFixture.create({ ddl: TABLE })
  const gate = new ReadingGate()
  const actor = await streaming(it, { walSenderTimeoutMs }, { gate })
  await it.db.query('insert into item values (1)')
  await it.until((s) => s.length >= 1)
  const letGo = gate.hold('backlog of sink "slow" is full')
  await it.db.query(`insert into item select i, repeat('x', 1000) from generate_series(2, 30000) i`)
  assert.match(String(actor.status().details?.pauseCause), /backlog of sink "slow" is full/)
  await pass(walSenderTimeoutMs * 4, 'time itself is what is tested')
  assert.ok((await it.messages()).length < 5000, 'only what the socket had read')
  assert.equal((await it.slotRow()).active, true)
  letGo()
  const seen = await it.until((s) => s.length >= 30_000)
  assert.equal(seen.length, 30_000)
  assert.equal(actor.lastError, undefined)
}

test('bytes in flight stay bounded when the log is slower than Postgres', async () => {
  await using it = await SourceFixture.create({ ddl: TABLE })
  let most = 0
  const open = Promise.withResolvers<void>()
  let isHeld = true
  it.log.before = () => (isHeld ? open.promise : undefined)
  const actor = await streaming(it, { maxBytesInFlight: 1024 * 1024 })
  await it.db.query(`insert into item select i, repeat('x', 1000) from generate_series(1, 20000) i`)
  await until('reading pauses', async () => {
    most = Math.max(most, actor.figures?.bytesInFlight ?? 0)
    return String(actor.status().details?.pauseCause).includes('the log is slower')
  })
  await pass(200, 'what is read all the same has come by then')
  most = Math.max(most, actor.figures?.bytesInFlight ?? 0)
  isHeld = false
  open.resolve()
  await it.until((s) => s.length >= 20_000)
  assert.ok(most < 1.5 * 1024 * 1024, `${most} bytes`)
})

test('idle captured tables: the slot follows a log that only others write', async () => {
  await using it = await SourceFixture.create({ ddl: `${TABLE}; create table busy (id int, x text)` })
  await it.db.query('alter publication pub set (publish = $$insert$$)')
  await it.db.query('drop publication pub; create publication pub for table item')
  const actor = await streaming(it, { idleConfirmEveryMs: 3_600_000 }) // by bytes alone
  const started = await it.walEnd()
  for (let i = 0; i < 10; i++) {
    await it.db.query(
      `insert into busy select i, string_agg(md5((i * j)::text), '') from generate_series(1, 2000) i, generate_series(1, 60) j group by i`,
    )
    await until('it follows', async () => (await actor.slotState()).confirmedBytes < 16e6)
  }
  const written = Number((await it.walEnd()) - started)
  assert.ok(written > 20e6, `${written} bytes were written`)
})

test('a heartbeat moves the slot of a database that nobody writes', async () => {
  await using it = await SourceFixture.create({ ddl: TABLE })
  await streaming(it, { heartbeatMs: 20 })
  const at = (await it.slotRow()).confirmed
  await until('confirmed beyond', async () => (await it.slotRow()).confirmed > at)
})

test('a terminated session of the source is no failure: it comes back and nothing is missing', async () => {
  await using it = await SourceFixture.create({ ddl: TABLE })
  const actor = await streaming(it)
  await it.db.query('insert into item values (1)')
  await it.until((s) => s.length >= 1)
  for (const name of ['replication', 'lock']) {
    const waiting = reaches(actor, 'waiting')
    await it.db.query(
      `select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and application_name like 'tailrace ${name}%'`,
    )
    await waiting
    assert.equal(actor.lastError?.code, 'SOURCE_UNREACHABLE')
    await it.db.query('insert into item select max(id) + 1 from item')
    await reaches(actor, 'streaming')
  }
  assert.deepEqual(ids(await it.until((s) => s.length >= 3)), [1, 2, 3])
})

test('hostile settings of the database change no byte of a message', async () => {
  const ddl = 'create table item (id int primary key, t timestamptz, i interval, f float8, b bytea)'
  const seen: unknown[] = []
  for (const isHostile of [false, true]) {
    await using it = await SourceFixture.create({ ddl })
    if (isHostile) {
      for (const setting of [
        `datestyle = 'German'`,
        `intervalstyle = 'sql_standard'`,
        'extra_float_digits = -15',
        `bytea_output = 'escape'`,
        `timezone = 'Asia/Kolkata'`,
      ]) {
        await it.db.query(`alter database ${it.db.name} set ${setting}`)
      }
    }
    const writer = new Client({ connectionString: it.db.url })
    await writer.connect()
    await streaming(it)
    await writer.query(
      `insert into item values (1, '2025-03-04 05:06:07.89+00', '1 year 2 days 03:04:05', 0.1::float8 + 0.2::float8, '\\x00ff')`,
    )
    await writer.end()
    seen.push((await it.until((s) => s.length >= 1))[0]?.json.record)
  }
  assert.deepEqual(seen[1], seen[0])
})

const lsnText = (lsn: bigint) => `${(lsn >> 32n).toString(16)}/${(lsn & 0xffffffffn).toString(16)}`
