/** Messages that have failed and are tried again: beside each other, never beside those that haven't, and none at another's cost. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { OwnedPartition } from '../../../actors/partition/owned-partition.ts'
import { calmMs } from '../../services/calm-clock.ts'
import { HttpReceiver } from '../../services/http-receiver.ts'
import { inGroups, PushFixture } from './push-fixture.ts'
import { pass, until } from '../../waiting.ts'

const range = (count: number, from = 0) => Array.from({ length: count }, (_, i) => from + i)
const sorted = (ids: readonly number[]) => ids.toSorted((a, b) => a - b)

/** A sink with so many messages parked, whose receiver takes everything else. */
async function parked(count: number, bad: Set<number>, settings: Parameters<typeof PushFixture.open>[0] = {}) {
  const p = await PushFixture.open({ batch_size: 50, ...settings }, (ids) => {
    const refused = ids.flatMap((id, index) => (bad.has(id) ? [{ index, error: 'no' }] : []))
    if (settings.item_results) return { body: JSON.stringify({ failures: refused }) }
    return refused.length > 0 ? { status: 422, body: 'no' } : {}
  })
  for (const id of range(count)) bad.add(id)
  // among others that are taken: so it is they, and not the destination
  await p.append(
    range(count).flatMap((id) => [
      { id, group: `g${id}` },
      { id: id + 1_000, group: `g${id + 1_000}` },
    ]),
  )
  await p.untilRows('open', count)
  return p
}

test('where an answer tells of each message all that failed are tried again together', async () => {
  const bad = new Set<number>()
  await using p = await parked(200, bad, { item_results: true })
  bad.clear()
  bad.add(120)
  const before = p.requests.length
  await p.f.sink.edit('redeliver', 'failing')
  await p.untilDelivered(200 + 199)
  const requests = p.requests.slice(before).filter((ids) => ids.some((id) => id < 1_000 && id !== 120))
  assert.ok(requests.length <= 20, JSON.stringify(requests.map((ids) => ids.length)))
  await until('the bad one was tried again', async () => Number((await p.rows('open'))[0]?.attempts) >= 2)
})

test('what stands behind a message that an answer names comes again after it, in order', async () => {
  let isBad = true
  await using p = await PushFixture.open({ batch_size: 20, item_results: true, concurrency: 1 }, (ids) =>
    isBad && ids.includes(3) ? { body: JSON.stringify({ failures: [{ index: ids.indexOf(3), error: 'no' }] }) } : {},
  )
  await p.append(inGroups(20, 4))
  await p.untilRows('open', 1)
  await p.untilDelivered(19) // those behind it have gone with it, and count for nothing
  isBad = false
  await p.f.counts.until(({ acks }) => acks >= 20)
  const { ids } = p
  const group = range(5).map((i) => i * 4 + 3)
  assert.deepEqual(ids.slice(ids.indexOf(3)).filter((id) => group.includes(id)), group) // prettier-ignore
  assert.deepEqual(sorted(ids.filter((id) => !group.includes(id))), range(20).filter((id) => !group.includes(id))) // prettier-ignore
})

test('where a request fails as a whole, those that failed go in ever larger ones, and the one that is still bad costs the others no attempt', async () => {
  const bad = new Set<number>()
  await using p = await parked(200, bad)
  bad.clear()
  bad.add(120)
  const before = p.requests.length
  await p.f.sink.edit('redeliver', 'failing')
  await p.untilDelivered(200 + 199)
  const requests = p.requests.slice(before)
  assert.ok(requests.length < 60, JSON.stringify(requests.map((ids) => ids.length)))
  assert.deepEqual(sorted(p.ids.filter((id) => id < 1_000)), range(200).filter((id) => id !== 120)) // prettier-ignore
  const [row] = await p.untilRows('open', 1)
  assert.deepEqual(row?.attempt_log.map(({ status }) => status), row && range(row.attempts).map(() => 422)) // prettier-ignore
})

