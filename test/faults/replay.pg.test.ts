/**
 * A sink is set back by a client of the API: what it had acknowledged comes again, from exactly there, in order, and nothing
 * below; whatever is killed when.
 */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createDatabase, createState } from '../services/postgres.ts'
import { inOrder, ReplayClient, versionsOf, writeVersions, type Item } from './replay-client.ts'
import { Service, type SinkOptions } from './service.ts'
import { LONG } from './size.ts'
import { pass } from '../waiting.ts'

async function open(...sinks: SinkOptions[]) {
  await using parts = new AsyncDisposableStack()
  const source = parts.use(await createDatabase('create table item (id int primary key, version int not null)'))
  const state = parts.use(await createState())
  const tables = ['public.item']
  const service = parts.use(
    await Service.prepare({ source: source.connection, stateUrl: state.url, sinks: sinks.map((sink) => ({ tables, ...sink })) }),
  )
  await service.startReady()
  service.forgetConfigFile()
  const all = parts.move()
  return { source, service, [Symbol.asyncDispose]: () => all.disposeAsync() }
}

const upTo = (from: number, to: number) => Array.from({ length: to - from + 1 }, (_, i) => from + i)
const of = (messages: readonly Item[], version: number) => messages.find(({ record }) => record.version === version) as Item

test('what was acked comes again from the LSN, the time and the offset that is named, also of a paused sink, and not from before its window', async () => {
  await using s = await open({ name: 'items' }, { name: 'brief', replay_window: '1s' })
  const { source, service } = s
  const client = new ReplayClient(service, 'items')
  await writeVersions(source, 3, upTo(1, 10))
  const first = await client.ackAll(30)
  const sixth = of(first, 6).metadata

  const byLsn = await client.replay({ lsn: sixth.commit_lsn })
  assert.deepEqual([byLsn.status, byLsn.body.partitions, byLsn.body.messages], [200, 1, 15])
  assert.deepEqual([byLsn.body.from.commit_lsn, byLsn.body.from.time], [sixth.commit_lsn, sixth.commit_timestamp])
  assert.deepEqual(versionsOf(await client.ackAll(15)), { 1: upTo(6, 10), 2: upTo(6, 10), 3: upTo(6, 10) })
  assert.deepEqual(await client.receive(10), [], 'nothing more')

  assert.equal((await service.patch('/api/sinks/items', { status: 'paused' })).status, 200)
  const byTime = await client.replay({ time: of(first, 9).metadata.commit_timestamp })
  assert.deepEqual([byTime.status, byTime.body.messages], [200, 6])
  assert.deepEqual(await client.receive(10), [], 'it is paused')
  assert.equal((await service.patch('/api/sinks/items', { status: 'active' })).status, 200)
  assert.deepEqual(versionsOf(await client.ackAll(6)), { 1: [9, 10], 2: [9, 10], 3: [9, 10] })

  const byOffset = await client.replay({ offset: 0 })
  assert.equal(byOffset.body.messages, 30)
  assert.deepEqual(versionsOf(await client.ackAll(30)), { 1: upTo(1, 10), 2: upTo(1, 10), 3: upTo(1, 10) })
  assert.deepEqual(await client.receive(10), [])

  const brief = new ReplayClient(service, 'brief')
  await brief.ackAll(30)
  await brief.untilKept(0)
  const refused = await brief.replay({ lsn: sixth.commit_lsn })
  assert.deepEqual([refused.status, refused.body['code']], [422, 'REPLAY_OUT_OF_WINDOW'])
})

test('over changes of partitions a replay goes back generation by generation, and a SIGKILL on the way leaves all of it or nothing', async (context) => {
  await using s = await open({ name: 'items', partitions: 1, ack_wait_ms: 1_000 })
  const { source, service } = s
  const client = new ReplayClient(service, 'items')
  const rows = 5
  const written: Item[] = []
  for (const [round, partitions] of [3, 2].entries()) {
    await writeVersions(source, rows, upTo(round * 4 + 1, round * 4 + 4))
    written.push(...(await client.ackAll(rows * 4)))
    assert.equal((await service.patch('/api/sinks/items', { partitions })).status, 200)
  }
  await writeVersions(source, rows, upTo(9, 12))
  written.push(...(await client.ackAll(rows * 4)))
  const { commit_lsn: lsn } = of(written, 3).metadata
  let [done, undone, last] = [0, 0, 12]
  for (const killAfterMs of LONG ? upTo(0, 40).map((n) => n * 4) : [40]) {
    const replaying = client.replay({ lsn }).then(
      ({ status }) => status,
      () => undefined, // the process was killed before it answered
    )
    await pass(killAfterMs, 'the process dies in the middle of it')
    await service.kill()
    const status = await replaying
    await service.startReady()
    // what comes again of a row comes before what is new of it
    await writeVersions(source, rows, [++last])
    const came = await client.ackUntil((all) => all.filter(({ record }) => record.version === last).length === rows)
    if (came.length === rows) undone++
    else done++
    assert.ok(status !== 200 || came.length > rows, 'it was answered, and has not happened')
    if (came.length > rows) assert.deepEqual(versionsOf(came), Object.fromEntries(upTo(1, rows).map((id) => [id, upTo(3, last)])))
  }
  context.diagnostic(`${done} of ${done + undone} replays had happened when the process was killed`)
  assert.equal((await client.replay({ lsn })).status, 200)
  inOrder(await client.ackAll(rows * (last - 2)))
})
