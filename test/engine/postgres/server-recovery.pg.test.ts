import assert from 'node:assert/strict'
import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { mkdir, mkdtemp, readFile, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { delimiter, join } from 'node:path'
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

const asRoot = { skip: process.getuid?.() !== 0 }

/** A machine on which these programs do nothing but fail. */
async function without(programs: readonly string[], work: () => Promise<void>): Promise<void> {
  const folder = await mkdtemp(join(tmpdir(), 'tailrace-path-'))
  const path = process.env['PATH']
  try {
    for (const program of programs) await writeFile(join(folder, program), '#!/bin/sh\nexit 1\n', { mode: 0o755 })
    process.env['PATH'] = `${folder}${delimiter}${path}`
    await work()
  } finally {
    process.env['PATH'] = path
    await rm(folder, { recursive: true, force: true })
  }
}

test('root without user namespaces runs it as another user, below a folder that only root may enter', asRoot, () =>
  withFolder(async (folder) => {
    const userOf = async ({ pid }: PostgresServer) => /^Uid:\s+(\d+)\s+(\d+)/m.exec(await readFile(`/proc/${pid}/status`, 'utf8'))?.slice(1)
    await without(['unshare'], async () => {
      const server = open(folder)
      await server.start()
      assert.deepEqual(await userOf(server), ['65534', '65534'])
      await server.stop()
    })
    const again = open(folder) // goes on as the owner of what is there, though it could do otherwise
    await again.start()
    assert.deepEqual(await userOf(again), ['65534', '65534'])
    await again.stop('immediate')
  }),
)

test('root that may neither is told so, and nothing is made', asRoot, () =>
  withFolder(async (folder) => {
    await without(['unshare', 'setpriv'], async () => {
      assert.throws(() => open(folder), { code: 'EMBEDDED_POSTGRES_FAILED', message: /refuses to run as root.*unshare, setpriv/ })
    })
    assert.equal(existsSync(join(folder, 'cluster')), false)
  }),
)

test('a server that root ran in a namespace goes on where there are none, after its files were given away as the error says', asRoot, () =>
  withFolder(async (folder) => {
    const first = open(folder)
    await first.start()
    await first.stop()
    await without(['unshare'], async () => {
      let told = ''
      assert.throws(
        () => open(folder),
        ({ message }: Error) => Boolean((told = message)),
      )
      const owner = /"chown -R (\d+:\d+)" on its folder "cluster"/.exec(told)?.[1] ?? assert.fail(told)
      execFileSync('chown', ['-R', owner, first.cluster])
      const second = open(folder)
      assert.equal(await second.start(), 'started')
      await second.stop('immediate')
    })
  }),
)