test('when nothing but messages that failed is left, a destination that was gone is asked again soon', async () => {
  const bad = new Set<number>()
  await using p = await parked(3, bad)
  const { port, handler } = p.receiver
  await p.receiver[Symbol.asyncDispose]()
  await p.f.sink.edit('redeliver', 'failing')
  await until('the destination is missed', () => p.f.sink.status().details?.['destination'] !== 'up')
  await pass(800, 'it is asked again, in vain')
  bad.clear()
  await using _ = await HttpReceiver.start(handler, { port })
  const tookMs = await calmMs(() => p.untilDelivered(3 + 3))
  assert.ok(tookMs < 5_000, `${tookMs} ms`)
  await p.untilRows('open', 0)
})

test('a row for which the destination is always too busy delays no other row', async () => {
  for (const batch of [true, false]) {
    await using p = await PushFixture.open({ batch, batch_size: batch ? 10 : 1, max_retry_count: 1 }, (ids) =>
      ids.includes(7) ? { status: 429, body: 'not for this one' } : {},
    )
    const tookMs = await calmMs(async () => {
      await p.append(inGroups(100, 1_000))
      await p.untilDelivered(99)
      await p.append(inGroups(100, 1_000, 200))
      await p.untilDelivered(199)
    })
    assert.ok(tookMs < 8_000, `${tookMs} ms`)
    await p.untilRows('open', 1) // and is not given up for it
    assert.equal((await p.rows('discarded')).length, 0)
  }
})

test('a message whose answer asks for a pause waits for so long, and for 3 minutes at most', async () => {
  const asked: Record<number, number> = { 3: 60, 5: 3_600 }
  await using p = await PushFixture.open({ batch_size: 1 }, ([id]) =>
    asked[id!] === undefined ? {} : { status: id === 3 ? 503 : 422, headers: { 'retry-after': String(asked[id!]) } },
  )
  await p.append(inGroups(10, 10))
  await p.untilDelivered(8)
  const rows = await p.untilRows('open', 2)
  assert.deepEqual(rows.map(({ attempt_log }) => attempt_log.length), [1, 1]) // prettier-ignore
  const [first, second] = rows.map(({ next }) => Math.round((next ?? 0) / 10_000) * 10)
  assert.deepEqual([first, second], [60, 180])
})

test('a message that failed ends when it is delivered, although its next owner has not read up to it', async () => {
  let isBad = true
  const open = Promise.withResolvers<object>()
  await using p = await PushFixture.open({ batch_size: 1, ack_wait_ms: 60_000 }, ([id]) =>
    id === 0 ? open.promise : id === 1 && isBad ? { status: 422, body: 'no' } : {},
  )
  await p.append([{ id: 0, pad: 100_000 }]) // it stays open, and with it the commit
  await p.append(range(9, 1).map((id) => ({ id })))
  await p.untilDelivered(8)
  await p.untilRows('open', 1)
  p.f.update({ max_memory_mb: 0.05 }) // of the next owner the window is full with the first record
  p.f.crash()
  isBad = false
  await p.start()
  await p.untilDelivered(9)
  await p.untilRows('open', 0)
  const [figures] = p.f.sink.status().partitions ?? []
  assert.deepEqual([figures?.['read'], figures?.['inFlight']], [1, 1], 'nothing but the first one was read, and is under way')
  open.resolve({})
})

test('an end is written until the state database takes it, whatever it says meanwhile', async () => {
  let isBad = true
  const refusals = ['40P01', '22000']
  await using p = await PushFixture.open({ batch_size: 1 }, () => (isBad ? { status: 422, body: 'no' } : {}))
  p.refuse = (sql) => (!isBad && /set state = \$10/.test(sql) ? refusals.shift() : undefined)
  await p.append(inGroups(1, 1))
  await p.append(inGroups(1, 1, 1))
  await p.untilRows('open', 1)
  isBad = false
  await p.untilDelivered(1)
  const pending = () => p.f.sink.health().find(({ name }) => name === 'Messages pending delivery')
  await until('it is told why', () => pending()?.error?.message.endsWith('refused: 22000'))
  await p.untilDelivered(2) // what waits behind it goes on
  await p.untilRows('open', 0)
  assert.deepEqual([refusals, p.ids, p.f.counts.forgottenMessages], [[], [0, 1], 0])
})

