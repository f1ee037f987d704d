import assert from 'node:assert/strict'
import { fork } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { Client } from 'pg'
import { embeddedBinaries } from '../../../engine/postgres/binaries.ts'
import { isAlive } from '../../../engine/postgres/postmaster.ts'
import { PostgresServer } from '../../../engine/postgres/server.ts'
import type { Connection } from '../../../engine/postgres/client-config.ts'
import { createDatabase, machinePostgres, startPostgres } from '../../services/postgres.ts'
import { until } from '../../waiting.ts'

async function ask(connection: Connection, sql: string): Promise<unknown[]> {
  const client = new Client({
    host: connection.hostname,
    port: connection.port,
    user: connection.username,
    password: connection.password,
    database: connection.database,
  })
  await client.connect()
  try {
    return (await client.query(sql)).rows
  } finally {
    await client.end()
  }
}

test('a cluster in a folder with spaces keeps its port and its rows over a stop and a start', async () => {
  const parent = await mkdtemp(join(tmpdir(), 'tailrace-server-'))
  const folder = join(parent, 'a folder')
  const binaries = embeddedBinaries()
  try {
    const first = new PostgresServer({ binaries, folder })
    assert.equal(await first.start(), 'started')
    const { port } = first
    await ask(first.connection('postgres'), 'create table kept (id int); insert into kept values (7)')
    await first.stop()
    const second = new PostgresServer({ binaries, folder })
    assert.equal(await second.start(), 'started')
    assert.equal(second.port, port)
    assert.deepEqual(await ask(second.connection('postgres'), 'select id from kept'), [{ id: 7 }])
    assert.deepEqual(await ask(second.connection('postgres'), 'show wal_level'), [{ wal_level: 'logical' }])
    await second.stop()
  } finally {
    await rm(parent, { recursive: true, force: true })
  }
})

test('a server left running by a killed process is taken over, not started twice', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'tailrace-server-'))
  try {
    const parent = fork(join(import.meta.dirname, 'start-server.ts'), [folder])
    const [pid] = (await once(parent, 'message')) as [number]
    parent.kill('SIGKILL')
    await once(parent, 'exit')
    const server = new PostgresServer({ binaries: embeddedBinaries(), folder })
    assert.equal(await server.start(), 'adopted')
    assert.equal(server.pid, pid)
    await server.stop()
    assert.equal(isAlive(pid), false)
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
})

test('a process that exits without having stopped its server leaves none behind', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'tailrace-server-'))
  try {
    const parent = fork(join(import.meta.dirname, 'start-server.ts'), [folder])
    const [pid] = (await once(parent, 'message')) as [number]
    parent.send('exit')
    await once(parent, 'exit')
    await until('the server has ended', async () => !isAlive(pid))
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
})

test('a server that does not start says why, with the end of its log', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'tailrace-server-'))
  try {
    const server = new PostgresServer({ binaries: embeddedBinaries(), folder, settings: { shared_buffers: 'much' } })
    await assert.rejects(server.start(), { code: 'EMBEDDED_POSTGRES_FAILED', message: /invalid value for parameter "shared_buffers"/ })
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
})

test('a server that is kept running and does not come up again is given up, with why', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'tailrace-server-'))
  try {
    const found = embeddedBinaries()
    let { postgres } = found
    const binaries = {
      ...found,
      get postgres() {
        return postgres
      },
    }
    const server = new PostgresServer({ binaries, folder, settings: { fsync: 'off' } })
    await server.start()
    const told: string[] = []
    const kept = server.keepRunning(new AbortController().signal, {
      ended: () => told.push('ended'),
      restarted: () => told.push('restarted'),
      firstPauseMs: 1,
    })
    postgres = '/bin/false'
    process.kill(server.pid!, 'SIGKILL')
    await assert.rejects(kept, { code: 'EMBEDDED_POSTGRES_FAILED', message: /it ended at once/ })
    assert.deepEqual(told, ['ended'])
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
})

test('each test database is empty, logical and gone afterwards, its slots too', async () => {
  let name: string
  await using other = await createDatabase()
  {
    await using db = await createDatabase('create table a (id int)')
    name = db.name
    await db.query(`select pg_create_logical_replication_slot('s_${name}', 'pgoutput')`)
    assert.deepEqual(await db.query('select count(*)::int as n from a'), [{ n: 0 }])
  }
  assert.deepEqual(await other.query('select 1 from pg_database where datname = $1', [name]), [])
  assert.deepEqual(await other.query('select 1 from pg_replication_slots where slot_name = $1', [`s_${name}`]), [])
})

for (const binaries of machinePostgres()) {
  test(`PostgreSQL ${binaries.version} of this machine runs, is copied to a standby and the standby promoted`, async () => {
    await using server = await startPostgres({ binaries })
    await ask(server.connection('postgres'), 'create table a (id int); insert into a values (1)')
    await using standby = await server.standby()
    await server.kill()
    await standby.promote()
    assert.deepEqual(await ask(standby.connection('postgres'), 'insert into a values (2) returning id'), [{ id: 2 }])
  })
}
