/** Receive, ack and nack (docs/pull-api.md) through a running pull sink on a real log; nothing here parks, so the state database is a stub. */
import assert from 'node:assert/strict'
import { mock, test } from 'node:test'
import { ownTopic } from '../../../engine/wal/routing/routing.ts'
import { worst } from '../../../engine/status.ts'
import { EngineError } from '../../../engine/errors.ts'
import { readerOf, type Log } from '../../../engine/log/log.ts'
import { acksOf, DATABASE, elements, Fixture, idsOf, onlyGeneration, SINK, tokenIn, type Element } from '../sink-fixture.ts'
import type { Shape } from '../../../sinks/pull.ts'
import { gather, until } from '../../waiting.ts'

const LONG_MS = 20_000
const withRead = (log: Log, read: Log['read']): Log =>
  new Proxy(log, {
    get: (target, name) => {
      const value: unknown = name === 'read' ? read : Reflect.get(target, name)
      return typeof value === 'function' ? value.bind(target) : value
    },
  })
const code = (expected: string) => (error: unknown) => error instanceof EngineError && error.code === expected

test('a receive that waits is answered when a message comes, and one that does not wait at once', async () => {
  await using f = await Fixture.open()
  assert.deepEqual(await f.receive(10), [])
  const waiting = f.receive(10, LONG_MS)
  await f.append([{ id: 1 }, { id: 2 }])
  assert.deepEqual(idsOf(await waiting), [1, 2])
})

test('a pull sink that nobody asks holds about an answer of its backlog and leaves the log, gives it at once to who asks, and then goes on', async () => {
  await using f = await Fixture.open({}, { start: false })
  let readers = 0
  const read: Log['read'] = async function* (...args) {
    readers++
    try {
      yield* f.log.read(...args)
    } finally {
      readers--
    }
  }
  await f.start({ log: withRead(f.log, read) })
  for (let pack = 0; pack < 40; pack++) await f.append(Array.from({ length: 500 }, (_, i) => ({ id: pack * 500 + i, pad: 200 })))
  const held = () => Number(f.sink.status().partitions?.[0]?.['windowBytes'])
  await until('the window is full', () => held() >= 640 * 1024)
  for (let turn = 0; turn < 100; turn++) await new Promise((resolve) => setImmediate(resolve))
  assert.ok(held() < 1024 * 1024, `${held()} bytes of ${40 * 500 * 300}`)
  assert.equal(readers, 0, 'it is told of no append, and nothing is kept for it')
  assert.equal((await f.receive(1_000)).length, 1_000)
  assert.equal((await f.gather(9_000)).length, 9_000)
})

test('a wait ends with an empty answer when its time is over', async () => {
  await using f = await Fixture.open()
  const receipt = await f.receipt(10, 30)
  assert.equal(receipt.body.toString(), '{"data":[]}')
  assert.equal(receipt.count, 0)
})

test('a wait is not ended by messages that others hold, but by the nack, the ack or the lapse that frees one', async () => {
  await using f = await Fixture.open({ ack_wait_ms: 300 })
  await f.append([
    { id: 1, group: 'a' },
    { id: 2, group: 'a' },
  ])
  const [one] = await f.receive(10, LONG_MS)
  assert.equal(one?.record.id, 1)
  assert.deepEqual(await f.receive(10, 40), [], 'the second waits for the first')

  const afterNack = f.receive(10, LONG_MS)
  await f.pulled.nack([one?.ack_id as string])
  const [again] = await afterNack
  assert.deepEqual([again?.record.id, again?.ack_id], [1, one?.ack_id], 'the same message under the same id')

  const afterLapse = await f.receive(10, LONG_MS)
  assert.deepEqual(idsOf(afterLapse), [1])
  assert.equal(f.counts.lapses, 1)

  const afterAck = f.receive(10, LONG_MS)
  await f.pulled.ack(acksOf(afterLapse))
  assert.deepEqual(idsOf(await afterAck), [2])
})

