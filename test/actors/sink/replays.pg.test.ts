/** A sink that is set back, on a real log and a real state database: what comes again, what doesn't, and in which order. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { deleteOldTopics } from '../../../engine/dispatch/old-topics.ts'
import { inheritanceOf } from '../../../engine/dispatch/replay/rewound.ts'
import type { EngineError } from '../../../engine/errors.ts'
import { formatLsn } from '../../../engine/lsn.ts'
import { ownTopic } from '../../../engine/wal/routing/routing.ts'
import { acksOf, hashOf, idsOf, SINK, type Element } from '../sink-fixture.ts'
import { queryOf, storeOf } from '../sink-state.ts'
import { Switching, type Setting } from '../switching.ts'
import { gather, until } from '../../waiting.ts'

const LONG_MS = 20_000
const KEPT: Setting = { replay_window: '1h' }
const upTo = (from: number, to: number) => Array.from({ length: to - from + 1 }, (_, i) => from + i)

/** Ids from 0 on, one record each, over some groups. @returns the LSN of each */
async function write(s: Switching, count: number, groups = 3, partitions = 1): Promise<bigint[]> {
  const lsns: bigint[] = []
  for (let id = 0; id < count; id++) {
    const group = `g${id % groups}`
    await s.f.append([{ id, group }], hashOf(group) % partitions)
    lsns.push(s.f.position.lsn)
  }
  return lsns
}

/** Receives and acks until so many have come. */
function ackAll(s: Switching, count: number): Promise<number[]> {
  const next = async (came: readonly number[]) => {
    const some = await s.f.receive(count - came.length, LONG_MS)
    assert.ok(some.length > 0, `only ${came.join()} of ${count} came`)
    await s.ack(some)
    return idsOf(some)
  }
  return gather('messages', next, count)
}

/** Receives and acks so many, each before the next. */
const oneByOne = (s: Switching, count: number) => gather('messages, one by one', () => ackAll(s, 1), count)

/** The same, but of one group, whose messages nobody acks. */
function ackAllBut(s: Switching, group: number, count: number): Promise<number[]> {
  const next = async () => {
    const some = (await s.f.receive(100, LONG_MS)).filter(({ record }) => record.id % 3 !== group)
    await s.ack(some)
    return idsOf(some)
  }
  return gather('messages of the other groups', next, count)
}

/** Of each group in the order they came. */
function inOrder(ids: readonly number[], groups = 3): void {
  for (let group = 0; group < groups; group++) {
    const mine = ids.filter((id) => id % groups === group)
    assert.deepEqual(
      mine,
      mine.toSorted((a, b) => a - b),
      `group ${group}`,
    )
  }
}

const byNumber = (a: number, b: number) => a - b
const byId = (messages: readonly Element[], id: number): Element => messages.find(({ record }) => record.id === id) as Element

test('what was acked from the position on comes again in order; what lies below comes only if it was open', async () => {
  await using s = await Switching.open({ ...KEPT, message_grouping: false })
  const lsns = await write(s, 10)
  const all = await s.f.gather(10)
  await s.f.pulled.ack(acksOf(all.filter(({ record: { id } }) => id !== 2 && id !== 7)))
  const { messages, partitions, from } = await s.replay({ lsn: lsns[5] as bigint })
  assert.deepEqual([messages, partitions, from?.lsn], [4, 1, lsns[5]])
  assert.deepEqual(await ackAll(s, 5), [5, 6, 7, 8, 9], '2 is with its client still; 7, which is too, comes again')
  await s.ack([byId(all, 2)])
  await s.f.sink.stop()
  await s.start()
  assert.deepEqual(await s.f.receive(10, 50), [])
})

