/** What people decide of messages that wait outside the log, or were given up, while their sink is at work. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { bodyOf, messageRecord, messageRecords, type MessagesAsked } from '../../../engine/dispatch/parked/message-records.ts'
import { inGroups, PushFixture } from './push-fixture.ts'
import { SINK } from '../sink-fixture.ts'
import { queryOf } from '../sink-state.ts'
import { pass, until } from '../../waiting.ts'

const range = (count: number, from = 0) => Array.from({ length: count }, (_, i) => from + i)

/** A sink whose receiver refuses some ids, until told otherwise. */
async function refusing(bad: Set<number>, settings: Parameters<typeof PushFixture.open>[0] = {}) {
  const p = await PushFixture.open({ batch_size: 1, ...settings }, (ids) =>
    ids.some((id) => bad.has(id)) ? { status: 422, body: 'no' } : {},
  )
  const list = async (asked: Partial<MessagesAsked> = {}) =>
    (await messageRecords(queryOf(p.db), SINK.id, { limit: 100, ...asked })).messages
  return { p, list }
}

test('a message that backs off is sent at once when it is redelivered, and its group follows in order', async () => {
  const heads = range(3)
  const bad = new Set(heads)
  const { p, list } = await refusing(bad)
  await using _ = p
  await p.append(inGroups(12, 4))
  await p.untilDelivered(3) // the fourth group
  // each has failed twice, or more often: the next try is 2 s away, or more
  await p.until(() => heads.every((head) => p.requests.filter(([id]) => id === head).length >= 2))
  let early = 0
  for (const head of heads) {
    const record = await failing(list, head)
    bad.delete(head)
    const [row] = await p.db.query<{ due: Date }>(`select next_try_at as due from tailrace.parked where record_index = $1`, [head])
    // until it is done: it can't be while the message is sent, and then it may be delivered by itself
    await until('it is edited', async () => (await p.f.sink.edit('redeliver', [record.id])).edited > 0 || p.ids.includes(head))
    await p.untilDelivered(3 + (head + 1) * 3)
    if (Date.now() < row!.due.getTime() - 200) early++
    assert.deepEqual(
      p.ids.filter((id) => id % 4 === head),
      [head, head + 4, head + 8],
    )
  }
  assert.ok(early > 0, 'each came when its time had come') // on a machine that stands still for a while not every one is quick
})

/** A message that waits for its next try, by its place in the only record. */
async function failing(list: Awaited<ReturnType<typeof refusing>>['list'], place: number) {
  return until('it waits for its next try', async () => (await list({ state: 'failing' })).find(({ commit_idx }) => commit_idx === place))
}

test('a discarded message is delivered after all, with its attempts on record, and nothing of its group goes out beside it', async () => {
  const bad = new Set([0])
  let open = 0
  let clash = false
  await using p = await PushFixture.open({ batch_size: 1, max_retry_count: 1, concurrency: 4 }, async (ids) => {
    if (bad.has(ids[0]!)) return { status: 422, body: 'no' }
    clash ||= open > 0
    open++
    await pass(3, 'the receiver takes its time')
    open--
    return {}
  })
  await p.append(range(1).map((id) => ({ id, group: 'g' })))
  await p.untilRows('discarded', 1)
  bad.clear()
  await p.append(range(60, 1).map((id) => ({ id, group: 'g' })))
  await p.untilDelivered(5)
  assert.deepEqual(await p.f.sink.edit('redeliver', 'discarded'), { known: 0, served: 0, edited: 1 })
  await p.untilDelivered(61)
  assert.deepEqual(
    p.ids.filter((id) => id > 0),
    range(60, 1),
  )
  assert.equal(p.ids.filter((id) => id === 0).length, 1)
  assert.ok(p.ids.indexOf(0) < 60, 'it did not wait for the whole group')
  assert.equal(clash, false)
})

test('what is discarded or acknowledged by hand is not sent again, after a restart neither, and its group goes on', async () => {
  const { p, list } = await refusing(new Set(range(4)))
  await using _ = p
  await p.append(inGroups(15, 5))
  const [a, b, c, d] = (await p.untilRows('open', 4)) && (await list({ state: 'open' }))
  assert.ok(a && b && c && d)
  assert.deepEqual(await p.f.sink.edit('discard', [a.id, 'x.1.0.0.0']), { known: 1, served: 1, edited: 1 })
  assert.deepEqual(await p.f.sink.edit('acknowledge', [b.id]), { known: 1, served: 1, edited: 1 })
  await p.untilDelivered(7)
  assert.deepEqual(
    p.ids.toSorted((x, y) => x - y),
    [4, 5, 6, 9, 10, 11, 14],
  )
  const [row] = await list({ state: 'discarded' })
  assert.deepEqual([row?.id, row?.error], [a.id, 'status 422: no'])
  assert.equal((row?.attempts[0] as { message: string }).message, 'discarded by hand')
  assert.equal((await p.f.sink.edit('discard', 'failing')).edited, 2)
  await p.untilDelivered(11)
  await p.f.sink.stop()
  const asked = p.requests.length
  await p.start()
  await p.append(inGroups(1, 1, 100))
  await p.untilDelivered(12)
  assert.deepEqual(p.requests.slice(asked), [[100]])
})