test('one token stands for all messages of an answer, and for no other, in either shape', async () => {
  await using f = await Fixture.open({ partitions: 2, ack_wait_ms: 60_000 })
  await f.append([1, 2, 3, 4, 5].map((id) => ({ id, group: id < 3 ? 'same' : `${id}` })))
  await f.append([{ id: 11 }, { id: 12 }], 1)
  const held = new Map<string, number[]>()
  const take = async (count: number, shape: Shape) => {
    const next = async () => {
      const receipt = await f.receipt(4, LONG_MS, { shape, ackToken: true })
      const messages = elements(receipt) as (Element & { data?: Element })[]
      const ids = messages.map(({ data, record }) => (data?.record ?? record).id)
      held.set(tokenIn(receipt).join(' '), ids)
      return ids
    }
    return (await gather('messages', next, count)).toSorted((a, b) => a - b)
  }
  assert.deepEqual(await take(6, 'flat'), [1, 3, 4, 5, 11, 12])
  const [[token, acked], ...others] = [...held] as [[string, number[]], ...[string, number[]][]]
  await f.pulled.ack(token.split(' '))
  await f.pulled.nack(others.flatMap(([other]) => other.split(' ')))
  held.clear()
  const rest = [1, 3, 4, 5, 11, 12].filter((id) => !acked.includes(id))
  const follows = acked.includes(1) ? [2] : []
  assert.deepEqual(
    await take(rest.length + follows.length, 'nested'),
    [...rest, ...follows].toSorted((a, b) => a - b),
  )
  await f.pulled.ack([...held.keys()].flatMap((other) => other.split(' ')))
  if (follows.length === 0) assert.deepEqual(idsOf(await f.receive(10, LONG_MS)), [2])
  assert.deepEqual(await f.receive(10, 30), [])
})

test('those who wait are served in the order they came', async () => {
  await using f = await Fixture.open()
  const order: string[] = []
  const waits = ['first', 'second', 'third'].map(async (name) => {
    const got = await f.receive(1, LONG_MS)
    order.push(`${name} ${idsOf(got).join()}`)
  })
  await f.append([{ id: 1 }, { id: 2 }, { id: 3 }])
  await Promise.all(waits)
  assert.deepEqual(order, ['first 1', 'second 2', 'third 3'])
})

test('a client that goes away while it waits takes nothing and frees its place', async () => {
  await using f = await Fixture.open({ max_waiting: 1 })
  const client = new AbortController()
  const gone = f.receipt(1, LONG_MS, { signal: client.signal })
  client.abort()
  assert.equal((await gone).count, 0)
  const next = f.receive(1, LONG_MS)
  await f.append([{ id: 1 }])
  assert.deepEqual(idsOf(await next), [1])
  assert.equal((await f.receipt(1, LONG_MS, { signal: AbortSignal.abort() })).count, 0, 'gone before it came')
})

test('one wait more than max_waiting is refused; receives that do not wait are not counted', async () => {
  await using f = await Fixture.open({ max_waiting: 2 })
  const waits = [f.receive(1, LONG_MS), f.receive(1, LONG_MS)]
  await assert.rejects(f.receive(1, LONG_MS), code('TOO_MANY_WAITING'))
  assert.deepEqual(await f.receive(1), [])
  await f.append([{ id: 1 }, { id: 2 }, { id: 3 }])
  assert.deepEqual((await Promise.all(waits)).flatMap(idsOf), [1, 2])
  assert.deepEqual(idsOf(await f.receive(1, LONG_MS)), [3])
})

test('of a group one message is with a client at a time, in order; without grouping all are', async () => {
  const written = [1, 2, 3, 4, 5, 6].map((id) => ({ id, group: id % 2 ? 'odd' : 'even' }))
  await using f = await Fixture.open()
  await f.append(written)
  const next = async () => {
    const got = await f.receive(10, LONG_MS)
    await f.pulled.ack(acksOf(got))
    return [idsOf(got)]
  }
  const seen = await gather<number[]>('all six', next, (answers) => answers.flat().length >= 6)
  assert.deepEqual(seen, [
    [1, 2],
    [3, 4],
    [5, 6],
  ])

  await using free = await Fixture.open({ message_grouping: false })
  await free.append(written)
  assert.deepEqual(idsOf(await free.receive(10, LONG_MS)), [1, 2, 3, 4, 5, 6])
})

test('an ack of a returned message ends it, also one that came too late or while another client has it', async () => {
  await using f = await Fixture.open({ ack_wait_ms: 100 })
  await f.append([{ id: 1 }, { id: 2 }])
  const got = await f.receive(2, LONG_MS)
  await f.pulled.nack(acksOf(got).slice(0, 1))
  await f.pulled.ack(acksOf(got).slice(0, 1))
  await f.counts.until((c) => c.lapses === 1)
  const again = await f.receive(2, LONG_MS)
  assert.deepEqual(idsOf(again), [2])
  await f.pulled.ack(acksOf(got))
  await f.counts.until((c) => c.acks === 2)
  assert.deepEqual(await f.receive(2, 150), [])
})

