/** A sink that sends, on a real log, a real state database and a real HTTP server. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { pool } from '../../transforms/function-fixture.ts'
import { messageRecords } from '../../../engine/dispatch/parked/message-records.ts'
import { SinkFunctions } from '../../../actors/sink/sink-functions.ts'
import type { StoredFunction } from '../../../engine/state/functions.ts'
import { calmMs } from '../../services/calm-clock.ts'
import { SINK, stageOf } from '../sink-fixture.ts'
import { queryOf } from '../sink-state.ts'
import { inGroups, PushFixture } from './push-fixture.ts'
import { pass, until } from '../../waiting.ts'

const range = (count: number, from = 0) => Array.from({ length: count }, (_, i) => from + i)
const sorted = (ids: readonly number[]) => ids.toSorted((a, b) => a - b)

test('messages are sent in batches, each once, and several of a group in one batch in order', async () => {
  await using p = await PushFixture.open({ batch_size: 50 })
  await p.append(inGroups(500, 7))
  await p.untilDelivered(500)
  assert.deepEqual(sorted(p.ids), range(500))
  for (let g = 0; g < 7; g++) {
    const ids = p.delivered.filter(({ group }) => group === `g${g}`).map(({ id }) => id)
    assert.deepEqual(ids, sorted(ids), `order of group ${g}`)
  }
  assert.ok(p.requests.length <= 15, `${p.requests.length} requests`)
})

test('what was delivered is not sent again after a restart, and what was not is', async () => {
  await using p = await PushFixture.open({ batch_size: 10, concurrency: 1 })
  await p.append(inGroups(40, 40))
  await p.untilDelivered(40)
  await p.f.sink.stop()
  p.delivered.length = 0
  await p.append(inGroups(5, 5, 100))
  await p.start()
  await p.untilDelivered(5)
  assert.deepEqual(p.ids, range(5, 100))
})

test('a sink that begins with a backlog reads the log once: what it leaves would be fetched again from Kafka', async ({ mock }) => {
  await using p = await PushFixture.open({ batch_size: 100 })
  await p.f.sink.stop()
  for (let pack = 0; pack < 10; pack++) await p.append(range(400, pack * 400).map((id) => ({ id, pad: 400 })))
  const read = mock.method(p.f.log, 'read')
  await p.start()
  await p.untilDelivered(4_000)
  assert.equal(read.mock.callCount(), 1)
})

test('of one group nothing is sent while something of it is under way, and no more requests than the sink allows', async () => {
  const open = new Set<string>()
  let clash = ''
  await using p = await PushFixture.open({ batch_size: 1, concurrency: 4 }, async (ids) => {
    const group = `g${ids[0]! % 3}`
    if (open.has(group)) clash = group
    open.add(group)
    await pass(5, 'the receiver takes its time')
    open.delete(group)
    return {}
  })
  await p.append(inGroups(60, 3))
  await p.untilDelivered(60)
  assert.equal(clash, '')
  assert.ok(p.receiver.mostOpen <= 4 && p.receiver.mostOpen > 1, `${p.receiver.mostOpen} at once`)
})

test('partitions have their turns at what may be sent at once, however fast the answers come', async () => {
  const { promise: gate, resolve: open } = Promise.withResolvers<void>()
  await using p = await PushFixture.open({ batch_size: 1, batch: false, concurrency: 1, partitions: 2 }, async () => {
    await gate
    return {}
  })
  await p.f.append(inGroups(100, 100), 0)
  await p.f.append(inGroups(100, 100, 100), 1)
  const isRead = () => p.f.sink.status().partitions?.every(({ unfinished }) => unfinished === 100)
  await until('all of both partitions is read', isRead)
  open()
  await p.untilDelivered(200)
  const ofTheFirst = p.ids.slice(0, 100).filter((id) => id < 100).length
  // one each in turn, but for a commit's wake now and then
  assert.ok(ofTheFirst >= 30 && ofTheFirst <= 70, `${ofTheFirst} of the first 100 are of one of the two`)
})

test('one poison message in a batch is found, parked and recorded, and the others of the batch are delivered', async () => {
  await using p = await PushFixture.open({ batch_size: 100 }, (ids) =>
    ids.includes(42) ? { status: 500, body: 'no such customer', headers: { 'x-trace': '7' } } : {},
  )
  await p.append(inGroups(300, 300))
  await p.untilDelivered(299)
  const [row] = await p.untilRows('open', 1)
  assert.equal(row?.attempts, 1)
  assert.equal(row.error, 'status 500: no such customer')
  assert.equal(row.attempt_log[0]?.status, 500)
  assert.ok(row.next! > 700 && row.next! < 1_300, `next try after ${row.next} ms`)
  assert.deepEqual(
    sorted(p.ids),
    range(300).filter((id) => id !== 42),
  )
})

test('behind a message that failed its group waits, in order, until it is delivered', async () => {
  let isBroken = true
  await using p = await PushFixture.open({ batch_size: 5 }, (ids) => (isBroken && ids.includes(3) ? { status: 422, body: 'no' } : {}))
  await p.append(inGroups(40, 4))
  await p.untilDelivered(30) // all of three groups
  await p.untilRows('open', 1)
  assert.deepEqual(
    p.ids.filter((id) => id % 4 === 3),
    [],
  )
  const pending = () => p.f.sink.health().find(({ name }) => name === 'Messages pending delivery')
  assert.equal(pending()?.status, 'warning', 'whatever is delivered meanwhile')
  assert.match(pending()?.error?.message ?? '', /^a message has failed and is tried again, .*: status 422: no$/)
  isBroken = false
  await p.untilDelivered(40)
  assert.deepEqual(
    p.ids.filter((id) => id % 4 === 3),
    range(40).filter((id) => id % 4 === 3),
  )
  await p.untilRows('open', 0)
  assert.equal(pending()?.status, 'healthy')
})

test('after max_retry_count failures a message is discarded with its record, and its group goes on', async () => {
  await using p = await PushFixture.open({ batch_size: 1, max_retry_count: 2 }, (ids) =>
    ids.includes(0) ? { status: 400, body: 'never' } : {},
  )
  await p.append(inGroups(6, 2))
  await p.untilDelivered(5)
  const [row] = await p.untilRows('discarded', 1)
  assert.equal(row?.attempts, 2)
  assert.equal(row.error, 'status 400: never')
  assert.deepEqual(
    row.attempt_log.map(({ status }) => status),
    [400, 400],
  )
  assert.deepEqual(
    p.ids.filter((id) => id % 2 === 0),
    [2, 4],
  )
  const told = () => p.f.sink.health().find(({ error }) => error?.code === 'MESSAGES_DISCARDED')
  const of = (check: ReturnType<typeof told>) => [check?.status, check?.error?.message.replace(/at .*$/, '')]
  const notice = ['notice', 'a message was discarded in the last day, the last one ']
  assert.deepEqual(of(told()), notice)
  p.f.crash()
  await p.start()
  await until('the next owner knows of it', () => p.f.sink.status().partitions?.[0]?.['discardedLately'] === 1)
  assert.deepEqual(of(told()), notice, 'to the next owner too')
  p.answer = () => ({})
  await p.f.sink.edit('redeliver', 'discarded')
  await p.untilDelivered(6)
  assert.equal(told(), undefined)
})

test('while the destination is down nothing is parked, and delivery goes on within 5 s of its return', async () => {
  let down: 'no' | 503 | 500 | 401 | 'reset' = 'no'
  await using p = await PushFixture.open({ batch_size: 10, max_retry_count: 1 }, () =>
    down === 'no' ? {} : down === 'reset' ? 'reset' : { status: down },
  )
  let from = 0
  for (const kind of [503, 'reset', 401, 500] as const) {
    await p.append(inGroups(20, 20, from))
    await p.untilDelivered(from + 20)
    down = kind
    const asked = p.requests.length
    await p.append(inGroups(30, 30, from + 20))
    await p.until(() => p.requests.length > asked + 20)
    await pass(500, 'what is parked for it would be by then')
    assert.equal((await p.rows('open')).length + (await p.rows('discarded')).length, 0, String(kind))
    assert.equal(p.f.sink.status().details?.['destination'] === 'up', false)
    assert.match(
      String((p.f.sink.status().lastError?.error as Error | undefined)?.message),
      kind === 'reset' ? /./ : new RegExp(`status ${kind}`),
    )
    assert.ok(p.f.sink.health().some(({ name, status, error }) => name === 'Message delivery' && status === 'error' && error))
    down = 'no'
    from += 50
    const tookMs = await calmMs(() => p.untilDelivered(from))
    assert.ok(tookMs < 5_000, `${kind}: ${tookMs} ms`)
    await p.untilRows('open', 0)
    const [went, came] = p.warnings.splice(0)
    assert.match(went ?? '', /^the destination takes nothing: DESTINATION_\w+(, status \d+)?; it is tried again every few seconds$/)
    assert.equal(came, 'the destination takes messages again')
  }
  assert.equal(p.f.counts.parks, 0)
})

test('an edit of the sink ends a pause that the destination asked for, and nothing is blamed for what was before', async () => {
  let isWrong = true
  await using p = await PushFixture.open({ batch_size: 10, max_retry_count: 1 }, () =>
    isWrong ? { status: 401, headers: { 'retry-after': '600' } } : {},
  )
  await p.append(inGroups(30, 30))
  await until('the destination is down', () => p.f.sink.status().details?.['destination'] === 'down')
  isWrong = false
  p.f.update({ annotations: { login: 'mended' } })
  await p.untilDelivered(30)
  assert.deepEqual([p.f.counts.parks, sorted(p.ids)], [0, range(30)])
})

test('functions decide what is sent and how; a message that fails in one is parked, its group waits, and others go on', async () => {
  const shared = pool()
  const fn = (kind: 'filter' | 'transform', code: string) => ({ key: `${kind} ${code}`, name: 'mine', kind, code, usesMetadata: false })
  const functions = {
    filter: fn('filter', 'export default (a, r) => r.id % 3 !== 0'),
    transform: fn(
      'transform',
      `export default (a, r) => { if (r.id === 7) throw new Error('no seven'); return { record: { id: r.id, group: r.group, made: r.id * 2 } } }`,
    ),
  }
  try {
    await using p = await PushFixture.open({ batch_size: 10 }, undefined, stageOf(functions, shared))
    await p.append(inGroups(30, 5))
    const wanted = range(30).filter((id) => id % 3 !== 0 && !(id % 5 === 2 && id >= 7)) // 7 is of group 2
    await p.untilDelivered(wanted.length)
    const [row] = await p.untilRows('open', 1)
    assert.match(row?.error ?? '', /transform "mine": .*no seven/)
    assert.equal(row?.attempts, 1)
    assert.deepEqual(sorted(p.ids), wanted)
    const [first] = p.receiver.bodies as [{ data: { record: { id: number; made: number } }[] }]
    assert.deepEqual(
      first.data.map(({ record }) => record.made),
      first.data.map(({ record }) => record.id * 2),
    )
  } finally {
    await shared.stop()
  }
})

test('a routing function says where each message goes, one group one way at a time; what it says wrong fails its own message', async () => {
  const shared = pool()
  const code = `export default (a, r) => ({ method: r.id === 5 ? 'FETCH' : 'put', endpoint_path: '/' + (r.id % 2) })`
  const mine: StoredFunction = {
    ...{ id: 'f1', accountId: SINK.accountId, name: 'mine', type: 'routing', description: null, sinkType: 'webhook' },
    ...{ code, compiled: code, usesMetadata: false },
  }
  const functions = new SinkFunctions(shared, () => [mine])
  try {
    const settings = { batch_size: 10, routing: 'mine' }
    await using p = await PushFixture.open(settings, undefined, (...given) => functions.stageOf(...given))
    await p.append(inGroups(30, 3))
    const wanted = range(30).filter((id) => id % 3 !== 2 || id < 5) // 5 is of group 2
    await p.untilDelivered(wanted.length)
    const [row] = await p.untilRows('open', 1)
    assert.match(row?.error ?? '', /^routing "mine": method must be "GET", .* or "OPTIONS" \(it is "FETCH"\)$/)
    assert.deepEqual(sorted(p.ids), wanted)
    for (const [i, request] of p.receiver.requests.entries()) {
      assert.equal(request.method, 'PUT')
      for (const id of p.requests[i] ?? []) assert.equal(request.path, `/${id % 2}`)
    }
    for (let g = 0; g < 3; g++) {
      const ids = p.delivered.filter(({ group }) => group === `g${g}`).map(({ id }) => id)
      assert.deepEqual(ids, sorted(ids))
    }
    assert.ok(p.requests.length < 25, `${p.requests.length} requests`)
  } finally {
    await shared.stop()
  }
})

test('poison at the head of each of 50 groups is parked, and everything else is delivered soon', async () => {
  for (const batch_size of [1, 20]) {
    await using p = await PushFixture.open({ batch_size }, (ids) => (ids.some((id) => id < 50) ? { status: 500, body: 'poison' } : {}))
    const tookMs = await calmMs(async () => {
      await p.append(inGroups(50, 50))
      await p.append(range(300, 100).map((id) => ({ id, group: `other ${id}` })))
      await p.untilDelivered(300)
    })
    assert.ok(tookMs < 5_000, `${tookMs} ms`)
    assert.deepEqual(sorted(p.ids), range(300, 100))
    await p.untilRows('open', 50)
  }
})

test('what failed can be read with its attempts, in the destination’s own words', async () => {
  await using p = await PushFixture.open({ batch_size: 1, max_retry_count: 2 }, (ids) =>
    ids.includes(0) ? { status: 400, body: 'never', headers: { 'x-trace': '7' } } : {},
  )
  await p.append(inGroups(4, 2))
  await p.untilRows('discarded', 1)
  const [record, ...more] = (await messageRecords(queryOf(p.db), SINK.id, { limit: 10 })).messages
  assert.deepEqual(more, [])
  const { id, attempts, ...rest } = record ?? assert.fail()
  assert.match(id, /^[0-9a-z]+\.1\.0\.0\.0$/)
  assert.deepEqual(
    [rest.state, rest.action, rest.record_pks, rest.deliver_count, rest.error],
    ['discarded', 'insert', ['g0'], 2, 'status 400: never'],
  )
  const [newest] = attempts as { status: number; body: string; headers: Record<string, string> }[]
  assert.deepEqual([attempts.length, newest?.status, newest?.body, newest?.headers['x-trace']], [2, 400, 'never', '7'])
})
