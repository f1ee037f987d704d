/** What a sink hands from one generation to the next, on a real log and a real state database. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { hashGroup } from '../../../engine/wal/decode/change.ts'
import type { Query } from '../../../engine/postgres/query.ts'
import { ownTopic } from '../../../engine/wal/routing/routing.ts'
import { ParkedStore } from '../../../engine/dispatch/parked/parked-store.ts'
import { hashOf, acksOf, elements, idsOf, tokenIn, SINK } from '../sink-fixture.ts'
import { queryOf } from '../sink-state.ts'
import { withMoreTime } from '../../services/more-time.ts'
import { DRAIN_AFTER_MS, Switching } from '../switching.ts'
import { pass, until } from '../../waiting.ts'

const LONG_MS = 20_000
/** of the messages that the fixture makes */
const RELATION = 16_384

test('what a client holds when its generation ends is parked, keeps its ack_id, and comes before what is new of its group', async () => {
  await using s = await Switching.open({ partitions: 2 }, { partitions: 3 })
  const { f } = s
  const hot = hashOf('hot') % 2
  for (let id = 0; id < 4; id++) await f.append([{ id, group: 'hot' }], hot)
  await f.append([{ id: 50, group: 'other' }], hashOf('other') % 2)
  const first = await f.gather(2)
  assert.deepEqual(idsOf(first).sort(), [0, 50])
  const held = first.filter((m) => m.record.id === 0)
  await f.pulled.ack(acksOf(first.filter((m) => m.record.id === 50)))
  await s.switchOver()
  await s.append(10, 'hot')
  await s.append(60, 'other')
  const [other] = await f.receive(10, LONG_MS)
  assert.equal(other?.record.id, 60, 'the other group goes on in the new generation')
  assert.equal(f.sink.status().details?.['generation'], 2)
  assert.deepEqual(await f.receive(10, 30), [], 'the group of the message that is held waits')
  await f.pulled.ack(acksOf(held))
  const came: number[] = []
  for (const id of [1, 2, 3, 10]) {
    const [message] = await f.receive(10, LONG_MS)
    came.push(message?.record.id as number)
    assert.equal(message?.ack_id.split('.')[1], id === 10 ? '2' : '1', 'generation of its name')
    await f.pulled.ack([message?.ack_id as string])
  }
  assert.deepEqual(came, [1, 2, 3, 10])
  assert.deepEqual(await s.db.query(`select from tailrace.parked where state = 'open'`), [])
})

test('the token of an answer of an ended generation gives back, and acknowledges, what is parked of it', async () => {
  await using s = await Switching.open({ ack_wait_ms: 60_000 }, { partitions: 2 })
  const { f } = s
  await f.append([1, 2, 3].map((id) => ({ id, group: `${id}` })))
  const receipt = await f.receipt(10, LONG_MS, { ackToken: true })
  const token = tokenIn(receipt)
  assert.deepEqual(idsOf(elements(receipt)), [1, 2, 3])
  await s.switchOver()
  await f.pulled.nack(token)
  assert.deepEqual(idsOf(await f.gather(3)).toSorted(), [1, 2, 3])
  await f.pulled.ack(token)
  assert.deepEqual(await s.db.query(`select from tailrace.parked where state = 'open'`), [])
})

test('a parked message of an ended generation that is given back comes at once, and after a crash when its time is over, by the same name', async () => {
  await using s = await Switching.open({ ack_wait_ms: 60_000 }, { partitions: 2 })
  const { f } = s
  await f.append([{ id: 1, group: 'a' }])
  const [held] = await f.gather(1)
  const id = held?.ack_id as string
  await s.switchOver()
  await s.untilServed(2)
  assert.deepEqual(await f.receive(1, 30), [], 'a client has it')
  await f.pulled.nack([id])
  assert.deepEqual(acksOf(await f.receive(1, LONG_MS)), [id])
  f.update({ ack_wait_ms: 1_500 })
  f.crash()
  const since = performance.now()
  await s.start()
  assert.deepEqual(acksOf(await f.receive(1, LONG_MS)), [id])
  assert.ok(performance.now() - since >= 1_500, 'not before the visibility time from the take-over')
  await f.pulled.ack([id])
  f.crash()
  await s.start()
  assert.deepEqual(await f.receive(1, 1_700), [], 'an acked message never comes again')
})

