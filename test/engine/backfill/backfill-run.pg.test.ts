import assert from 'node:assert/strict'
import { test } from 'node:test'
import { BackfillRun, type BackfillKeeper, type RunEnd, type StreamingSource } from '../../../engine/backfill/backfill-run.ts'
import { Marks } from '../../../engine/backfill/marks.ts'
import { PageSession } from '../../../engine/backfill/page-session.ts'
import { Windows } from '../../../engine/backfill/windows.ts'
import { PART } from '../../../engine/position.ts'
import type { Query } from '../../../engine/postgres/query.ts'
import type { DurablePage, RunningBackfill } from '../../../engine/state/backfills.ts'
import { Change } from '../../../engine/wal/decode/change.ts'
import { Chunk } from '../../../engine/wal/decode/chunk.ts'
import { Relation } from '../../../engine/wal/decode/relation.ts'
import { ACTION_BIT } from '../../../engine/wal/routing/routing.ts'
import * as wal from '../wal/wal-messages.ts'
import { createDatabase, type TestDatabase } from '../../services/postgres.ts'
import { until } from '../../waiting.ts'
import { NEVER } from './page-reader.ts'

const BACKFILL: RunningBackfill = {
  ...{ id: 'backfill', sinkId: 'sink', state: 'active', table: 'public.t', sortColumn: null, startPosition: null, condition: null },
  maxTimeoutMs: 10_000,
}
const KEEPER: BackfillKeeper = {
  mayRead: () => Promise.resolve(),
  read: () => {},
  room: () => Promise.resolve(1_000),
  isBound: () => false,
  isBesideStream: () => false,
  took: () => {},
  releasing: () => () => {},
  added: () => {},
  durable: () => Promise.resolve(true),
  moved: () => Promise.resolve([]),
  counted: () => Promise.resolve(),
  warned: assert.fail,
}

const TARGET = {
  ...{ topic: 'topic', partitions: 1, actions: 255, grouping: true, groupColumns: undefined },
  ...{ timestampFormat: 'iso8601' as const, splitsKeyChanges: false, only: undefined },
}

type Scripted = Readonly<{ windows: Windows; durable: StreamingSource['durable']; keeper: BackfillKeeper; from: DurablePage | undefined }>

/** A stream that brings the marks that are written, in their order. */
class Stream {
  readonly marks: Marks
  written = 0
  rows = 0

  /** @param write settles when a mark may be written: the first one is 1; @param bring settles when it may come by the stream */
  constructor(write: (nth: number) => Promise<void>, bring?: (nth: number) => Promise<void>) {
    let brought = Promise.resolve()
    const query: Query = async (_sql, [, content] = []) => {
      const nth = ++this.written
      await write(nth)
      const meet = () =>
        this.marks.met({
          ...{ position: { history: 0, lsn: BigInt(nth), idx: 0, part: PART.row }, xid: nth, commitTimeUs: 0 },
          content: Buffer.from(String(content)),
          add: () => void this.rows++,
          ownStream: (_sink, { key }) => ({ target: TARGET, groupColumns: key, hasOwnGroup: false, actions: 255, isShed: () => false }),
        })
      if (!bring) meet()
      else brought = brought.then(() => bring(nth)).then(meet)
      return { rows: [], rowCount: 0 }
    }
    this.marks = new Marks('source', query)
  }
}

/** Reads the table of a database to its end. */
async function readOn(
  { connection }: TestDatabase,
  { marks }: Stream,
  { windows = new Windows(), durable = () => Promise.resolve(), keeper = KEEPER, from }: Partial<Scripted> = {},
): Promise<RunEnd> {
  const slot = { id: 'slot', name: 'test', publication: 'p', status: 'active' } as const
  const database = { ...{ id: 'source', accountId: 'a', name: 'source', poolSize: 1, annotations: {}, slot }, connection }
  const source: StreamingSource = {
    ...{ database, marks, windows, moved: { follow: () => undefined }, signal: NEVER, maxMessageBytes: 2 ** 20 },
    ...{ query: () => assert.fail('nothing is cancelled'), durable },
  }
  const session = await PageSession.open(connection, 'tailrace backfill test', BACKFILL.maxTimeoutMs)
  try {
    return await new BackfillRun(BACKFILL, session, { source, keeper, from }).run()
  } finally {
    session.close()
  }
}

test('a table can get no other definition between the rows of a page and their mark', async () => {
  await using db = await createDatabase(
    `create table t (id int primary key); insert into t select generate_series(1, 10); create publication p for table t`,
  )
  const other = await db.connect()
  let isAltered = false
  let altering: Promise<unknown> | undefined
  const seen = async (sql: string) => (await db.query(`select from ${sql}`)).length > 0
  const stream = new Stream(async (nth) => {
    if (nth !== 3) return // 1 and 2 begin the page and the one behind it
    altering = other.query('alter table t alter id type text').then(() => (isAltered = true))
    await until(
      'the table is altered, or waits',
      async () => isAltered || (await seen(`pg_locks where not granted and relation = 't'::regclass`)),
    )
    await until('the page is read', () =>
      seen(`pg_stat_activity where datname = current_database() and application_name = 'tailrace backfill test' and state <> 'active'`),
    )
    for (let turns = 0; turns < 100; turns++) await seen('pg_locks limit 1') // what is not waited for goes on
    assert.equal(isAltered, false)
  })
  assert.equal(await readOn(db, stream), 'done')
  await altering
  assert.deepEqual([stream.rows, stream.written], [10, 3])
})

