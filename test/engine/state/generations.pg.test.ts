/** A state database from before there were generations: what its sinks are set to becomes their first one. */
import assert from 'node:assert/strict'
import { readFile } from 'node:fs/promises'
import { test } from 'node:test'
import { shapeOf } from '../../../engine/state/generation-shape.ts'
import { createDatabase } from '../../services/postgres.ts'

const migration = (name: string) => readFile(new URL(`../../../engine/state/migrations/${name}`, import.meta.url), 'utf8')
const ACCOUNT = '0c8a3e1e-51f6-4a39-8d4a-0a5dd1a1f0aa'
const DATABASE = '7a6b5c4d-1234-4321-9999-0f0e0d0c0b0a'
const SINK = '5f1d5bb8-4a8e-4f0e-9d0c-0d6f5c1f0a01'

test('a sink of an older version begins with one generation of the shape it has, open where its routing took effect', async () => {
  await using db = await createDatabase(`create schema tailrace; set search_path = tailrace; ${await migration('0001-spine.sql')}`)
  const settings = {
    partitions: 3,
    message_grouping: true,
    tables: [
      { name: 'item', group_column_names: ['order_id', 'shop'] },
      { name: 'sales.lot', group_column_names: null },
      { name: 'plain' },
    ],
  }
  await db.query('insert into account (id, name) values ($1, $2)', [ACCOUNT, 'a'])
  await db.query(
    `insert into source_database (id, account_id, name, connection, password, slot_name, publication_name) values ($1, $2, 'd', '{}', '', 's', 'p')`,
    [DATABASE, ACCOUNT],
  )
  await db.query(
    `insert into sink (id, account_id, database_id, name, status, settings, destination) values ($1, $2, $3, 'x', 'active', $4, '{}')`,
    [SINK, ACCOUNT, DATABASE, settings],
  )
  await db.query(`insert into routing_version (database_id, version, sinks, history, lsn, idx) values ($1, 1, '[]', 0, '0/10', -1)`, [
    DATABASE,
  ])
  await db.query(`insert into routing_version (database_id, version, sinks, history, lsn, idx) values ($1, 2, $2, 0, '0/20', 4)`, [
    DATABASE,
    JSON.stringify([{ sinkId: SINK, generation: 1 }]),
  ])
  await db.query(
    `insert into parked (sink_id, history, lsn, idx, part, generation, partition, record_offset, record_index, group_hash, record_key, group_key,
       body, action, flags, relation, commit_time, state) values ($1, 0, '0/30', 0, 1, 1, 2, 5, 0, 11, '["1"]', '', '', 0, 0, 1, now(), 'open')`,
    [SINK],
  )
  await db.query(await migration('0002-generations.sql'))
  const { partitions, grouping, groupColumns } = shapeOf(SINK, settings)
  const [generation] = await db.query('select generation, shape, history, lsn::text, idx, drained_at from generation')
  assert.deepEqual(generation, {
    generation: 1,
    shape: { partitions, grouping, groupColumns },
    history: 0,
    lsn: '0/20',
    idx: 4,
    drained_at: null,
  })
  assert.deepEqual(await db.query('select owner_generation, owner_partition from parked'), [{ owner_generation: 1, owner_partition: 2 }])
})