test('messages whose end was forgotten are found, told and sent again', async (context) => {
  let isBad = false
  await using p = await PushFixture.open({ batch_size: 3 }, () => (isBad ? { status: 422, body: 'no' } : {}))
  const forget = () => context.mock.method(OwnedPartition.prototype, 'delivered', () => undefined, { times: 1 })
  const accounting = () => p.f.sink.health().find(({ error }) => error?.code === 'MESSAGES_FORGOTTEN')
  forget()
  await p.append(inGroups(3, 3))
  await p.f.counts.until(({ forgottenMessages }) => forgottenMessages === 3)
  await p.until(() => p.ids.length === 6)
  assert.match(
    accounting()?.error?.message ?? '',
    /^3 messages were counted as being delivered although no request had them, .* they were sent again$/,
  )
  isBad = true
  await p.append(inGroups(1, 1, 3))
  await p.untilRows('open', 1)
  forget() // of a parked one
  isBad = false
  await p.f.counts.until(({ forgottenMessages }) => forgottenMessages === 4)
  await p.untilRows('open', 0)
  assert.deepEqual(p.ids, [0, 1, 2, 0, 1, 2, 3, 3])
})

test('what the state database has ended has ended, although its answer was lost', async () => {
  const bad = new Set([0, 1])
  await using p = await PushFixture.open({ batch_size: 1, max_retry_count: 2 }, ([id]) => (bad.has(id!) ? { status: 422, body: 'no' } : {}))
  const lost = [/set state = \$10/, /set error = r\.error/] // a delivery, and a failure that was the last one
  let isLosing = false
  p.lose = (sql) => {
    const at = isLosing ? lost.findIndex((statement) => statement.test(sql)) : -1
    return at >= 0 && lost.splice(at, 1).length > 0
  }
  await p.append(inGroups(9, 3))
  await p.untilRows('open', 2)
  bad.delete(0)
  isLosing = true
  await p.untilDelivered(8)
  assert.deepEqual([lost, (await p.rows('open')).length, (await p.rows('discarded')).length], [[], 0, 1])
  for (const group of range(3)) assert.deepEqual(p.ids.filter((id) => id % 3 === group), range(3).map((n) => group + 3 * n).filter((id) => id !== 1)) // prettier-ignore
  assert.equal(p.f.counts.forgottenMessages, 0)
})

test('what follows a message that was acknowledged by hand goes on, although the answer to that was lost', async () => {
  await using p = await PushFixture.open({ batch_size: 1 }, ([id]) => (id === 0 ? { status: 422, body: 'no' } : {}))
  await p.append(inGroups(4, 2))
  await p.untilRows('open', 1)
  await p.untilDelivered(2)
  p.lose = (sql) => /set state = \$\d+, next_try_at = null/.test(sql)
  await assert.rejects(p.f.sink.edit('acknowledge', 'open'), { code: 'STATE_UNAVAILABLE' })
  await p.untilDelivered(3)
  assert.deepEqual([sorted(p.ids), await p.rows('open')], [[1, 2, 3], []])
})

test('what was to be delivered again by hand is, although the answers to that were lost', async () => {
  let isBad = true
  await using p = await PushFixture.open({ batch_size: 1, max_retry_count: 2 }, ([id]) => {
    if (!isBad || id! > 1) return {}
    return { status: 422, body: 'no', ...(id === 1 && { headers: { 'retry-after': '180' } }) }
  })
  await p.append(inGroups(6, 3))
  await p.untilRows('discarded', 1)
  await p.untilRows('open', 1) // it waits for minutes
  await p.untilDelivered(3)
  isBad = false
  for (const [statement, chosen] of [
    [/set state = 'open', attempts = 0/, 'discarded'],
    [/set next_try_at = null/, 'failing'],
  ] as const) {
    let isLost = false
    p.lose = (sql) => !isLost && (isLost = statement.test(sql))
    await assert.rejects(p.f.sink.edit('redeliver', chosen), { code: 'STATE_UNAVAILABLE' })
  }
  await p.untilDelivered(6)
  await p.untilRows('open', 0)
  assert.deepEqual([sorted(p.ids), await p.rows('discarded')], [range(6), []])
  assert.deepEqual(p.ids.filter((id) => id % 3 === 1), [1, 4]) // prettier-ignore
})