const TEN = `create table t (id int primary key); insert into t select generate_series(1, 10); create publication p for table t`
/** That table as the stream announces it. */
async function relationOf(db: TestDatabase): Promise<Relation> {
  const [table] = await db.query<{ oid: number }>(`select 't'::regclass::oid::int as oid`)
  const columns = [{ name: 'id', typeOid: 23, typmod: -1, key: true }]
  return new Relation(
    { oid: table?.oid ?? 0, schema: 'public', table: 't', replicaIdentity: 'd', columns },
    { key: ['id'], types: {}, warnings: [] },
  )
}
/** The session of the pages is at rest: the page was read, and its transaction has ended. */
const AT_REST = `pg_stat_activity where datname = current_database() and application_name = 'tailrace backfill test' and state = 'idle'
  and query = 'rollback'`

test('what changes until the mark of its rows comes makes a row needless, also when its page was read before', async () => {
  await using db = await createDatabase(TEN)
  const relation = await relationOf(db)
  const windows = new Windows()
  const stream = new Stream(
    () => Promise.resolve(),
    async (nth) => {
      if (nth !== 3) return // 1 and 2 begin the page and the one behind it
      await until('the page is read', async () => (await db.query(`select from ${AT_REST}`)).length > 0)
      const change = new Change().readInsert(relation, 0, Chunk.of(wal.row('5')), 0)
      assert.ok(windows.watches(relation.oid), 'nobody looks at changes any more')
      windows.changed(change, ACTION_BIT.insert, { lsn: 3n, actionsOf: () => 255 })
    },
  )
  assert.equal(await readOn(db, stream, { windows }), 'done')
  assert.equal(stream.rows, 9)
})

test('no place is saved while rows before it are to be read again, or are not durable then', async () => {
  await using db = await createDatabase(TEN)
  const windows = new Windows()
  const relation = await relationOf(db)
  const stream = new Stream(
    () => Promise.resolve(),
    (nth) => {
      const change = new Change().readInsert(relation, 0, Chunk.of(wal.row('3')), 0)
      if (nth === 3) windows.changed(change, 0, { lsn: 3n, actionsOf: () => 255 }) // that of the first five rows
      return Promise.resolve()
    },
  )
  const stored = Promise.withResolvers<void>()
  let isReadAgain = false
  const durable = () => {
    isReadAgain ||= stream.rows === 10
    return isReadAgain ? stored.promise : Promise.resolve()
  }
  const places: (readonly string[] | null)[] = []
  const save = ({ after }: { after: readonly string[] | null }) => Promise.resolve(places.push(after) > 0)
  const reading = readOn(db, stream, { windows, durable, keeper: { ...KEEPER, durable: save, room: () => Promise.resolve(5) } })
  await until('the row is read again', () => isReadAgain)
  for (let turns = 0; turns < 100; turns++) await db.query('select') // what is not waited for goes on
  assert.deepEqual(places, [])
  stored.resolve()
  assert.equal(await reading, 'done')
  assert.equal(places.at(-1), null)
})

test('beside a stream one slice is durable before the next one is read', async () => {
  await using db = await createDatabase(TEN)
  const stored = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
  let asked = 0
  const durable = () => stored[asked++]?.promise ?? Promise.resolve()
  const keeper = { ...KEEPER, room: () => Promise.resolve(4), isBound: () => true, isBesideStream: () => true }
  const stream = new Stream(() => Promise.resolve())
  const reading = readOn(db, stream, { durable, keeper })
  for (const [nth, { resolve }] of stored.entries()) {
    await until('a slice has joined the stream', () => asked > nth)
    for (let turns = 0; turns < 20; turns++) await db.query('select') // what is not waited for goes on
    assert.equal(asked, nth + 1)
    resolve()
  }
  assert.equal(await reading, 'done')
  assert.equal(stream.rows, 10)
})

test('no place is saved before its rows are durable', async () => {
  await using db = await createDatabase(TEN)
  const stored = Promise.withResolvers<void>()
  const places: (readonly string[] | null)[] = []
  const keeper = { ...KEEPER, durable: ({ after }: { after: readonly string[] | null }) => Promise.resolve(places.push(after) > 0) }
  // pages of slices that end with their fifth row
  const room = () => Promise.resolve(5)
  let asked = 0
  const durable = () => {
    asked++
    return stored.promise
  }
  const reading = readOn(db, new Stream(() => Promise.resolve()), { durable, keeper: { ...keeper, room } })
  await until('all rows have joined the stream', () => asked > 1)
  for (let turns = 0; turns < 100; turns++) await db.query('select') // what is not waited for goes on
  assert.deepEqual(places, [])
  stored.resolve()
  assert.equal(await reading, 'done')
  assert.equal(places.at(-1), null)
})

test('rows that are read again by their keys come in slices of a megabyte, too', async () => {
  await using db = await createDatabase(
    `create table t (id int primary key, name text); insert into t select i, repeat('x', 500000) from generate_series(1, 40) i;
     create publication p for table t`,
  )
  const pages: DurablePage[] = []
  const durable: BackfillKeeper['durable'] = (page) => Promise.resolve(pages.push({ ...page, lsn: String(page.lsn) }) > 0)
  assert.equal(await readOn(db, new Stream(() => Promise.resolve()), { keeper: { ...KEEPER, durable } }), 'done')
  const whole = pages.find(({ after }) => after !== null)
  const read: number[] = []
  const keys = Array.from({ length: 30 }, (_, i) => JSON.stringify([String(i + 1)]))
  const keeper = { ...KEEPER, read: (rows: number) => void read.push(rows), moved: () => Promise.resolve(keys) }
  const stream = new Stream(() => Promise.resolve())
  assert.equal(
    await readOn(db, stream, { keeper, from: { ...whole, after: ['40'], history: 0, lsn: '1', processed: 40, ingested: 40 } }),
    'done',
  )
  assert.equal(stream.rows, 30)
  assert.ok(Math.max(...read) <= 3, `one slice had ${Math.max(...read)} rows of half a megabyte`)
})
