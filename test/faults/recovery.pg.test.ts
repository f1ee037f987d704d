/**
 * Each cell of docs/recovery-cells.ts with the log in the data folder: the thing happens to a living service, and it goes on by itself,
 * or names the error of the table and goes on by its remedy. What is missing then is no more than the table says; nothing that was
 * acknowledged comes again beyond it; what is written later is not skipped; and after rows are touched, all of them have come.
 */
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { readFile, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { describe, test } from 'node:test'
import { CELLS, type Cell } from '../../docs/recovery-cells.ts'
import { createDatabase, startPostgres, type TestDatabase, type TestServer } from '../services/postgres.ts'
import { NetProxy } from './net-proxy.ts'
import { TOKEN } from './service.ts'
import { copyFolder, DDL, Life, nextSlot, session, until } from './recovery-run.ts'

const AT_ONCE = 3
/** so little that the log has no page to write to */
const FILE_BYTES = 4096

type Name = { [N in keyof typeof CELLS]: (typeof CELLS)[N]['log'] extends 'folder' ? N : never }[keyof typeof CELLS]

/** Makes it happen, and follows the remedy; then all that is still to come may come. */
type Doing = (cell: Cell, parts: AsyncDisposableStack) => Promise<Life>

// ── the homes of a service ────────────────────────────────────────────────────────────────────────

/** A life on the shared server, the state in a database of its own there. */
async function shared(parts: AsyncDisposableStack, of: Readonly<{ embedded?: true; env?: Readonly<Record<string, string>> }> = {}) {
  const source = parts.use(await createDatabase(DDL))
  const name = `${source.name}_state`
  if (!of.embedded) {
    await source.query(`create database ${name}`)
    parts.defer(async () => {
      for (const one of [name, copyOf(name), formerOf(name)]) await source.query(`drop database if exists ${one} with (force)`)
    })
  }
  const connection = { ...source.connection, database: name }
  const slot = nextSlot()
  const stateUrl = of.embedded ? undefined : Object.assign(new URL(source.url), { pathname: `/${name}` }).href
  const life = parts.use(
    await Life.prepare({
      source: source.connection,
      connect: () => session(source.connection),
      stateUrl,
      slot,
      ...(of.env && { env: of.env }),
    }),
  )
  return { life, source, slot, state: { name, connection } }
}
const copyOf = (name: string) => `${name}_copy`
const formerOf = (name: string) => `${name}_former`

/** A life whose source is on a server of its own, behind a proxy that can lead to another one. */
async function withServer(parts: AsyncDisposableStack) {
  const server = parts.use(await startPostgres())
  const source = parts.use(await createDatabase(DDL, { server: server.url }))
  const proxy = parts.use(await NetProxy.start({ host: '127.0.0.1', port: server.port }))
  const state = parts.use(await createDatabase())
  const at = { connection: source.connection }
  const life = parts.use(
    await Life.prepare({
      source: { ...source.connection, hostname: '127.0.0.1', port: proxy.port },
      connect: () => session(at.connection),
      stateUrl: state.url,
      slot: nextSlot(),
    }),
  )
  return { life, server, source, proxy, at }
}

const standBy = async (server: TestServer) => {
  await server.stop()
  await writeFile(join(server.folder, 'standby.signal'), '')
  await server.start()
}

/** The server as it is in a copy of its folder; what it has now is gone. */
async function putBack(server: TestServer, copy: string): Promise<void> {
  await server.stop()
  await rm(server.folder, { recursive: true })
  await copyFolder(copy, server.folder)
  await server.start()
}

// ── the cells ─────────────────────────────────────────────────────────────────────────────────────

const DOINGS: Readonly<Record<Name, Doing>> = {
  'log lost': async (cell, parts) => {
    const { life } = await shared(parts)
    await life.live()
    await life.service.kill()
    life.happens()
    await life.replaceData()
    await life.write('after')
    life.service.start()
    await life.asks(cell)
    await life.accept()
    return life
  },

  'log older': async (cell, parts) => {
    const { life } = await shared(parts)
    await life.live()
    await life.service.stop()
    await life.copyData()
    await life.service.startReady()
    await life.goOn()
    await life.service.kill()
    life.happens()
    await life.replaceData(life.copyFolder)
    await life.write('after')
    life.service.start()
    await life.asks(cell)
    await life.accept()
    return life
  },

  'log swapped': async (cell, parts) => {
    const { life } = await shared(parts)
    const { life: other } = await shared(parts)
    await Promise.all([life.live(), other.service.startReady()])
    await Promise.all([life.service.kill(), other.service.stop()])
    life.happens()
    await life.replaceData(other.service.dataFolder)
    await life.write('after')
    life.service.start()
    await life.asks(cell)
    await life.service.kill()
    await life.restoreData()
    await life.service.startReady()
    return life
  },

  'log read-only': async (cell, parts) => {
    const { life } = await shared(parts)
    await life.live()
    life.happens()
    // a file that may grow no further refuses the same calls as a file system that went read-only
    assert.equal(spawnSync('prlimit', ['--pid', String(life.service.pid), `--fsize=${FILE_BYTES}:unlimited`]).status, 0)
    await life.write('after')
    await life.asks(cell)
    await life.service.startReady()
    return life
  },

  'state older': async (cell, parts) => {
    const { life, source, state } = await shared(parts)
    await life.live()
    await life.service.stop()
    await source.query(`create database ${copyOf(state.name)} template ${state.name}`)
    await life.service.startReady()
    await life.goOn()
    await life.service.stop()
    life.happens()
    await source.query(`drop database ${state.name} with (force)`)
    await source.query(`alter database ${copyOf(state.name)} rename to ${state.name}`)
    await life.write('after')
    life.service.start()
    await life.asks(cell)
    await life.accept()
    return life
  },

  'state lost': async (cell, parts) => {
    const { life, source, state } = await shared(parts)
    await life.live()
    await life.service.kill()
    life.happens()
    await source.query(`drop database ${state.name} with (force)`)
    await source.query(`create database ${state.name}`)
    await life.write('after')
    life.service.start()
    await life.asks(cell)
    await life.replaceData()
    await life.service.startReady()
    return life
  },

  'state swapped': async (cell, parts) => {
    const env = { VAULT_KEY: Buffer.alloc(32, 7).toString('base64') } // else secrets of the other one don't open
    const { life, source, state } = await shared(parts, { env })
    const { life: other, state: otherState } = await shared(parts, { env })
    const config = join(other.service.folder, 'config.yaml')
    const theirs = (await readFile(config, 'utf8')).replaceAll('name: faults', 'name: others').replaceAll(TOKEN, 'another-token')
    await writeFile(config, theirs.replaceAll('name: source', 'name: theirs').replaceAll('database: source', 'database: theirs'))
    await Promise.all([life.live(), other.service.startReady()])
    await Promise.all([life.service.kill(), other.service.stop()])
    life.happens()
    await source.query(`alter database ${state.name} rename to ${formerOf(state.name)}`)
    await source.query(`alter database ${otherState.name} rename to ${state.name}`)
    await life.write('after')
    life.service.start()
    await life.asks(cell)
    await life.service.kill()
    await source.query(`alter database ${state.name} rename to ${otherState.name}`)
    await source.query(`alter database ${formerOf(state.name)} rename to ${state.name}`)
    await life.service.startReady()
    return life
  },

  'state read-only': async (_cell, parts) => {
    const { life, source, state } = await shared(parts)
    await life.live()
    life.happens()
    const readOnly = async (how: 'on' | 'off') => {
      await source.query(`alter database ${state.name} set default_transaction_read_only = ${how}`)
      await source.query('select pg_terminate_backend(pid) from pg_stat_activity where datname = $1', [state.name])
    }
    await readOnly('on')
    await life.write('after')
    await life.waits('STATE_UNAVAILABLE')
    await readOnly('off')
    await life.service.untilReady()
    return life
  },

  'state in recovery': async (_cell, parts) => {
    const source = parts.use(await createDatabase(DDL))
    const server = parts.use(await startPostgres())
    const state = parts.use(await createDatabase(undefined, { server: server.url }))
    const life = parts.use(
      await Life.prepare({ source: source.connection, connect: () => session(source.connection), stateUrl: state.url, slot: nextSlot() }),
    )
    await life.live()
    life.happens()
    await standBy(server)
    await life.write('after')
    await life.waits('STATE_UNAVAILABLE')
    await server.promote()
    await life.service.untilReady()
    return life
  },

  'embedded killed': async (_cell, parts) => {
    const { life } = await shared(parts, { embedded: true })
    await life.live()
    life.happens()
    const pid = async () =>
      Number((await readFile(join(life.service.dataFolder, 'postgres', 'cluster', 'postmaster.pid'), 'utf8')).split('\n')[0])
    const first = await pid()
    process.kill(first, 'SIGKILL')
    await life.write('after')
    await until('another server runs', async () => (await pid().catch(() => first)) !== first, life.service)
    await life.service.untilReady()
    return life
  },

  'folder older': async (cell, parts) => {
    const { life } = await shared(parts, { embedded: true })
    await life.live()
    await life.service.stop()
    await life.copyData()
    await life.service.startReady()
    await life.goOn()
    await life.service.stop()
    life.happens()
    await life.replaceData(life.copyFolder)
    await life.write('after')
    life.service.start()
    await life.asks(cell)
    await life.accept()
    return life
  },

  'folder lost': async ({ notice }, parts) => {
    const { life } = await shared(parts, { embedded: true })
    await life.live()
    await life.service.stop()
    life.happens()
    await life.replaceData()
    await life.write('after')
    await life.service.startReady()
    assert.ok(notice !== undefined && life.service.log().includes(notice), life.service.failure('no notice').message)
    return life
  },

  'source older': async (cell, parts) => {
    const { life, server } = await withServer(parts)
    const copy = await copyOfServer(life, server)
    await life.goOn()
    life.happens()
    await putBack(server, copy)
    await life.asks(cell)
    await life.accept()
    await life.write('after')
    return life
  },

  'source older written': async (cell, parts) => {
    const { life, server } = await withServer(parts)
    const copy = await copyOfServer(life, server)
    await life.goOn()
    await life.service.stop()
    life.happens()
    await putBack(server, copy)
    await life.sql(`select pg_logical_emit_message(false, 'test', repeat('x', 1000000))`)
    await life.write('after')
    life.service.start()
    await life.asks(cell)
    await life.accept()
    return life
  },

  'source slot dropped': async (cell, parts) => {
    const { life, source, slot } = await shared(parts)
    await life.live()
    await life.service.kill()
    life.happens()
    await until('the slot is free', () => drop(source, slot))
    await life.write('after')
    life.service.start()
    const message = await life.asks(cell)
    const [, sql = assert.fail(message)] = /Run in database "[^"]*": (.*?)\. /.exec(message) ?? []
    await life.sql(sql)
    const retried = await life.command('source', 'retry', 'source')
    assert.match(retried, /SLOT_GAP/)
    await life.accept()
    return life
  },

  'source another server': async (cell, parts) => {
    const { life, source, proxy, at } = await withServer(parts)
    const server = parts.use(await startPostgres())
    await life.live()
    await life.service.kill()
    life.happens()
    at.connection = { ...server.connection(source.name), password: source.connection.password }
    const admin = await session(server.connection('postgres'))
    await admin.query(`alter user postgres password '${source.connection.password}'`)
    await admin.query(`create database ${source.name}`)
    await admin.end()
    await life.sql(DDL)
    await life.rewrite()
    await life.publish()
    proxy.target = { host: '127.0.0.1', port: server.port }
    await life.write('after')
    life.service.start()
    await life.asks(cell)
    await life.accept()
    return life
  },

  'source another database': async (cell, parts) => {
    const source = parts.use(await createDatabase(DDL))
    const other = parts.use(await createDatabase(DDL))
    const state = parts.use(await createDatabase())
    const at = { connection: source.connection }
    const life = parts.use(
      await Life.prepare({ source: source.connection, connect: () => session(at.connection), stateUrl: state.url, slot: nextSlot() }),
    )
    await life.live()
    await life.service.stop()
    life.happens()
    at.connection = other.connection
    await life.rewrite()
    await until('the slot is free', () => drop(source, life.slot))
    await life.publish()
    await life.write('after')
    const config = join(life.service.folder, 'config.yaml')
    await writeFile(config, (await readFile(config, 'utf8')).replaceAll(source.name, other.name))
    life.service.start()
    await life.asks(cell)
    await life.accept()
    return life
  },

  'source read-only': async (_cell, parts) => {
    const { life, source } = await shared(parts)
    await life.live()
    life.happens()
    await source.query(`alter database ${source.name} set default_transaction_read_only = on`)
    await source.query('select pg_terminate_backend(pid) from pg_stat_activity where datname = $1 and pid <> pg_backend_pid()', [
      source.name,
    ])
    await life.write('after')
    await life.settle()
    await source.query('set default_transaction_read_only = off')
    await source.query(`alter database ${source.name} set default_transaction_read_only = off`)
    return life
  },

  'source in recovery': async (_cell, parts) => {
    const { life, server, proxy } = await withServer(parts)
    await server.stop()
    const standby = parts.use(await startPostgres({ standbyOf: server }))
    await server.start()
    await life.live()
    life.happens()
    proxy.target = { host: '127.0.0.1', port: standby.port }
    proxy.reset()
    await life.write('after')
    await life.waits('SOURCE_IN_RECOVERY')
    proxy.target = { host: '127.0.0.1', port: server.port }
    proxy.reset()
    await life.command('source', 'retry', 'source')
    await life.service.untilReady()
    return life
  },

  'source promoted': async (_cell, parts) => {
    const { life, server } = await withServer(parts)
    await life.live()
    life.happens()
    await standBy(server)
    await server.promote()
    await life.write('after')
    await life.service.untilReady()
    return life
  },
}

const drop = (source: TestDatabase, slot: string): Promise<boolean> =>
  source.query('select pg_drop_replication_slot($1)', [slot]).then(
    () => true,
    () => false, // its reader has not gone yet
  )

/** Lives, and leaves a copy of the server's folder. */
async function copyOfServer(life: Life, server: TestServer): Promise<string> {
  await life.live()
  await server.stop()
  const copy = join(life.service.folder, 'server')
  await copyFolder(server.folder, copy)
  await server.start()
  await life.service.untilReady()
  return copy
}

describe('what is lost, swapped or set back', { concurrency: AT_ONCE }, () => {
  for (const [name, doing] of Object.entries(DOINGS) as [Name, Doing][]) {
    const cell: Cell = CELLS[name]
    test(`${name}: ${cell.code ?? 'it goes on'}, and ${cell.lost === 'nothing' ? 'nothing is lost' : `at most ${cell.lost} is lost`}`, async (context) => {
      await using parts = new AsyncDisposableStack()
      const life = await doing(cell, parts)
      await life.write('later')
      context.diagnostic(await life.judge(cell))
    })
  }
})