test('unknown, repeated and foreign ids are ignored, and known ones among them count', async () => {
  await using f = await Fixture.open()
  await f.append([{ id: 1 }, { id: 2 }])
  const [one] = await f.receive(1, LONG_MS)
  const known = one?.ack_id as string
  const foreign = known.replace(/^[^.]+/, 'other')
  const undelivered = known.replace(/0$/, '1')
  await f.pulled.ack(['', 'nonsense', '💥', foreign, undelivered, known.replace('.1.0.', '.1.9.'), 'x'.repeat(1_000_000)])
  await f.pulled.nack(['nonsense', undelivered])
  assert.equal(f.counts.acks, 0)
  await f.pulled.ack([known, 'nonsense', known])
  await f.pulled.ack([known])
  assert.equal(f.counts.acks, 1)
  assert.deepEqual(idsOf(await f.receive(10, LONG_MS)), [2])
})

test('a sink that is off hands out nothing, takes acks all the same, and goes on when it is on again', async () => {
  await using f = await Fixture.open()
  await f.append([
    { id: 1, group: 'a' },
    { id: 2, group: 'a' },
  ])
  const got = await f.receive(10, LONG_MS)
  f.update({ status: 'paused' })
  await f.pulled.ack(acksOf(got))
  assert.deepEqual(await f.receive(10), [])
  assert.equal(worst(f.sink.health()), 'paused')
  const waiting = f.receive(10, LONG_MS)
  f.update({ status: 'active' })
  assert.deepEqual(idsOf(await waiting), [2])
  assert.equal(worst(f.sink.health()), 'healthy')
})

test('a stop answers those who wait with nothing and refuses what comes after', async () => {
  await using f = await Fixture.open()
  const waiting = f.receive(10, LONG_MS)
  await f.sink.stop()
  assert.deepEqual(await waiting, [])
  await assert.rejects(f.receive(1), code('STOPPING'))
  await assert.rejects(f.pulled.ack(['1g08420.1.0.0.0']), code('STOPPING'))
  await f.sink.ended
})

test('an element is flat or nested, with the metadata of its sink and database as they are when it is delivered', async () => {
  await using f = await Fixture.open()
  await f.append([{ id: 1 }, { id: 2 }, { id: 3 }])
  const metadata = (name: string, annotations: Record<string, unknown>) => ({
    enrichment: null,
    database_name: 'shop',
    consumer: { id: SINK.id, name, annotations },
    database: { id: DATABASE.id, name: 'shop', annotations: {}, database: 'shop_production', hostname: 'pg.internal' },
  })
  const [flat] = elements(await f.receipt(1, LONG_MS))
  assert.deepEqual(flat, {
    ack_id: flat?.ack_id,
    record: { id: 1, group: 'g1' },
    changes: null,
    action: 'insert',
    metadata: { commit_lsn: 16, commit_idx: 0, ...metadata('orders', { team: 'search' }) },
  })
  f.update({ name: 'renamed "x"', annotations: { team: 'Ω' } })
  const nested = elements(await f.receipt(2, LONG_MS, { shape: 'nested' })) as unknown as {
    ack_id: string
    data: Record<string, unknown>
  }[]
  assert.deepEqual(
    nested.map((e) => e.data),
    [2, 3].map((id) => ({
      record: { id, group: `g${id}` },
      changes: null,
      action: 'insert',
      metadata: { commit_lsn: 16, commit_idx: id - 1, ...metadata('renamed "x"', { team: 'Ω' }) },
    })),
  )
  await f.pulled.ack(nested.map((e) => e.ack_id))
  assert.equal(f.counts.acks, 2)
})

test('an answer has at most 16 MB, or one message', async () => {
  await using f = await Fixture.open()
  const MB = 1024 * 1024
  await f.append([
    { id: 1, pad: 17 * MB },
    { id: 2, pad: 9 * MB },
    { id: 3, pad: 6 * MB },
    { id: 4, pad: 2 * MB },
  ])
  assert.deepEqual(idsOf(await f.receive(10, LONG_MS)), [1])
  assert.deepEqual(idsOf(await f.receive(10, LONG_MS)), [2, 3])
  assert.deepEqual(idsOf(await f.receive(10, LONG_MS)), [4])
})