test('a message that is with a client at the switch is not handed out before its visibility time is over', () =>
  withMoreTime([1_000, 10_000], async (ackWaitMs) => {
    await using s = await Switching.open({ ack_wait_ms: ackWaitMs }, { partitions: 4 })
    const { f } = s
    await f.append([{ id: 1, group: 'a' }])
    const since = performance.now()
    const [held] = await f.gather(1)
    await s.switchOver()
    const [again] = await f.receive(1, LONG_MS)
    assert.equal(again?.ack_id, held?.ack_id)
    assert.ok(performance.now() - since >= ackWaitMs - 5)
    assert.equal(f.sink.status().details?.['generation'], 2)
  }))

test('a generation whose partition lost records, and got as many markers since, ends at the first of them', async () => {
  await using s = await Switching.open({}, { partitions: 2 })
  const { f } = s
  for (const id of [1, 2]) await f.append([{ id }])
  await s.ack(await f.gather(2))
  await f.sink.stop()
  const topic = ownTopic({ sinkId: SINK.id, generation: 1 })
  const commit = await f.log.committed(topic, 0)
  assert.equal(commit?.next.offset, 2)
  await s.switchOver()
  await f.log.commit(topic, 0, { ...commit, next: { offset: 3, index: 0 } }) // a record more was finished, which is not there now
  await s.start()
  await s.append(3, 'new')
  assert.deepEqual(idsOf(await f.receive(1, LONG_MS)), [3])
})

test('a backlog that nobody has asked for stays in the log, and is delivered in its own generation', async () => {
  await using s = await Switching.open({}, { partitions: 2 })
  const { f } = s
  for (let id = 0; id < 5; id++) await f.append([{ id }])
  await s.switchOver()
  await f.append([{ id: 9 }], 0, 2)
  await pass(DRAIN_AFTER_MS * 3, 'longer than what is held is waited for')
  assert.deepEqual(await s.db.query('select from tailrace.parked'), [])
  assert.equal(f.sink.status().details?.['generation'], 1)
  const came = await f.gather(5)
  assert.deepEqual(idsOf(came), [0, 1, 2, 3, 4])
  await f.pulled.ack(acksOf(came))
  assert.deepEqual(idsOf(await f.gather(1)), [9])
})

test('a sink without groups hands everything on at once, and takes acks by the old names', () =>
  withMoreTime([1_000, 10_000], async (ackWaitMs) => {
    await using s = await Switching.open({ partitions: 2, message_grouping: false, ack_wait_ms: ackWaitMs }, { partitions: 1 })
    const { f } = s
    for (let id = 0; id < 6; id++) await f.append([{ id, group: 'same' }], id % 2)
    const first = await f.gather(6)
    await s.switchOver()
    await s.untilServed(2)
    await f.pulled.ack(acksOf(first).slice(0, 2))
    const again = await f.gather(4)
    assert.deepEqual(acksOf(again).sort(), acksOf(first).slice(2).sort())
    await f.pulled.ack(acksOf(again))
    assert.deepEqual(await s.db.query(`select from tailrace.parked where state = 'open'`), [])
  }))

/** Groups, as they are parked, of two messages that are with a client when the generation ends. */
async function parkedGroups(s: Switching): Promise<unknown[]> {
  const { f } = s
  await f.append([{ id: 1, group: 'a' }])
  await f.append([{ id: 2, group: 'b' }])
  const held = acksOf(await f.gather(2))
  await s.switchOver()
  await s.untilServed(2)
  const rows = await s.db.query(`select owner_partition, group_hash, group_key from tailrace.parked where state = 'open' order by lsn`)
  await f.pulled.ack(held)
  assert.deepEqual(await s.db.query(`select from tailrace.parked where state = 'open'`), [])
  return rows
}
const groupOf = (key: string, partitions: number, groupKey: string) => {
  const hash = hashGroup(RELATION, Buffer.from(key))
  return { owner_partition: hash % partitions, group_hash: String(hash), group_key: groupKey }
}

test('what was parked without groups has those of its primary keys when the sink begins to group', async () => {
  await using s = await Switching.open({ message_grouping: false }, { message_grouping: true, partitions: 3 })
  assert.deepEqual(await parkedGroups(s), [groupOf('a', 3, ''), groupOf('b', 3, '')])
})

