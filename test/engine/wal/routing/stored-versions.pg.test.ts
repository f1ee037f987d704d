/** Routing versions in a state database: what is written of each, and what is read of one when another was read before. */
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { readdir, readFile } from 'node:fs/promises'
import { test } from 'node:test'
import { rowOf } from '../../../../engine/postgres/rows.ts'
import { openStore } from '../../../../engine/state/store.ts'
import type { RoutedReader, Routing } from '../../../../engine/state/resources.ts'
import { isOvertaken, StoredVersions } from '../../../../engine/wal/routing/stored-versions.ts'
import { createDatabase, createState } from '../../../services/postgres.ts'

const TOPIC = 'stream.1.00000000'
const STREAM = { topic: TOPIC, partitions: 1, source: {}, grouping: true, groupColumns: {}, timestampFormat: 'iso8601' } as never

async function opened() {
  const parts = new AsyncDisposableStack()
  const db = parts.use(await createState())
  const { query } = parts.use(await openStore(db.connection, 2, () => undefined))
  const { rows } = await query(
    `with a as (insert into account (name) values ('a') returning id)
     insert into source_database (account_id, name, connection, password, slot_name, publication_name)
     select id, 'shop', '{}', '', 's', 'p' from a returning id`,
  )
  const { id } = rowOf({ id: 'text' }, rows[0])
  const versions = new StoredVersions(id)
  const save = async (readers: readonly RoutedReader[]) => {
    const routing: Routing = { streams: readers.length > 0 ? [STREAM] : [], readers }
    return versions.save(query, routing, await versions.newest(query))
  }
  const stored = async () => (await query('select since, until from routed_reader order by since, until')).rows
  return { query, id, save, stored, [Symbol.asyncDispose]: () => parts.disposeAsync() }
}

const reader = (more: Partial<RoutedReader> = {}): RoutedReader => ({
  sinkId: randomUUID(),
  generation: 1,
  topic: TOPIC,
  actions: ['insert'],
  ...more,
})
const sorted = (readers: readonly RoutedReader[] = []) => readers.toSorted((a, b) => a.sinkId.localeCompare(b.sinkId))

test('of many readers only the one is written that a version has otherwise, and every version is read as it was', async () => {
  await using it = await opened()
  const many = Array.from({ length: 5 }, () => reader())
  const [first, second] = many as [RoutedReader, RoutedReader]
  const edited = many.with(0, { ...first, actions: ['insert', 'delete'] })
  const fewer = edited.toSpliced(1, 1)
  const again = [...fewer, { ...second, generation: 2 }]
  const written = [many, edited, edited, fewer, [], again]
  const saved = []
  for (const readers of written) saved.push(await it.save(readers))
  assert.deepEqual(
    saved.map(({ version, isNew }) => [version, isNew]),
    [[1, true], [2, true], [2, false], [3, true], [4, true], [5, true]], // prettier-ignore
  )
  const distinct = [many, edited, fewer, [], again]
  assert.equal((await it.stored()).length, 5 + 1 + 5)
  const whole = await new StoredVersions(it.id).all(it.query)
  assert.deepEqual(whole.map(({ routing }) => sorted(routing.readers)), distinct.map(sorted)) // prettier-ignore
  // whatever was read before, forwards and backwards
  const one = new StoredVersions(it.id)
  for (const version of [1, 2, 3, 4, 5, 2, 5, 1, 4, 3, 5])
    assert.deepEqual(sorted((await one.at(it.query, version))?.routing.readers), sorted(distinct[version - 1]), `version ${version}`)
})

test('what was read before says nothing of a state database that was put back, though it has that version too', async () => {
  await using it = await opened()
  const [a, b, c] = [reader(), reader(), reader()]
  await it.save([a])
  await it.save([a, b])
  const process = new StoredVersions(it.id)
  await process.newest(it.query)
  // the copy has one version, and goes on with others
  await it.query('delete from routed_reader where since = 2')
  await it.query('delete from routing_version where version = 2')
  await it.save([c])
  await it.save([a, c])
  assert.deepEqual(sorted((await process.newest(it.query))?.routing.readers), sorted([a, c]))
})