test('messages of an answer that could not be written are deliverable again at once', async () => {
  await using f = await Fixture.open()
  await f.append([{ id: 1 }, { id: 2 }])
  const lost = await f.receipt(2, LONG_MS)
  const waiting = f.receive(2, LONG_MS)
  lost.giveBack()
  assert.deepEqual(idsOf(await waiting), [1, 2])
  lost.giveBack()
  assert.deepEqual(await f.receive(2, 30), [], 'they are with another client now')
})

test('an ack is answered when the commit that holds it is durable, and a repeated one waits for the same', async () => {
  await using f = await Fixture.open()
  await f.append([{ id: 1 }])
  const ids = acksOf(await f.receive(1, LONG_MS))
  const gate = Promise.withResolvers<void>()
  const { begun } = f.process
  f.process.gate = gate.promise
  const answers: string[] = []
  const acks = [f.pulled.ack(ids).then(() => answers.push('first')), f.pulled.ack(ids).then(() => answers.push('repeated'))]
  await until('the commit begins', () => f.process.begun > begun)
  acks.push(f.pulled.ack(ids).then(() => answers.push('while it is written')))
  await new Promise<void>((resolve) => void setImmediate(resolve))
  assert.deepEqual(answers, [])
  gate.resolve()
  await Promise.all(acks)
  assert.equal(answers.length, 3)
  assert.deepEqual(f.process.commits.at(-1)?.next, { offset: 1, index: 0 })
})

test('an ack whose commit is refused fails with a retry, and the message comes again', async () => {
  await using f = await Fixture.open({ ack_wait_ms: 100 })
  await f.append([{ id: 1 }])
  const ids = acksOf(await f.receive(1, LONG_MS))
  f.process.gate = Promise.reject(new Error('no space'))
  f.process.gate.catch(() => undefined)
  await assert.rejects(f.pulled.ack(ids), code('ACK_NOT_DURABLE'))
  assert.equal(worst(f.sink.health()), 'error')
  f.process.gate = undefined
  assert.deepEqual(idsOf(await f.receive(1, LONG_MS)), [1], 'the partition was taken over again by itself')
  await f.pulled.ack(ids)
  assert.deepEqual(await f.receive(1, 150), [])
  assert.equal(worst(f.sink.health()), 'healthy')
})

test('after a crash acked messages never come again, and open ones after their visibility time under the same ids', async () => {
  await using f = await Fixture.open({ ack_wait_ms: 300 })
  await f.append([1, 2, 3, 4].map((id) => ({ id })))
  const before = await f.receive(3, LONG_MS)
  await f.pulled.ack(acksOf(before).slice(1, 2))
  f.crash()
  const since = performance.now()
  await f.start()
  const after = await f.gather(3)
  assert.ok(performance.now() - since >= 295, 'not before the visibility time from the take-over')
  assert.deepEqual(idsOf(after), [1, 3, 4])
  assert.deepEqual(after[0]?.ack_id, before[0]?.ack_id)
})

test('after a crash an ack from before it counts, while the message is still invisible', async () => {
  await using f = await Fixture.open({ ack_wait_ms: 200 })
  await f.append([{ id: 1 }, { id: 2 }])
  const before = await f.receive(2, LONG_MS)
  f.crash()
  await f.start()
  await until('the reader has come to it, and the ack is taken', () =>
    f.pulled.ack(acksOf(before).slice(0, 1)).then(
      () => true,
      (error) => void assert.ok(code('ACK_NOT_DURABLE')(error)),
    ),
  )
  assert.deepEqual(idsOf(await f.receive(2, LONG_MS)), [2])
})

test('an ack that comes after a crash before its message was read again is told to try again, not taken in vain', async () => {
  await using f = await Fixture.open({ ack_wait_ms: 500 })
  await f.append([{ id: 1 }, { id: 2 }])
  const [first] = acksOf(await f.receive(2, LONG_MS))
  f.crash()
  const readable = Promise.withResolvers<void>()
  const read: Log['read'] = async function* (...args) {
    await readable.promise
    yield* f.log.read(...args)
  }
  await f.start({ log: withRead(f.log, read) })
  await assert.rejects(f.pulled.ack([first!]), code('ACK_NOT_DURABLE'))
  readable.resolve()
  assert.deepEqual(idsOf(await f.gather(2)).sort(), [1, 2]) // nobody was told that it was acked
})

