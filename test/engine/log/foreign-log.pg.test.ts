import assert from 'node:assert/strict'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { openEmbeddedLog } from '../../../engine/log/embedded.ts'
import { refuseForeignLog } from '../../../engine/log/own-topics.ts'
import { openStore } from '../../../engine/state/store.ts'
import { createDatabase } from '../../services/postgres.ts'

const SINK = '11111111-1111-4111-8111-111111111111'

test('a log that another state database has filled is refused; its own goes on, at the first start too', async () => {
  await using database = await createDatabase()
  await using store = await openStore(database.connection, 2, () => undefined)
  const folder = await mkdtemp(join(tmpdir(), 'tailrace-log-'))
  await using cleaned = new AsyncDisposableStack()
  cleaned.defer(() => rm(folder, { recursive: true, force: true }))
  await using log = await openEmbeddedLog(folder)
  await refuseForeignLog(log, store.query) // an empty one belongs to anybody
  await log.createTopic(`${SINK}.1`, 1)
  await assert.rejects(refuseForeignLog(log, store.query), { code: 'LOG_FOREIGN' })

  const { rows } = await store.query(
    `with a as (insert into account (name) values ('shop') returning id),
       d as (insert into source_database (account_id, name, connection, password, slot_name, publication_name)
             select id, 'shop', '{}', '', 's', 'p' from a returning id, account_id),
       s as (insert into sink (id, account_id, database_id, name, status, settings, destination)
             select $1, account_id, id, 'goods', 'active', '{}', '{}' from d)
     select id from d`,
    [SINK],
  )
  await refuseForeignLog(log, store.query) // its sink's topic is made before its source first streams
  await log.createTopic('22222222-2222-4222-8222-222222222222.1', 1)
  await assert.rejects(refuseForeignLog(log, store.query), { code: 'LOG_FOREIGN' })
  await store.query(`insert into source (database_id, slot_name, log_identity, confirmed_lsn) values ($1, 's', 'another', '0/1')`, [
    rows[0]!.id,
  ])
  await assert.rejects(refuseForeignLog(log, store.query), { code: 'LOG_FOREIGN' }) // the state of another installation
  await store.query('update source set log_identity = $1', [log.identity])
  await refuseForeignLog(log, store.query) // a topic of a sink that was deleted
})
