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
import { createDatabase, startPostgres, createState, type TestDatabase, type TestServer } from '../services/postgres.ts'
import { NetProxy } from './net-proxy.ts'
import { TOKEN } from './service.ts'
import { copyFolder, DDL, Life, nextSlot, session } from './recovery-run.ts'
import { until } from '../waiting.ts'

const AT_ONCE = 3
/** so little that the log has no page to write to */
const FILE_BYTES = 4096

type Name = { [N in keyof typeof CELLS]: (typeof CELLS)[N]['log'] extends 'folder' ? N : never }[keyof typeof CELLS]

/** Makes it happen, and follows the remedy; then all that is still to come may come. */
type Doing = (cell: Cell, parts: AsyncDisposableStack) => Promise<Life>

// ── the home of a service ─────────────────────────────────────────────────────────────────────────

/**
 * A life with source and state on the server that all tests share; the way to the source can be led to another one.
 * @param of.server has the source instead
 * @param of.stateServer has the state instead
 * @param of.embedded the service's own server has it
 */
async function home(
  parts: AsyncDisposableStack,
  of: Readonly<{ server?: TestServer; stateServer?: TestServer; embedded?: true; env?: Readonly<Record<string, string>> }> = {},
) {
  const source = parts.use(await createDatabase(DDL, of.server && { server: of.server.url }))
  const proxy = parts.use(await NetProxy.start({ host: source.connection.hostname, port: source.connection.port }))
  const state = parts.use(await (of.stateServer ? createDatabase(undefined, { server: of.stateServer.url }) : createState()))
  await state.leave() // it is copied, renamed and dropped
  /** where its rows are written */
  const at = { connection: source.connection }
  const slot = nextSlot()
  const life = parts.use(
    await Life.prepare({
      ...{ source: { ...source.connection, hostname: '127.0.0.1', port: proxy.port }, connect: () => session(at.connection), slot },
      ...{ stateUrl: of.embedded ? undefined : state.url, ...(of.env && { env: of.env }) },
    }),
  )
  return { life, source, proxy, state: state.name, at, slot }
}

/** The name of a database beside that of a state, dropped at the end. */
function beside(state: string, source: TestDatabase, parts: AsyncDisposableStack): string {
  const name = `${state}_beside`
  parts.defer(async () => void (await source.query(`drop database if exists ${name} with (force)`)))
  return name
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
    const { life } = await home(parts)
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
    const { life } = await home(parts)
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
    const { life } = await home(parts)
    const { life: other } = await home(parts)
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
    const { life } = await home(parts)
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
    const { life, source, state } = await home(parts)
    await life.live()
    await life.service.stop()
    const copy = beside(state, source, parts)
    await source.query(`create database ${copy} template ${state}`)
    await life.service.startReady()
    await life.goOn()
    await life.service.stop()
    life.happens()
    await source.query(`drop database ${state} with (force)`)
    await source.query(`alter database ${copy} rename to ${state}`)
    await life.write('after')
    life.service.start()
    await life.asks(cell)
    await life.accept()
    return life
  },

  'state lost': async (cell, parts) => {
    const { life, source, state } = await home(parts)
    await life.live()
    await life.service.kill()
    life.happens()
    await source.query(`drop database ${state} with (force)`)
    await source.query(`create database ${state}`)
    await life.write('after')
    life.service.start()
    await life.asks(cell)
    await life.replaceData()
    await life.service.startReady()
    return life
  },

  'state swapped': async (cell, parts) => {
    const env = { VAULT_KEY: Buffer.alloc(32, 7).toString('base64') } // else secrets of the other one don't open
    const { life, source, state } = await home(parts, { env })
    const { life: other, state: otherState } = await home(parts, { env })
    const config = join(other.service.folder, 'config.yaml')
    const theirs = (await readFile(config, 'utf8')).replaceAll('name: faults', 'name: others').replaceAll(TOKEN, 'another-token')
    await writeFile(config, theirs.replaceAll('name: source', 'name: theirs').replaceAll('database: source', 'database: theirs'))
    await Promise.all([life.live(), other.service.startReady()])
    await Promise.all([life.service.kill(), other.service.stop()])
    life.happens()
    const former = beside(state, source, parts)
    await source.query(`alter database ${state} rename to ${former}`)
    await source.query(`alter database ${otherState} rename to ${state}`)
    await life.write('after')
    life.service.start()
    await life.asks(cell)
    await life.service.kill()
    await source.query(`alter database ${state} rename to ${otherState}`)
    await source.query(`alter database ${former} rename to ${state}`)
    await life.service.startReady()
    return life
  },

  'state read-only': async (_cell, parts) => {
    const { life, source, state } = await home(parts)
    await life.live()
    life.happens()
    const readOnly = async (how: 'on' | 'off') => {
      await source.query(`alter database ${state} set default_transaction_read_only = ${how}`)
      await source.query('select pg_terminate_backend(pid) from pg_stat_activity where datname = $1', [state])
    }
    await readOnly('on')
    await life.write('after')
    await life.waits('STATE_UNAVAILABLE')
    await readOnly('off')
    await life.service.untilReady()
    return life
  },

  'state in recovery': async (_cell, parts) => {
    const server = parts.use(await startPostgres())
    const { life } = await home(parts, { stateServer: server })
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
    const { life } = await home(parts, { embedded: true })
    await life.live()
    life.happens()
    const pid = async () =>
      Number((await readFile(join(life.service.dataFolder, 'postgres', 'cluster', 'postmaster.pid'), 'utf8')).split('\n')[0])
    const first = await pid()
    process.kill(first, 'SIGKILL')
    await life.write('after')
    await until('another server runs', async () => (await pid().catch(() => first)) !== first, { service: life.service })
    await life.service.untilReady()
    return life
  },

  'folder older': async (cell, parts) => {
    const { life } = await home(parts, { embedded: true })
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
    const { life } = await home(parts, { embedded: true })
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
    const server = parts.use(await startPostgres())
    const { life } = await home(parts, { server })
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
    const server = parts.use(await startPostgres())
    const { life } = await home(parts, { server })
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
    const { life, source, slot } = await home(parts)
    await life.live()
    await life.service.kill()
    life.happens()
    await until('the slot is free', () => drop(source, slot))
    await life.write('after')
    life.service.start()
    const message = await life.asks(cell)
    const [, sql = assert.fail(message)] = /Run, in database "[^"]*": (.*?;)/.exec(message) ?? []
    await life.sql(sql)
    const retried = await life.command('source', 'retry', 'source')
    assert.match(retried, /SLOT_GAP/)
    await life.accept()
    return life
  },

  'source another server': async (cell, parts) => {
    const { life, source, proxy, at } = await home(parts, { server: parts.use(await startPostgres()) })
    const server = parts.use(await startPostgres({ isAnother: true }))
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
    const { life, source, at } = await home(parts)
    const other = parts.use(await createDatabase(DDL))
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
    const { life, source } = await home(parts)
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
    const server = parts.use(await startPostgres())
    const { life, proxy } = await home(parts, { server })
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
    const server = parts.use(await startPostgres())
    const { life } = await home(parts, { server })
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
