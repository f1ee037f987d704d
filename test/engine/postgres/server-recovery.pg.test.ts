import assert from 'node:assert/strict'
import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { chmod, mkdir, mkdtemp, readFile, rm, stat, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { delimiter, dirname, join } from 'node:path'
import { test } from 'node:test'
import { Client } from 'pg'
import { embeddedBinaries } from '../../../engine/postgres/binaries.ts'
import { clientConfig } from '../../../engine/postgres/client-config.ts'
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

const statusOf = async ({ pid }: PostgresServer) => {
  const status = await readFile(`/proc/${pid}/status`, 'utf8')
  return [/^Uid:\s+(\d+)/m.exec(status)?.[1], /^CapEff:\s+0*(\w+)$/m.exec(status)?.[1]]
}
const DAC_OVERRIDE = '2'
const APART = ['65534', '0']
const asSuperuser = async (server: PostgresServer, sql: string) => {
  const client = new Client(clientConfig(server.connection('postgres'), 'test'))
  await client.connect()
  return client.query(sql).finally(() => client.end())
}

test('the server of root is another user’s, who reads none of root’s files: also of a cluster that was root’s', asRoot, () =>
  withFolder(async (folder) => {
    await chmod(folder, 0o755)
    const data = join(folder, 'data', 'postgres') // as a service makes them, for root alone
    const first = open(data)
    await first.start()
    assert.deepEqual(await statusOf(first), APART)
    await asSuperuser(first, 'create table kept as select 7 as id')
    await first.stop()
    execFileSync('chown', ['-R', '0:0', data])
    await chmod(dirname(data), 0o700) // the other one is as it comes by a copy

    await without(['unshare'], async () => {
      const server = open(data)
      assert.equal(await server.start(), 'started')
      try {
        assert.deepEqual(await statusOf(server), APART)
        assert.equal(server.isRoots, false)
        assert.deepEqual((await asSuperuser(server, 'select id from kept')).rows, [{ id: 7 }])
        await assert.rejects(asSuperuser(server, `select pg_read_file('../password')`), { code: '42501' })
        for (const command of ['cat', 'touch'])
          await assert.rejects(asSuperuser(server, `copy (select 1) to program '${command} ${data}/password'`), { code: '38000' })
      } finally {
        await server.stop('immediate')
      }
    })
    const { mode, gid } = await stat(data)
    assert.deepEqual([(mode & 0o777).toString(8), gid], ['710', 65_534])
  }),
)

test(
  'root without user namespaces runs it as another user that passes over permissions, below a folder that only root may enter',
  asRoot,
  () =>
    withFolder(async (folder) => {
      const below = join(folder, 'data', 'postgres')
      await without(['unshare'], async () => {
        const server = open(below)
        await server.start()
        assert.deepEqual(await statusOf(server), ['65534', DAC_OVERRIDE])
        assert.equal(server.isRoots, true)
        await server.stop()
      })
      const again = open(below) // goes on as the owner of what is there, though it could do otherwise
      await again.start()
      assert.deepEqual(await statusOf(again), ['65534', DAC_OVERRIDE])
      await again.stop('immediate')
    }),
)

test('a cluster of root with a tablespace elsewhere stays root’s, and no file is touched by its link', asRoot, () =>
  withFolder(async (folder) => {
    await chmod(folder, 0o755)
    const [data, elsewhere] = [join(folder, 'data', 'postgres'), join(folder, 'elsewhere')]
    const first = open(data)
    execFileSync('chown', ['-R', '0:0', first.cluster])
    await mkdir(elsewhere)
    await symlink(elsewhere, join(first.cluster, 'pg_tblspc', '99999'))
    await first.start()
    await first.stop('immediate')
    assert.deepEqual([(await stat(first.cluster)).uid, (await stat(elsewhere)).uid], [0, 0])
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

test(
  'a server that root ran in a namespace goes on where there are none, also below a folder that only root may enter, as the error says',
  asRoot,
  () =>
    withFolder(async (folder) => {
      const below = join(folder, 'data', 'postgres')
      const first = open(below)
      await first.start()
      assert.equal(first.isRoots, true)
      await first.stop()
      await without(['unshare'], async () => {
        const second = open(below)
        let told = ''
        await assert.rejects(second.start(), ({ message }: Error) => Boolean((told = message)))
        const owner = /"chown -R (\d+:\d+)" on its folder "cluster"/.exec(told)?.[1] ?? assert.fail(told)
        execFileSync('chown', ['-R', owner, first.cluster])
        assert.equal(await second.start(), 'started')
        await second.stop('immediate')
      })
    }),
)