test('a partition that has not come to the position does not go forward', async () => {
  await using s = await Switching.open({ ...KEPT, partitions: 2 })
  const [first, second] = [hashOf('g0') % 2, hashOf('g1') % 2]
  assert.notEqual(first, second)
  const lsns = await write(s, 12, 2, 2)
  const got = await gather<Element>('one of each partition', () => s.f.receive(1, LONG_MS), 2)
  await s.ack([byId(got, 0)])
  assert.deepEqual(await oneByOne(s, 5), [2, 4, 6, 8, 10])
  await s.replay({ lsn: lsns[8] as bigint })
  await s.ack([byId(got, 1)]) // it lies below, and was received
  const again = await ackAll(s, 7)
  inOrder(again, 2)
  assert.deepEqual(
    again.toSorted((a, b) => a - b),
    [3, 5, 7, 8, 9, 10, 11],
  )
})

test('an ack_id from before has no effect until its message has come again, and then it finishes it', async () => {
  await using s = await Switching.open(KEPT)
  const [lsn] = await write(s, 2, 1)
  const before = await s.f.gather(1)
  await s.replay({ lsn: lsn as bigint })
  await s.f.pulled.ack(acksOf(before))
  const again = await s.f.gather(1)
  assert.deepEqual(acksOf(again), acksOf(before), 'the same name')
  await s.f.pulled.ack(acksOf(before))
  assert.deepEqual(await ackAll(s, 1), [1])
})

test('what is parked below the position is delivered first, what was parked above comes from the log, each once', async () => {
  await using s = await Switching.open({ ...KEPT, max_memory_mb: 1 / 32 })
  const lsns: bigint[] = []
  for (let id = 0; id < 60; id++) {
    await s.f.append([{ id, group: 'hot', pad: 1_000 }])
    lsns.push(s.f.position.lsn)
  }
  await s.f.append([{ id: 1_000, group: 'other' }])
  const hot = await s.f.gather(1)
  const other = await s.f.gather(1) // the window is full of the others, and they are parked
  assert.deepEqual([idsOf(hot), idsOf(other)], [[0], [1_000]])
  await s.f.pulled.ack(acksOf(other))
  const parked = await s.db.query<{ n: number }>(`select count(*)::int as n from tailrace.parked where state = 'open'`)
  assert.ok(parked[0]!.n > 10, `${parked[0]!.n} are parked`)
  await s.replay({ lsn: lsns[10] as bigint })
  const left = await s.db.query<{ n: number }>('select count(*)::int as n from tailrace.parked')
  assert.equal(left[0]!.n, 10)
  await s.f.pulled.ack(acksOf(hot)) // it lies below, and is with its client
  const came = await oneByOne(s, 60)
  assert.deepEqual(
    came.filter((id) => id !== 1_000),
    upTo(1, 59),
  )
  assert.equal(came.filter((id) => id === 1_000).length, 1)
  assert.deepEqual(await s.f.receive(10, 50), [])
})

test('a message that was given up comes again by a replay', async () => {
  await using s = await Switching.open({ ...KEPT, max_retry_count: 1, ack_wait_ms: 500 })
  const [lsn] = await write(s, 1)
  await s.f.gather(1)
  await s.f.counts.until(({ discards }) => discards === 1)
  await s.replay({ lsn: lsn as bigint })
  assert.deepEqual(await ackAll(s, 1), [0])
})

test('a record that stands in the log twice does not lead a replay past what comes before it', async () => {
  await using s = await Switching.open(KEPT)
  const lsns = await write(s, 6, 1)
  const zombie = async (id: number) => s.f.appendAgain(lsns[id] as bigint, [{ id, group: 'g0' }])
  for (const id of [1, 2, 3]) await zombie(id)
  await s.f.append([{ id: 6, group: 'g0' }])
  for (const id of [0, 1, 2]) await zombie(id)
  assert.deepEqual(await oneByOne(s, 7), upTo(0, 6))
  for (const from of [6, 4, 2, 5]) {
    await s.replay({ lsn: from === 6 ? s.f.position.lsn : (lsns[from] as bigint) })
    assert.deepEqual(await oneByOne(s, 7 - from), upTo(from, 6))
    assert.deepEqual(await s.f.receive(10, 20), [])
  }
})