test('a parked group goes out in order and in batches once its first message is delivered', async () => {
  const bad = new Set([0])
  await using p = await PushFixture.open({ batch_size: 100, max_memory_mb: 0.05, concurrency: 2 }, (ids) =>
    ids.some((id) => bad.has(id)) ? { status: 422, body: 'no' } : {},
  )
  // so much of one group that it doesn't fit the window, and is parked
  for (let i = 0; i < 4; i++) await p.append(range(50, i * 50).map((id) => ({ id, group: 'hot', pad: 1_000 })))
  await p.append(range(50, 5_000).map((id) => ({ id, group: `other ${id}` })))
  await p.untilDelivered(50)
  assert.ok((await p.rows('open')).length >= 100)
  const asked = p.requests.length
  bad.clear()
  await p.f.sink.edit('redeliver', 'open')
  await p.untilDelivered(250)
  assert.deepEqual(
    p.ids.filter((id) => id < 5_000),
    range(200),
  )
  assert.ok(p.requests.length - asked <= 12, `${p.requests.length - asked} requests`)
  await p.untilRows('open', 0)
})

test('what was delivered can be read for a while, with every attempt and the answer to it', async () => {
  const bad = new Set([3])
  const p = await PushFixture.open({ batch_size: 2 }, (ids) =>
    ids.some((id) => bad.has(id)) ? { status: 500, body: 'not now' } : { status: 202, body: '"thanks"', headers: { 'x-trace': '7' } },
  )
  await using _ = p
  await p.append(inGroups(6, 6))
  await p.untilRows('open', 1)
  bad.clear()
  await p.untilDelivered(6)
  await p.untilRows('open', 0)
  const [newest, ...others] = p.f.sink.delivered.list(10)
  assert.ok(newest && others.length === 5)
  assert.deepEqual([newest.record_pks, newest.state, newest.deliver_count], [['g3'], 'delivered', 2])
  const attempts = newest.attempts as { status: number; body: string; headers: Record<string, string> }[]
  assert.deepEqual(
    attempts.map(({ status, body }) => ({ status, body })),
    [
      { status: 202, body: '"thanks"' },
      { status: 500, body: 'not now' },
    ],
  )
  assert.equal(attempts[0]?.headers['x-trace'], '7')
  assert.match(String(bodyOf(p.f.sink.delivered.find(newest.id))), /^"record":\{"id":3,/)
})

test('of a sensitive sink neither the words of answers nor what was delivered are kept', async () => {
  await using p = await PushFixture.open({ batch_size: 1, sensitive: true, max_retry_count: 1 }, (ids) =>
    ids.includes(1) ? { status: 400, body: 'the name Alice is taken' } : { body: '"hello Alice"' },
  )
  await p.append(inGroups(3, 3))
  const [row] = await p.untilRows('discarded', 1)
  assert.equal(row?.error, 'status 400')
  assert.doesNotMatch(JSON.stringify(row?.attempt_log), /Alice/)
  await p.untilDelivered(2)
  const delivered = p.f.sink.delivered.list(10)
  assert.equal(delivered.length, 2)
  assert.doesNotMatch(JSON.stringify(delivered), /Alice/)
  assert.equal(p.f.sink.delivered.find(delivered[0]?.id ?? '')?.content, undefined)
})

test('the list has pages in either order, and one message its content', async () => {
  const { p, list } = await refusing(new Set(range(5)))
  await using _ = p
  await p.append(inGroups(6, 6))
  await p.untilRows('open', 5)
  const query = queryOf(p.db)
  const page = (asked: Partial<MessagesAsked>) => messageRecords(query, SINK.id, { limit: 2, ...asked })
  const first = await page({ order: 'newest' })
  const second = await page({ order: 'newest', after: first.next })
  const last = await page({ order: 'newest', after: second.next })
  assert.deepEqual(
    [first, second, last].flatMap(({ messages }) => messages.map(({ commit_idx }) => commit_idx)),
    [4, 3, 2, 1, 0],
  )
  assert.equal(last.next, undefined)
  const [oldest] = await list()
  const found = await messageRecord(query, SINK.id, oldest?.id ?? '')
  assert.match(String(bodyOf(found)), /^"record":\{"id":0,"group":"g0"\}/)
  assert.equal(await messageRecord(query, SINK.id, 'nothing'), undefined)
  await assert.rejects(page({ after: 'x' }), { code: 'REQUEST_INVALID' })
})