test('topics of their own, which each sink had once, are read from such a version and left with the next', async () => {
  await using it = await opened()
  const [a, b] = [reader(), reader()]
  const own = [a, b].map((each) => ({ ...each, topic: `${each.sinkId}.1` }))
  const versions = new StoredVersions(it.id)
  const streams = own.map(({ topic, sinkId }) => ({ topic, partitions: 2, only: sinkId })) as never
  await versions.save(it.query, { streams, readers: own }, undefined)
  assert.equal((await it.stored()).length, 0)
  assert.deepEqual((await versions.newest(it.query))?.routing.readers, own)
  await it.save([a, b])
  assert.deepEqual(sorted((await versions.newest(it.query))?.routing.readers), sorted([a, b]))
})

test('of two processes that save at once one is told that it is overtaken, whatever order they have the readers in', async () => {
  await using it = await opened()
  const many = Array.from({ length: 50 }, () => reader())
  await it.save(many)
  const processes = [many, many.toReversed()].map((order, i) => ({
    versions: new StoredVersions(it.id),
    routing: {
      streams: [STREAM],
      readers: order.map((each) => ({ ...each, actions: i === 0 ? (['update'] as const) : (['delete'] as const) })),
    },
  }))
  const newest = await Promise.all(processes.map(({ versions }) => versions.newest(it.query)))
  const edits = await Promise.allSettled(processes.map(({ versions, routing }, i) => versions.save(it.query, routing, newest[i])))
  assert.deepEqual(edits.map(({ status }) => status).toSorted(), ['fulfilled', 'rejected'])
  const refused = edits.find(({ status }) => status === 'rejected') as PromiseRejectedResult
  assert.ok(isOvertaken(refused.reason))
  assert.equal((await it.stored()).length, 100)
})

test('versions that were stored with the whole list of their readers are read as they were', async () => {
  const folder = new URL('../../../../engine/state/migrations/', import.meta.url)
  const names = (await readdir(folder)).toSorted()
  const move = names.indexOf('0025-routed-readers.sql')
  const sql = await Promise.all(names.slice(0, move + 1).map((name) => readFile(new URL(name, folder), 'utf8')))
  await using db = await createDatabase(`create schema tailrace; set search_path = tailrace; ${sql.slice(0, move).join('\n')}`)
  const id = randomUUID()
  await db.query(`insert into account (id, name) values ($1, 'a')`, [id])
  await db.query(
    `insert into source_database (id, account_id, name, connection, password, slot_name, publication_name) values ($1, $1, 'd', '{}', '', 's', 'p')`,
    [id],
  )
  const [a, b] = [reader(), reader()]
  const own = [{ sinkId: a.sinkId, generation: 1, partitions: 1, actions: ['insert'] }]
  for (const [i, [sinks, readers]] of [
    [own, null],
    [null, [a]],
    [null, [a, b]],
    [[], []],
  ].entries())
    // prettier-ignore
    await db.query('insert into routing_version (database_id, version, sinks, streams, readers) values ($1, $2, $3, $4, $5)', [
      ...[id, i + 1],
      ...[sinks, readers && (readers.length > 0 ? [STREAM] : []), readers].map((each) => each && JSON.stringify(each)),
    ])
  await db.query(sql[move] ?? assert.fail())
  const query = async (text: string, params?: readonly unknown[]) => ({ rows: await db.query(text, params && [...params]) })
  const versions = await new StoredVersions(id).all(query as never)
  assert.deepEqual(
    versions.map(({ routing }) => sorted(routing.readers)),
    [[{ ...a, topic: `${a.sinkId}.1` }], [a], sorted([a, b]), []],
  )
})