test('a replay goes back to an ended generation: what followed comes again in order, generation by generation', async () => {
  await using s = await Switching.open({ ...KEPT, partitions: 2 }, { partitions: 3 })
  const lsns = await write(s, 12, 3, 2)
  assert.deepEqual(await ackAll(s, 12).then((ids) => ids.toSorted(byNumber)), upTo(0, 11))
  await s.switchOver()
  await s.untilServed(2)
  for (let id = 12; id < 21; id++) await s.append(id, `g${id % 3}`)
  const second = await ackAll(s, 9)
  assert.deepEqual(second.toSorted(byNumber), upTo(12, 20))

  const { messages, partitions } = await s.replay({ lsn: lsns[7] as bigint })
  assert.deepEqual([messages, partitions], [14, 2])
  assert.equal(s.f.sink.status().details?.['generation'], 1)
  const again = await ackAll(s, 14)
  inOrder(again)
  assert.deepEqual(again.slice(0, 5).toSorted(byNumber), upTo(7, 11), 'the former generation first')
  assert.deepEqual(again.slice(5).toSorted(byNumber), upTo(12, 20))
  await s.untilServed(2)
  assert.deepEqual(await s.f.receive(10, 50), [])

  await s.replay({ offset: 0, partition: 0, generation: 2 }) // within the generation that is delivered
  const third = await ackAll(s, 9)
  assert.deepEqual(third.toSorted(byNumber), upTo(12, 20))
  await s.replay({ lsn: 0n })
  const whole = await ackAll(s, 21)
  inOrder(whole)
  assert.deepEqual(whole.toSorted(byNumber), upTo(0, 20))
})

test('what is parked below the position goes back to the generation, and to the groups, that a replay goes back to', async () => {
  const tables = [{ name: 'public.orders', group_column_names: ['group'] }]
  for (const next of [{ partitions: 3 }, { partitions: 3, tables }, { partitions: 3, message_grouping: false }]) {
    await using s = await Switching.open({ ...KEPT, partitions: 2, ack_wait_ms: 1_000 }, next)
    const lsns = await write(s, 12, 3, 2)
    const got = await s.f.gather(3) // the first of each group; those behind wait
    await s.ack([byId(got, 1), byId(got, 2)])
    const others = [...(await ackAllBut(s, 0, 6))]
    assert.equal(others.length, 6)
    await s.switchOver() // what is left, 0 and those behind it, is parked and belongs to the next
    await s.untilServed(2)
    await s.replay({ lsn: lsns[6] as bigint })
    const rows = await s.db.query<{ owner_generation: number; record_key: string }>(
      `select owner_generation, record_key from tailrace.parked where state = 'open'`,
    )
    assert.deepEqual(
      rows.map(({ owner_generation: owner, record_key: key }) => [owner, key]),
      [
        [1, '["g0"]'],
        [1, '["g0"]'],
      ],
      'of 0, 3, 6 and 9',
    )
    const came = await ackAll(s, 8)
    // 0 is with its client yet: it and those behind it go on to the next generation once more, where without groups they wait for nobody
    if (next.message_grouping !== false) inOrder(came)
    assert.deepEqual(came.toSorted(byNumber), [0, 3, ...upTo(6, 11)])
    assert.deepEqual(await s.f.receive(10, 50), [])
  }
})

test('what lies below and is with a client stays with it when a replay goes back to an ended generation; what nobody has comes at once', async () => {
  await using s = await Switching.open({ ...KEPT, partitions: 2 }, { partitions: 3 })
  const lsns = await write(s, 12, 3, 2)
  const got = await s.f.gather(3)
  await s.ack([byId(got, 2)])
  assert.deepEqual(await ackAll(s, 3), [5, 8, 11])
  await s.switchOver() // 0 and 1 are with clients, and parked with those behind them
  await s.untilServed(2)
  await s.f.pulled.nack(acksOf([byId(got, 1)]))
  await s.replay({ lsn: lsns[6] as bigint })
  const came = await ackAll(s, 6)
  inOrder(came)
  assert.deepEqual(came.toSorted(byNumber), [1, 4, 7, 8, 10, 11])
  assert.deepEqual(await s.f.receive(10, 20), [], '0 is with its client, and 3, 6 and 9 stand behind it')
  await s.ack([byId(got, 0)])
  assert.deepEqual(await ackAll(s, 3), [3, 6, 9])
})

