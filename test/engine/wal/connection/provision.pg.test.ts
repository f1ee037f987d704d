import assert from 'node:assert/strict'
import { test } from 'node:test'
import { provision } from '../../../../engine/wal/connection/provision.ts'
import { createDatabase, startPostgres, type TestDatabase } from '../../../services/postgres.ts'

const wanted = (db: TestDatabase, create: boolean) => ({ slot: { name: `s_${db.name}`, create }, publication: { name: 'p', create } })
const made = async (db: TestDatabase) => ({
  slots: await db.query('select plugin from pg_replication_slots where database = $1', [db.name]),
  publications: await db.query('select puballtables, pubviaroot from pg_publication'),
})

test('publication and slot are made once, left alone afterwards, and undone as far as they were made', async () => {
  await using db = await createDatabase('create table a (id int primary key)')
  const first = await provision(db.connection, wanted(db, true))
  assert.deepEqual([first.publicationCreated, first.slotCreated], [true, true])
  const both = { slots: [{ plugin: 'pgoutput' }], publications: [{ puballtables: true, pubviaroot: true }] }
  assert.deepEqual(await made(db), both)
  assert.deepEqual(
    await db.query('select failover from pg_replication_slots where database = $1', [db.name]),
    [{ failover: true }],
    'standbys keep it for their promotion',
  )
  const second = await provision(db.connection, wanted(db, true))
  assert.deepEqual([second.publicationCreated, second.slotCreated], [false, false])
  await second.undo()
  assert.deepEqual(await made(db), both)
  await first.undo()
  assert.deepEqual(await made(db), { slots: [], publications: [] })
})

test('what is missing is told with SQL that makes it', async () => {
  await using db = await createDatabase('create table a (id int primary key)')
  for (const code of ['PUBLICATION_MISSING', 'SLOT_MISSING']) {
    const error: unknown = await provision(db.connection, wanted(db, false)).then(
      () => assert.fail('nothing was missing'),
      (reason: unknown) => reason,
    )
    assert.ok(error instanceof Error && 'code' in error && error.code === code)
    await db.query(/Run[^:]*: (.*;)$/.exec(error.message)?.[1] ?? assert.fail(error.message))
  }
  const ready = await provision(db.connection, wanted(db, false))
  assert.deepEqual([ready.publicationCreated, ready.slotCreated], [false, false])
})

test('init_sql makes the publication in the way of its author, and has to make it', async () => {
  await using db = await createDatabase('create table a (id int primary key); create table b (id int primary key)')
  const { slot } = wanted(db, true)
  await assert.rejects(provision(db.connection, { slot, publication: { name: 'p', create: true, initSql: 'select 1' } }), {
    code: 'PUBLICATION_MISSING',
  })
  await provision(db.connection, { slot, publication: { name: 'p', create: true, initSql: 'create publication p for table b' } })
  assert.deepEqual(await db.query('select tablename from pg_publication_tables'), [{ tablename: 'b' }])
})

test('a slot that an open transaction holds up is given up in time: its process is named and the publication gone', async () => {
  await using server = await startPostgres() // of its own: what is open holds up every slot that is made on its server meanwhile
  await using db = await createDatabase('create table a (id int primary key)', { server: server.url })
  const open = await db.connect()
  await open.query('begin; insert into a values (1)')
  const { rows } = await open.query<{ pid: number; xid: string }>('select pg_backend_pid() as pid, pg_current_xact_id()::text as xid')
  await assert.rejects(provision(db.connection, wanted(db, true)), {
    code: 'SLOT_BLOCKED',
    message: new RegExp(`transaction ${rows[0]?.xid} of process ${rows[0]?.pid}\\b`),
  })
  assert.deepEqual(await made(db), { slots: [], publications: [] })
  await open.query('rollback')
  await provision(db.connection, wanted(db, true))
})

test('a server that does not write logical WAL and a user who may not replicate are told, with the SQL', async () => {
  await using server = await startPostgres({ settings: { wal_level: 'replica' } })
  await using physical = await createDatabase('', { server: server.url })
  await assert.rejects(provision(physical.connection, wanted(physical, true)), {
    code: 'WAL_LEVEL_TOO_LOW',
    message: /alter system set wal_level = logical;/,
  })
  await using db = await createDatabase()
  const role = `r_${db.name}`
  await db.query(`create role ${role} login password 'x'`)
  try {
    await assert.rejects(provision({ ...db.connection, username: role, password: 'x' }, wanted(db, true)), {
      code: 'SOURCE_REFUSED',
      message: new RegExp(`alter role ${role} replication;`),
    })
  } finally {
    await db.query(`drop role ${role}`)
  }
})
