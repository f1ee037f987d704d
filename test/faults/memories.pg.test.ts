/** Log and state database are swapped or set back under each other: it goes on without loss, or is told, and what is accepted begins with clean names. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createDatabase, type TestDatabase } from '../services/postgres.ts'
import { LogFolder, StateCopies, untilRefused } from './memories.ts'
import { ReplayClient, type Item } from './replay-client.ts'
import { Service, SLOT, type SinkOptions } from './service.ts'
import { gather, until } from '../waiting.ts'

async function open(...sinks: SinkOptions[]) {
  await using parts = new AsyncDisposableStack()
  const source = parts.use(await createDatabase('create table item (id int primary key, version int not null default 1)'))
  const state = parts.use(await StateCopies.create())
  const tables = ['public.item']
  const service = parts.use(
    await Service.prepare({ source: source.connection, stateUrl: state.url, sinks: sinks.map((sink) => ({ tables, ...sink })) }),
  )
  await service.startReady()
  service.forgetConfigFile()
  const all = parts.move()
  const insert = (from: number, to: number) => source.query('insert into item select generate_series($1::int, $2::int)', [from, to])
  return { source, state, service, log: new LogFolder(service), insert, [Symbol.asyncDispose]: () => all.disposeAsync() }
}

/** Settles when everything written so far is confirmed: the log has it, and Postgres has forgotten it. */
async function untilConfirmed({ source }: Readonly<{ source: TestDatabase }>): Promise<void> {
  const [end] = await source.query<{ lsn: string }>('select pg_current_wal_flush_lsn() as lsn')
  await until('what was written is confirmed', async () => {
    const [slot] = await source.query<{ is: boolean }>(
      'select confirmed_flush_lsn >= $2::pg_lsn as is from pg_replication_slots where slot_name = $1',
      [SLOT, end?.lsn],
    )
    return slot?.is
  })
}

const idsOf = (messages: readonly Item[]) => messages.map(({ record }) => record.id)
const upTo = (from: number, to: number) => Array.from({ length: to - from + 1 }, (_, i) => from + i)
const sorted = (ids: readonly number[]) => ids.toSorted((a, b) => a - b)

test('a lost log is given up with its names: what was replayed, parked or discarded of it hides no new message, and no old ack ends one', async () => {
  await using s = await open({ name: 'replayed' }, { name: 'discarding', max_retry_count: 1, ack_wait_ms: 1_000 }, { name: 'stale' })
  const { service, log } = s
  const [replayed, discarding, stale] = ['replayed', 'discarding', 'stale'].map((name) => new ReplayClient(service, name)) as [
    ReplayClient,
    ReplayClient,
    ReplayClient,
  ]
  for (let id = 1; id <= 20; id++) await s.insert(id, id) // a record each
  const acked = await replayed.ackAll(20)
  const back = await replayed.replay({ lsn: acked.find(({ record }) => record.id === 11)?.metadata.commit_lsn })
  assert.deepEqual([back.status, back.body.messages], [200, 10])
  await replayed.ackAll(10)
  const held = await gather<Item>('what is held', () => stale.receive(20, 1_000), 20)
  await gather<Item>('what fails', () => discarding.receive(20, 1_000), 20)
  const discarded = async () => {
    const { data } = (await service.get('/api/sinks/discarding/messages?state=discarded')).body as { data: { id: string }[] }
    return data
  }
  await until('all are discarded', async () => {
    await discarding.receive(1, 100)
    return (await discarded()).length >= 20
  })
  assert.equal((await service.patch('/api/sinks/discarding', { status: 'paused' })).status, 200)
  const [one, other] = (await discarded()) as [{ id: string }, { id: string }]
  const redeliver = (id: string) => service.post('/api/sinks/discarding/messages/redeliver', { ids: [id] })
  assert.equal((await redeliver(one.id)).status, 200)

  await service.stop()
  await log.lose()
  service.start()
  assert.equal(await untilRefused(service), 'LOG_CHANGED')
  assert.equal((await service.post('/api/postgres_databases/source/accept_gap', {})).status, 200)
  await service.untilReady()
  for (let id = 101; id <= 120; id++) await s.insert(id, id)
  await stale.ack(held)
  assert.deepEqual(idsOf(await replayed.ackAll(20)), upTo(101, 120))
  assert.deepEqual(sorted(idsOf(await stale.ackAll(20))), upTo(101, 120))
  assert.equal((await service.patch('/api/sinks/discarding', { status: 'active' })).status, 200)
  const came = idsOf(await discarding.ackAll(21))
  assert.deepEqual(sorted(came.filter((id) => id > 100)), upTo(101, 120))
  assert.equal(came.filter((id) => id <= 20).length, 1, 'what was to be delivered again is')
  assert.equal((await redeliver(other.id)).status, 200)
  await discarding.ackAll(1)
  assert.equal((await discarded()).length, 18)
  const again = await replayed.replay({ offset: 0 })
  assert.deepEqual([again.status, again.body.messages], [200, 20], 'and it can be replayed as before')
  assert.deepEqual(idsOf(await replayed.ackAll(20)), upTo(101, 120))
})

