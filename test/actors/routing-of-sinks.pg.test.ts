/** Routing versions are saved from the sinks and generations in a state database, which may change while they are read. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { saveRouting } from '../../actors/routing-of-sinks.ts'
import { shapeOf } from '../../engine/state/generation-shape.ts'
import { openStore } from '../../engine/state/store.ts'
import { createDatabase } from '../services/postgres.ts'
import { DATABASE, SINK } from './sink-fixture.ts'

const resources = { print: '', tokens: new Map(), databases: [], functions: [], endpoints: [] }

for (const isFormer of [false, true]) {
  const which = isFormer ? 'while a process of a version without streams lives' : 'of streams'
  test(`a version names no generation with fewer partitions than it is stored with, when an edit comes between what is read (${which})`, async () => {
    await using db = await createDatabase()
    await using store = await openStore(db.connection, 2, () => undefined)
    await store.query(`insert into account (id, name) values ($1, 'a')`, [SINK.accountId])
    await store.query(
      `insert into source_database (id, account_id, name, connection, password, slot_name, publication_name) values ($1, $2, 'shop', '{}', '', 's', 'p')`,
      [DATABASE.id, SINK.accountId],
    )
    await store.query(
      `insert into sink (id, account_id, database_id, name, status, settings, destination) values ($1, $2, $3, 'orders', 'active', '{}', '{}')`,
      [SINK.id, SINK.accountId, DATABASE.id],
    )
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
    await saveRouting(store, { load }, DATABASE.id)
    const { rows } = await store.query('select streams, sinks from routing_version')
    const [{ streams, sinks }] = rows as [Record<'streams' | 'sinks', readonly { partitions: number }[] | null>]
    assert.deepEqual(
      (isFormer ? sinks : streams)?.map(({ partitions }) => partitions),
      [3],
    )
  })
}