test('a replay that is cut off at any statement has done nothing, and one that got through has done all of it', async () => {
  for (const generations of [1, 2]) {
    await using s = await Switching.open({ ...KEPT, ack_wait_ms: 500 }, { partitions: 2 })
    const lsns = await write(s, 6)
    await ackAll(s, 6)
    if (generations === 2) {
      await s.switchOver()
      await s.untilServed(2)
      for (let id = 6; id < 9; id++) await s.append(id, `g${id % 3}`)
      await ackAll(s, 3)
    }
    const last = generations === 1 ? 5 : 8
    for (let fails = generations; ; fails += 2) {
      const store = storeOf(s.db, (statement) => {
        if (statement !== fails) return
        s.f.crash()
        throw new Error('the process has just died')
      })
      const outcome = await s.replay({ lsn: lsns[2] as bigint }, store).catch((error: unknown) => error)
      if (!(outcome instanceof Error)) {
        assert.ok(fails > 5, `it was cut off at ${fails - 1} statements`)
        const came = await ackAll(s, last - 1)
        inOrder(came)
        assert.deepEqual(came.toSorted(byNumber), upTo(2, last))
        break
      }
      await s.start()
      assert.deepEqual(await s.f.receive(10, 20), [], `nothing comes again after ${fails - 1} statements`)
    }
  }
})

test('the state database answers, and the process dies before its partitions begin again: the replay stands', async () => {
  await using s = await Switching.open({ ...KEPT, ack_wait_ms: 500 })
  const lsns = await write(s, 6)
  await ackAll(s, 6)
  const { sink } = s.f
  const release = sink.release.bind(sink)
  sink.release = async (by) => {
    s.f.crash()
    await release(by)
  }
  await s.replay({ lsn: lsns[4] as bigint })
  await s.start()
  assert.deepEqual((await ackAll(s, 2)).toSorted(byNumber), [4, 5])
})

test('of two replays at once one is refused, and a sink that another process has taken over meanwhile is left alone', async () => {
  await using s = await Switching.open(KEPT)
  const lsns = await write(s, 4)
  await ackAll(s, 4)
  const target = { lsn: lsns[1] as bigint }
  const outcomes = await Promise.allSettled([s.replay(target), s.replay(target)])
  const codes = outcomes.map((outcome) => (outcome.status === 'rejected' ? (outcome.reason as { code: string }).code : 'done'))
  assert.deepEqual(codes.toSorted(), ['REPLAY_RUNNING', 'done'])
  assert.deepEqual((await ackAll(s, 3)).toSorted(byNumber), [1, 2, 3])
  const takenOver = storeOf(s.db, async (statement) => {
    if (statement === 1) await s.db.query(`update tailrace.term set term = term + 1, holder = 'another'`)
  })
  await assert.rejects(s.replay(target, takenOver, 1_000), { code: 'PARTITION_MOVING' })
  assert.deepEqual(await s.f.receive(10, 50), [])
})

test('a process that goes on with a later generation while another is set back leaves it, and delivers nothing of it before', async () => {
  await using s = await Switching.open(KEPT, { partitions: 2 })
  const lsns = await write(s, 4)
  await ackAll(s, 4)
  await s.switchOver()
  await s.untilServed(2)
  for (let id = 4; id < 8; id++) await s.append(id, `g${id % 3}`)
  await ackAll(s, 4)
  const held = s.f.sink
  await s.replay({ lsn: lsns[2] as bigint })
  const topic = ownTopic({ sinkId: SINK.id, generation: 2 })
  const late = s.f.log.committed(topic, 0)
  assert.ok((await late)?.next.offset, 'it had delivered the later one')
  await assert.rejects(inheritanceOf(queryOf(s.db), { sinkId: SINK.id, generation: 2, partition: 0 }, undefined), {
    code: 'GENERATION_WAITS',
  })
  assert.equal(await s.generations().stateOf({ generation: 2, topic }), 'drained')
  assert.equal(held.status().details?.['generation'], 1)
  assert.deepEqual((await ackAll(s, 6)).toSorted(byNumber), upTo(2, 7))
})