test('what was parked of a table has the groups of its new primary key, also in a sink of the same shape as before', async () => {
  await using s = await Switching.open({ partitions: 1 }, { partitions: 1 }, { relation: RELATION, key: ['group', 'id'] })
  assert.deepEqual(await parkedGroups(s), [groupOf('a:1', 1, 'a:1'), groupOf('b:2', 1, 'b:2')])
  await using other = await Switching.open({ partitions: 1 }, { partitions: 1 }, { relation: RELATION + 1, key: ['group', 'id'] })
  assert.deepEqual(await parkedGroups(other), [groupOf('a', 1, ''), groupOf('b', 1, '')], 'of another table')
})

test('a hand-over that is cut off at any statement is finished by the next try, with the same outcome', async () => {
  for (let fails = 1; ; fails++) {
    await using s = await Switching.open({ partitions: 2 }, { partitions: 3 })
    const { f } = s
    for (let id = 0; id < 6; id++) await f.append([{ id, group: `g${id % 3}` }], hashOf(`g${id % 3}`) % 2)
    await f.gather(3)
    // the process dies when everything is parked and drained, before it hands over
    await f.sink.stop()
    await f.start({
      generations: { serve: () => s.generations().serve(), stateOf: async () => 'open', span: (n) => s.generations().span(n) },
      drainAfterMs: 0,
    })
    await s.switchOver()
    await until('both partitions are drained', async () => {
      await f.receive(10) // what nobody asks for would stay in the log, and a partition may not have read of it yet
      return (await s.db.query('select from tailrace.drained_partition')).length === 2
    })
    f.crash()
    let asked = 0
    const query: Query = async (sql, params) => {
      if (++asked === fails) throw new Error('the state database has just gone')
      return queryOf(s.db)(sql, params)
    }
    await s
      .generations(query)
      .serve()
      .catch(() => undefined)
    assert.equal((await s.generations().serve())?.generation, 2)
    const rows = await s.db.query<{ group_hash: string; owner_partition: number }>(
      'select * from tailrace.parked where owner_generation = 2',
    )
    assert.equal(rows.length, 6)
    for (const row of rows) assert.equal(row.owner_partition, Number(row.group_hash) % 3)
    if (asked < fails) return // it got through
  }
})

test('who was frozen while a generation was handed over does not take it over again: its ack_ids stay those of the next one', async () => {
  await using s = await Switching.open({}, { partitions: 2 })
  await s.f.append([{ id: 1, group: 'a' }])
  const held = await s.f.gather(1)
  await s.switchOver()
  await s.untilServed(2)
  const key = { sinkId: SINK.id, generation: 1, partition: 0 }
  const terms = () => s.db.query('select key, term, holder from tailrace.term order by key')
  const before = await terms()
  await assert.rejects(ParkedStore.takeOver(queryOf(s.db), key, { grouping: true, holder: 'thawed' }), { code: 'GENERATION_WAITS' })
  assert.deepEqual(await terms(), before)
  await s.ack(held)
})

test('a partition that a late process has taken over, and does not serve, is taken over again by who has it: acks find their way', async () => {
  await using s = await Switching.open({ partitions: 2 })
  await s.f.append([{ id: 1, group: 'a' }], hashOf('a') % 2)
  const held = await s.f.gather(1)
  const key = `${SINK.id}.1/${hashOf('a') % 2}`
  const owner = async () =>
    (await s.db.query<{ term: number; holder: string }>('select term::int, holder from tailrace.term where key = $1', [key]))[0]
  const { term, holder } = (await owner()) ?? assert.fail()
  const others = () => s.db.query('select key, term from tailrace.term where key <> $1', [key])
  const before = await others()
  await s.db.query(`update tailrace.term set term = term + 1, holder = 'late' where key = $1`, [key])
  s.f.sink.ownersChanged()
  await until('it is taken over again', async () => (await owner())?.holder === holder)
  assert.equal((await owner())?.term, term + 2)
  assert.deepEqual(await others(), before, 'the other partition goes on as it was')
  await s.ack(held)
  await s.f.append([{ id: 2, group: 'a' }], hashOf('a') % 2)
  assert.deepEqual(idsOf(await s.f.gather(1)), [2])
})
