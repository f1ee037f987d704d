/** Routing versions are saved from the sinks and generations in a state database, which may change while they are read. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { saveRouting } from '../../actors/routing-of-sinks.ts'
import { shapeOf } from '../../engine/state/generation-shape.ts'
import { openStore, type Store } from '../../engine/state/store.ts'
import { createState } from '../services/postgres.ts'
import { StoredVersions } from '../../engine/wal/routing/stored-versions.ts'
import { DATABASE, SINK } from './sink-fixture.ts'

const resources = { print: '', databases: [], functions: [], endpoints: [], backfills: [] }

/** A state database with a sink that has no generation. */
async function openShop() {
  const parts = new AsyncDisposableStack()
  const db = parts.use(await createState())
  const store = parts.use(await openStore(db.connection, 2, () => undefined))
  await store.query(`insert into account (id, name) values ($1, 'a')`, [SINK.accountId])
  await store.query(
    `insert into source_database (id, account_id, name, connection, password, slot_name, publication_name) values ($1, $2, 'shop', '{}', '', 's', 'p')`,
    [DATABASE.id, SINK.accountId],
  )
  await store.query(
    `insert into sink (id, account_id, database_id, name, status, settings, destination) values ($1, $2, $3, 'orders', 'active', '{}', '{}')`,
    [SINK.id, SINK.accountId, DATABASE.id],
  )
  return { store, [Symbol.asyncDispose]: () => parts.disposeAsync() }
}

for (const isFormer of [false, true]) {
  const which = isFormer ? 'while a process of a version without streams lives' : 'of streams'
  test(`a version names no generation with fewer partitions than it is stored with, when an edit comes between what is read (${which})`, async () => {
    await using opened = await openShop()
    const { store } = opened
    if (isFormer)
      await store.query(`insert into node (id, name, address, version) values (gen_random_uuid(), 'former', 'http://127.0.0.1:1', '0.1.0')`)
    const edit = (generation: number, partitions: number) =>
      store.query('insert into generation (sink_id, generation, shape) values ($1, $2, $3)', [
        SINK.id,
        generation,
        JSON.stringify(shapeOf(SINK.id, { ...SINK, partitions })),
      ])
    await edit(1, 2)
    const load = async () => {
      await edit(2, 3)
      return { ...resources, sinks: [{ ...SINK, partitions: 2 }] }
    }
    await saveRouting(store, { load, loaded: undefined }, { databaseId: DATABASE.id, versions: new StoredVersions(DATABASE.id) })
    const { rows } = await store.query('select streams, sinks from routing_version')
    const [{ streams, sinks }] = rows as [Record<'streams' | 'sinks', readonly { partitions: number }[] | null>]
    assert.deepEqual(
      (isFormer ? sinks : streams)?.map(({ partitions }) => partitions),
      [3],
    )
  })
}

test('a version that another one has overtaken is made anew from that one', async () => {
  await using opened = await openShop()
  const { store } = opened
  const overtake = () =>
    store.query(`insert into routing_version (database_id, version, sinks, streams) values ($1, 1, '[]', '[]')`, [DATABASE.id])
  let asked = 0
  const transaction: Store['transaction'] = (work, lock) =>
    store.transaction(
      (query) =>
        work(async (sql, params) => {
          if (sql.includes('insert into tailrace.routing_version') && asked++ === 0) await overtake()
          return query(sql, params)
        }),
      lock,
    )
  const { version } = await saveRouting(
    { transaction },
    { load: async () => ({ ...resources, sinks: [SINK] }), loaded: undefined },
    { databaseId: DATABASE.id, versions: new StoredVersions(DATABASE.id) },
  )
  assert.deepEqual([version.version, version.readers.map(({ sinkId, generation }) => [sinkId, generation])], [2, [[SINK.id, 1]]])
  assert.equal((await store.query('select from generation')).rows.length, 1)
})