test('what comes after a crash is not held back by what was promised before it', async () => {
  await using f = await Fixture.open({ ack_wait_ms: 60_000 })
  await f.append([{ id: 1 }])
  await f.receive(1, LONG_MS)
  f.crash()
  await f.start()
  await f.append([{ id: 2 }])
  assert.deepEqual(idsOf(await f.receive(2, LONG_MS)), [2])
})

test('after a stop exactly what was with clients stays invisible, for the time that was left', async () => {
  await using f = await Fixture.open({ ack_wait_ms: 3_000 })
  await f.append([1, 2, 3].map((id) => ({ id })))
  const since = performance.now() // before: on a busy machine the answer may be a while on its way
  const held = await f.receive(2, LONG_MS)
  await f.pulled.nack(acksOf(held).slice(1))
  await f.sink.stop()
  await f.start()
  const free = await f.gather(2)
  assert.deepEqual(idsOf(free), [2, 3], 'returned and new ones at once')
  await f.pulled.ack(acksOf(free)) // else their own time may lapse before the client asks again
  assert.deepEqual(idsOf(await f.receive(3, LONG_MS)), [1])
  assert.ok(performance.now() - since >= 2_995)
})

test('a sink goes on from any commit it ever made, and brings exactly what was open then', async () => {
  await using f = await Fixture.open({ ack_wait_ms: 40 })
  for (let r = 0; r < 6; r++) await f.append([0, 1, 2, 3].map((i) => ({ id: r * 4 + i, group: `g${(r + i) % 5}` })))
  const open = new Set(Array.from({ length: 24 }, (_, i) => i))
  const history = new Map([[0, new Set(open)]])
  const takeSome = async () => {
    const got = await f.receive(3, LONG_MS)
    const acked = got.filter((_, i) => got.length === 1 || i !== 1)
    await f.pulled.ack(acksOf(acked))
    for (const id of idsOf(acked)) open.delete(id)
    history.set(f.process.commits.length - 1, new Set(open))
    return acked
  }
  await gather('all', takeSome, () => open.size === 0)
  const commits = [...f.process.commits]
  await f.sink.stop()
  for (const [at, expected] of [...history].filter(([, o], i) => i % 4 === 0 && o.size > 0)) {
    const { inFlight: _, ...commit } = commits[at] as (typeof commits)[number]
    // the log was trimmed behind the last commit: a log of its own holds the same records
    await using again = await Fixture.open({ ack_wait_ms: 40 }, { start: false })
    for (let r = 0; r < 6; r++) await again.append([0, 1, 2, 3].map((i) => ({ id: r * 4 + i, group: `g${(r + i) % 5}` })))
    await again.log.commit(ownTopic({ sinkId: SINK.id, generation: 1 }), 0, commit)
    await again.start()
    const next = async () => {
      const got = await again.receive(10, LONG_MS)
      await again.pulled.ack(acksOf(got))
      return idsOf(got)
    }
    const came = await gather('what was open', next, expected.size)
    assert.deepEqual(new Set(came), expected)
    assert.deepEqual(await again.receive(10, 60), [])
  }
})

test('a partition that lost records, and got as many others since, is read on from the first that was not there before', async () => {
  await using f = await Fixture.open({}, { start: false })
  for (let id = 1; id <= 4; id++) await f.append([{ id }])
  const accepted = { history: 0, lsn: 16n, idx: 0, part: 1 as const } // of the first record: the three behind it are others now
  const finished = [{ from: { offset: 3, index: 0 }, to: { offset: 3, index: 1 } }]
  const topic = ownTopic({ sinkId: SINK.id, generation: 1 })
  await f.log.commit(topic, 0, { next: { offset: 3, index: 0 }, accepted, finished, handedOut: { offset: 4, index: 0 }, term: 0 })
  await f.start()
  assert.deepEqual(idsOf(await f.gather(3)), [2, 3, 4])
})