test('an older copy of the log is refused before anything of it is delivered; the newer one goes on without loss, and the copy, if accepted, with what it holds', async () => {
  await using s = await open({ name: 'items', ack_wait_ms: 1_000 })
  const { service, log } = s
  const client = new ReplayClient(service, 'items')
  await s.insert(1, 20)
  await client.receive(20, 10_000) // it has them, and does not say so before the copy is made
  await service.stop()
  await log.keep('older')
  await service.startReady()
  await s.insert(21, 40)
  await client.ackUntil((all) => all.some(({ record }) => record.id === 40))
  await s.insert(41, 60)
  await untilConfirmed(s)
  await service.stop()
  await log.keep('newer')

  await log.putBack('older')
  service.start()
  assert.equal(await untilRefused(service), 'LOG_WENT_BACK')
  const nothing = await service.post('/api/http_pull_consumers/items/receive', { batch_size: 100, wait_for: 200 })
  assert.deepEqual((nothing.body as { data?: unknown[] }).data ?? [], [])
  await service.stop()
  await log.putBack('newer')
  await service.startReady()
  assert.deepEqual(sorted(idsOf(await client.ackUntil((all) => all.some(({ record }) => record.id === 60)))).slice(-20), upTo(41, 60))
  await service.stop()

  await log.putBack('older')
  service.start()
  assert.equal(await untilRefused(service), 'LOG_WENT_BACK')
  assert.equal((await service.post('/api/postgres_databases/source/accept_gap', {})).status, 200)
  await service.untilReady()
  await s.insert(61, 80)
  const came = sorted(idsOf(await client.ackUntil((all) => all.some(({ record }) => record.id === 80))))
  assert.deepEqual(came, [...upTo(1, 20), ...upTo(61, 80)])
})

test('a state that was put back to an older copy is refused before anything is delivered; accepted, the log has what it forgot', async () => {
  await using s = await open({ name: 'items', ack_wait_ms: 1_000 })
  const { service, state } = s
  const client = new ReplayClient(service, 'items')
  await s.insert(1, 20)
  await client.ackAll(20)
  await service.stop()
  await state.keep('older')
  await service.startReady()
  await s.insert(21, 40)
  assert.equal((await service.patch('/api/sinks/items', { partitions: 3 })).status, 200)
  await s.insert(41, 60)
  await untilConfirmed(s)
  await service.stop()
  await state.keep('newer')

  await state.putBack('older')
  service.start()
  assert.equal(await untilRefused(service), 'STATE_WENT_BACK')
  const nothing = await service.post('/api/http_pull_consumers/items/receive', { batch_size: 100, wait_for: 200 })
  assert.deepEqual((nothing.body as { data?: unknown[] }).data ?? [], [])
  await service.stop()
  await state.putBack('newer')
  await service.startReady()
  const held = await client.receive(5, 10_000) // so that it has delivered something
  assert.ok(held.length > 0)
  await service.stop()

  await state.putBack('older')
  service.start()
  assert.equal(await untilRefused(service), 'STATE_WENT_BACK')
  assert.equal((await service.post('/api/postgres_databases/source/accept_gap', {})).status, 200)
  await service.untilReady()
  await s.insert(61, 80)
  const came = idsOf(await client.ackUntil((all) => new Set(idsOf(all)).size >= 60))
  assert.deepEqual(sorted([...new Set(came)]), upTo(21, 80))
  assert.equal((await service.patch('/api/sinks/items', { partitions: 3 })).status, 200) // what was forgotten is made again
  await s.insert(81, 100)
  assert.deepEqual(sorted(idsOf(await client.ackAll(20))), upTo(81, 100))
})

test('a state that lost nothing but its last writes of parked or discarded messages is refused: nobody else knows that they are missing', async () => {
  await using s = await open({ name: 'items', max_retry_count: 1, ack_wait_ms: 1_000 })
  const { service, state } = s
  const client = new ReplayClient(service, 'items')
  await s.insert(1, 5)
  const discarded = async () => {
    const { data } = (await service.get('/api/sinks/items/messages?state=discarded')).body as { data: unknown[] }
    return data.length
  }
  await until('all are discarded', async () => {
    await client.receive(5, 200)
    return (await discarded()) >= 5
  })
  await untilConfirmed(s)
  await service.stop()
  await state.run(`delete from tailrace.parked; update tailrace.term set parked = 0`) // as a failover to a standby that lagged leaves it
  service.start()
  assert.equal(await untilRefused(service), 'STATE_WENT_BACK')
  assert.equal((await service.post('/api/postgres_databases/source/accept_gap', {})).status, 200)
  await service.untilReady()
  await s.insert(6, 10)
  assert.deepEqual(sorted(idsOf(await client.ackAll(5))), upTo(6, 10))
})
