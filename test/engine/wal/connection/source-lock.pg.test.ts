import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { createInterface } from 'node:readline'
import { test } from 'node:test'
import { SourceLock } from '../../../../engine/wal/connection/source-lock.ts'
import { CalmClock } from '../../../services/calm-clock.ts'
import { NetProxy } from '../../../faults/net-proxy.ts'
import { createDatabase } from '../../../services/postgres.ts'

const never = new AbortController().signal
const LOCK = new URL('../../../../engine/wal/connection/source-lock.ts', import.meta.url).href
const HOLDER = `
  const { SourceLock } = await import(${JSON.stringify(LOCK)})
  const lock = await SourceLock.acquire({ client: { connectionString: process.argv[1] }, slot: 'one' }, new AbortController().signal)
  lock.lost.then((error) => console.log('lost ' + error.code))
  console.log('held')
`

test('a frozen holder lets go within its idle timeout, and knows it when it thaws', async () => {
  await using db = await createDatabase()
  const holder = spawn(process.execPath, ['--input-type=module', '--eval', HOLDER, db.url], { stdio: ['ignore', 'pipe', 'inherit'] })
  const lines = createInterface(holder.stdout)
  assert.deepEqual(await once(lines, 'line'), ['held'])
  holder.kill('SIGSTOP')
  using clock = new CalmClock()
  const started = clock.now()
  const waits: (number | undefined)[] = []
  const lock = await SourceLock.acquire({ client: { connectionString: db.url }, slot: 'one', onWaiting: (pid) => waits.push(pid) }, never)
  assert.ok(clock.now().wallMs - started.wallMs > 500)
  const tookMs = clock.since(started)
  assert.ok(tookMs < 5_000, `${tookMs} ms`)
  assert.equal(typeof waits[0], 'number')
  const said = once(lines, 'line')
  holder.kill('SIGCONT')
  assert.deepEqual(await said, ['lost SOURCE_UNREACHABLE'])
  holder.kill('SIGKILL')
  await lock.release()
})

test('a released lock is free at once; another slot is another lock', async () => {
  await using db = await createDatabase()
  const client = { connectionString: db.url }
  await using other = await SourceLock.acquire({ client, slot: 'two' }, never)
  const first = await SourceLock.acquire({ client, slot: 'one' }, never)
  const second = SourceLock.acquire({ client, slot: 'one' }, never)
  await first.release()
  await (await second).release()
  assert.ok(other.held)
})

test('a wait for the lock ends when it is aborted', async () => {
  await using db = await createDatabase()
  const client = { connectionString: db.url }
  await using held = await SourceLock.acquire({ client, slot: 'one' }, never)
  const abort = new AbortController()
  const waiting = SourceLock.acquire({ client, slot: 'one', onWaiting: () => abort.abort() }, abort.signal)
  await assert.rejects(waiting, { code: 'STOPPING' })
  assert.ok(held.held)
})

test('a terminated session loses the lock at once', async () => {
  await using db = await createDatabase()
  const lock = await SourceLock.acquire({ client: { connectionString: db.url, application_name: 'the lock' }, slot: 'one' }, never)
  await db.query(
    `select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'the lock' and datname = current_database()`,
  )
  assert.equal((await lock.lost).code, 'SOURCE_UNREACHABLE')
  assert.ok(!lock.held)
})

test('a holder whose line falls silent knows that the lock is lost well before the server gives it to the next', async () => {
  let marginMs = 0
  for (let tries = 0; tries < 3 && marginMs < 500; tries++) marginMs = Math.max(marginMs, await marginOfSilence()) // a machine that stands still tells nobody anything
  assert.ok(marginMs >= 500, `${marginMs} ms`)
})

/** @returns milliseconds from the moment at which the holder knows to the one at which the next has the lock */
async function marginOfSilence(): Promise<number> {
  await using db = await createDatabase()
  await using proxy = await NetProxy.start({ host: '127.0.0.1', port: db.connection.port })
  const { username: user, password, database } = db.connection
  const lock = await SourceLock.acquire({ client: { host: '127.0.0.1', port: proxy.port, user, password, database }, slot: 'one' }, never)
  const [held] = await db.query<{ key: string }>(
    `select (classid::bigint << 32) | objid::bigint as key from pg_locks
     where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())`,
  )
  const known = lock.lost.then((error) => ({ error, at: performance.now() }))
  const waiting = await db.connect() // stands in line in the server, so it has the lock the moment it is free
  const next = waiting.query('select pg_advisory_lock($1)', [held?.key]).then(() => performance.now())
  proxy.fallSilent()
  const { error, at } = await known
  assert.equal(error.code, 'SOURCE_UNREACHABLE')
  assert.equal(lock.held, false)
  return (await next) - at
}