test('a marker that others were given makes nothing of a commit void', async () => {
  await using f = await Fixture.open({ ack_wait_ms: 300 }, { start: false })
  const generations = onlyGeneration(SINK)
  const serve = async () => ({ ...(await generations.serve())!, reader: readerOf(ownTopic({ sinkId: SINK.id, generation: 1 }), 'one.1') })
  await f.start({ generations: { ...generations, serve } })
  await f.append([{ id: 1 }])
  await f.close()
  await f.append([{ id: 2 }, { id: 3 }])
  await f.pulled.ack(acksOf((await f.gather(3)).filter((m) => m.record.id !== 2)))
  f.crash()
  await f.start({ generations: { ...generations, serve } })
  const [open] = await f.gather(1)
  assert.equal(open?.record.id, 2)
  await f.pulled.ack(acksOf([open]))
  assert.deepEqual(await f.receive(10, 400), [])
})

test('all partitions are served, acks find theirs, and max_ack_pending holds over all of them', async () => {
  await using f = await Fixture.open({ partitions: 3, max_ack_pending: 4 })
  for (let p = 0; p < 3; p++)
    await f.append(
      [0, 1, 2].map((i) => ({ id: p * 10 + i })),
      p,
    )
  const first = await f.gather(4)
  assert.deepEqual(await f.receive(10, 30), [], 'four are pending')
  await f.pulled.ack(acksOf(first))
  const second = await f.gather(4)
  await f.pulled.ack(acksOf(second))
  const third = await f.gather(1)
  assert.deepEqual(
    idsOf([...first, ...second, ...third]).sort((a, b) => a - b),
    [0, 1, 2, 10, 11, 12, 20, 21, 22],
  )
})

test('records below the committed one are deleted from the log', async () => {
  await using f = await Fixture.open()
  for (let i = 0; i < 5; i++) await f.append([{ id: i }])
  const got = await f.gather(5)
  await f.pulled.ack([0, 1, 3].map((i) => acksOf(got)[i] as string))
  const topic = ownTopic({ sinkId: SINK.id, generation: 1 })
  await until('the first two are deleted', async () => (await f.log.stats(topic, 0)).first >= 2)
  assert.equal((await f.log.stats(topic, 0)).first, 2, 'record 2 is open')
  await f.pulled.ack(acksOf(got))
  await until('all are deleted', async () => (await f.log.stats(topic, 0)).first >= 5)
})

test('status shows how far each partition is', async () => {
  await using f = await Fixture.open({ partitions: 2 })
  await f.append([{ id: 1 }, { id: 2 }])
  const got = await f.receive(2, LONG_MS)
  await f.pulled.ack(acksOf(got).slice(1))
  const { id, kind, name, state, partitions } = f.sink.status()
  assert.deepEqual([id, kind, name, state], [`sink/${SINK.id}`, 'sink', 'orders', 'active'])
  assert.deepEqual(
    partitions?.map((p) => [p['partition'], p['state'], p['committed'], p['read'], p['inFlight'], p['parked']]),
    [
      [0, 'running', 0, 1, 1, 0],
      [1, 'running', 0, 0, 0, 0],
    ],
  )
})

test('a clock that jumps ends no visibility time and holds nothing back', async () => {
  await using f = await Fixture.open({ ack_wait_ms: 30_000 })
  await f.append([{ id: 1 }])
  const first = await f.receive(10, LONG_MS)
  const { now } = Date
  for (const jump of [1, -1]) {
    const jumped = mock.method(Date, 'now', () => now() + jump * 86_400_000)
    try {
      assert.deepEqual(await f.receive(10, 50), [])
      await f.pulled.nack(acksOf(first))
      assert.deepEqual(idsOf(await f.receive(10, LONG_MS)), [1])
    } finally {
      jumped.mock.restore()
    }
  }
})

test('while the state database can not say what of a stream is its own, a partition waits, and is not taken over anew', async () => {
  await using f = await Fixture.open({}, { start: false })
  const generations = onlyGeneration(SINK)
  let asked = 0
  const span = async (): ReturnType<typeof generations.span> => {
    if (++asked < 3) throw new EngineError('STATE_UNAVAILABLE', 'it is away')
    return generations.span(1)
  }
  await f.start({ generations: { ...generations, span } })
  await f.append([{ id: 1 }])
  const [partition] = f.sink.status().partitions ?? []
  assert.deepEqual(idsOf(await f.gather(1)), [1])
  assert.equal(asked, 3)
  assert.equal(f.sink.status().partitions?.[0]?.['term'], partition?.['term'])
})
