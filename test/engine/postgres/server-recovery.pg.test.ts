import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { mkdir, mkdtemp, readFile, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { embeddedBinaries } from '../../../engine/postgres/binaries.ts'
import { isAlive, leftoversOf } from '../../../engine/postgres/postmaster.ts'
import { PostgresServer } from '../../../engine/postgres/server.ts'

const open = (folder: string) => new PostgresServer({ binaries: embeddedBinaries(), folder, settings: { fsync: 'off' } })

async function withFolder(work: (folder: string) => Promise<void>): Promise<void> {
  const folder = await mkdtemp(join(tmpdir(), 'tailrace-server-'))
  try {
    await work(folder)
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
}

test('a pid file whose number belongs to another process by now does not stop the start, nor the process', () =>
  withFolder(async (folder) => {
    const first = open(folder)
    await first.start()
    await first.stop('immediate')
    const other = spawn('sleep', ['60'])
    await once(other, 'spawn')
    const ended = [`${other.pid}`, first.cluster, '1', '1', '', '127.0.0.1', '0 0', 'ready', ''].join('\n')
    await writeFile(join(first.cluster, 'postmaster.pid'), ended)
    const second = open(folder)
    try {
      assert.equal(await second.start(), 'started')
      assert.ok(other.pid !== undefined && isAlive(other.pid))
    } finally {
      await second.stop('immediate')
      other.kill()
    }
  }))

test('a running server is taken over through a symbolic link to its folder', () =>
  withFolder(async (folder) => {
    await mkdir(join(folder, 'real'))
    await symlink(join(folder, 'real'), join(folder, 'link'))
    const first = open(join(folder, 'real'))
    await first.start()
    try {
      const second = open(join(folder, 'link'))
      assert.equal(await second.start(), 'adopted')
      assert.equal(second.pid, first.pid)
    } finally {
      await first.stop('immediate')
    }
  }))

test('a cluster whose making was killed half-way is made again', () =>
  withFolder(async (folder) => {
    await mkdir(join(folder, 'cluster.new'), { recursive: true })
    await writeFile(join(folder, 'cluster.new', 'PG_VERSION'), '18\n')
    const server = open(folder)
    assert.equal(await server.start(), 'started')
    await server.stop('immediate')
    assert.equal(existsSync(join(folder, 'cluster.new')), false)
  }))

test('sessions that a killed server left at work are ended, and it starts', { skip: !existsSync('/proc/self') }, () =>
  withFolder(async (folder) => {
    const first = open(folder)
    await first.start()
    const { Client } = await import('pg')
    const { hostname: host, port, username: user, password, database } = first.connection('postgres')
    const client = new Client({ host, port, user, password, database })
    client.on('error', () => {})
    await client.connect()
    const ended = client.query('select count(*) from generate_series(1, 1000000000)').catch(() => undefined)
    const { pid } = first
    assert.ok(pid !== undefined)
    process.kill(pid, 'SIGKILL')
    const second = open(folder)
    assert.equal(await second.start(), 'started')
    await ended
    assert.equal(leftoversOf(second.cluster).includes(pid), false)
    await second.stop('immediate')
  }),
)

test(
  'root without user namespaces runs it as another user, below a folder that only root may enter',
  { skip: process.getuid?.() !== 0 },
  () =>
    withFolder(async (folder) => {
      const before = ['--reuid=65534', '--regid=65534', '--clear-groups', '--inh-caps=+dac_override', '--ambient-caps=+dac_override']
      const launch = { command: 'setpriv', before }
      const server = new PostgresServer({ binaries: embeddedBinaries(), folder: join(folder, 'pg'), settings: { fsync: 'off' }, launch })
      await server.start()
      assert.match(await readFile(`/proc/${server.pid}/status`, 'utf8'), /^Uid:\s+65534\s+65534/m)
      await server.stop()
      const again = open(join(folder, 'pg')) // goes on as the owner of what is there
      await again.start()
      assert.match(await readFile(`/proc/${again.pid}/status`, 'utf8'), /^Uid:\s+65534\s+65534/m)
      await again.stop('immediate')
    }),
)