test('what was finished longer ago than the window is deleted, and a replay that would need it is refused by name', async () => {
  await using s = await Switching.open({ replay_window: '500ms' })
  const lsns = await write(s, 3)
  const before = Date.now() * 1000
  await ackAll(s, 3)
  const topic = ownTopic({ sinkId: SINK.id, generation: 1 })
  await until('what is done is deleted', async () => (await s.f.log.stats(topic, 0)).first >= 3)
  await write(s, 1)
  await ackAll(s, 1)
  const lsn = formatLsn(s.f.position.lsn)
  for (const target of [{ lsn: lsns[2] as bigint }, { fromUs: before - 60_000_000 }, { offset: 0, partition: 0 }])
    await assert.rejects(s.replay(target), (error: EngineError) => {
      assert.equal(error.code, 'REPLAY_OUT_OF_WINDOW')
      assert.equal(error.context['lsn'], lsn)
      return true
    })
})

test('without a window nothing is kept, and with one again only what is finished from then on', async () => {
  await using s = await Switching.open({ replay_window: 0 })
  const lsns = await write(s, 3)
  await ackAll(s, 3)
  await assert.rejects(s.replay({ lsn: lsns[0] as bigint }), { code: 'REPLAY_OUT_OF_WINDOW', message: /its replay_window is 0/ })
  const topic = ownTopic({ sinkId: SINK.id, generation: 1 })
  await until('what is done is deleted', async () => (await s.f.log.stats(topic, 0)).first >= 3)
  s.f.update({ replay_window: '1h' })
  await until('a point is saved', async () => (await s.db.query('select from tailrace.replay_point')).length > 0)
  await write(s, 2)
  const { lsn } = s.f.position
  await ackAll(s, 2)
  await assert.rejects(s.replay({ lsn: lsns[2] as bigint }), { code: 'REPLAY_OUT_OF_WINDOW' })
  await s.replay({ lsn })
  assert.deepEqual(await ackAll(s, 1), [1])
})

test('the topic of an ended generation is deleted when its window is over, or another fills the bound, and a replay is refused then', async () => {
  await using s = await Switching.open(KEPT)
  const lsns = await write(s, 4)
  await ackAll(s, 4)
  await s.switchOver()
  await s.untilServed(2)
  await s.append(4, 'g1')
  await ackAll(s, 1)
  const query = queryOf(s.db)
  await query(`insert into tailrace.source (database_id, slot_name, log_identity, confirmed_lsn) values ($1, 's', $2, '1/0')`, [
    SINK.databaseId,
    s.f.log.identity,
  ])
  const kept = await deleteOldTopics(query, s.f.log, 1_000_000)
  assert.deepEqual(kept.deleted, [])
  assert.ok(kept.againInMs! <= 10_000)
  await s.replay({ lsn: lsns[3] as bigint })
  assert.deepEqual(await ackAll(s, 2), [3, 4])
  await s.untilServed(2)
  const gone = await deleteOldTopics(query, s.f.log, 100)
  assert.deepEqual(gone, { deleted: [ownTopic({ sinkId: SINK.id, generation: 1 })], unknown: [], againInMs: undefined })
  await assert.rejects(s.replay({ lsn: lsns[3] as bigint }), { code: 'REPLAY_OUT_OF_WINDOW' })
  await s.replay({ lsn: s.f.position.lsn })
  assert.deepEqual(await ackAll(s, 1), [4])
})
