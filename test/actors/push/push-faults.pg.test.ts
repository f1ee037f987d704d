/** A sink that sends, and a receiver that takes less, later or nothing: what is sent again, what is parked, and what it costs the others. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { inGroups, PushFixture } from './push-fixture.ts'
import { pass } from '../../waiting.ts'

const range = (count: number, from = 0) => Array.from({ length: count }, (_, i) => from + i)
const sorted = (ids: readonly number[]) => ids.toSorted((a, b) => a - b)
setFlagsFromString('--expose-gc')
const collect = runInNewContext('gc') as () => void

test('413 halves the batch until it is taken, later batches are no larger, and a message too large by itself is parked', async () => {
  await using p = await PushFixture.open({ batch_size: 64, concurrency: 2 }, (ids, { body }) =>
    body.length > 20_000 ? { status: 413, body: `${ids.length} are too many` } : {},
  )
  await p.append(inGroups(200, 50).map((message) => ({ ...message, pad: 1_000 })))
  await p.untilDelivered(200)
  assert.deepEqual(sorted(p.ids), range(200)) // each once
  assert.deepEqual(await p.rows('open'), [])
  const before = p.requests.length
  const huge = { id: 500, group: 'huge', pad: 30_000 }
  await p.append([...range(20, 501).map((id) => ({ id, pad: 1_000 })), huge, ...range(60, 521).map((id) => ({ id, pad: 1_000 }))])
  await p.untilDelivered(280)
  const [row] = await p.untilRows('open', 1)
  assert.equal(row?.attempt_log[0]?.status, 413)
  const later = p.requests.slice(before).filter((ids) => !ids.includes(500))
  assert.deepEqual(sorted(later.flat()), range(80, 501), 'none of the others was refused once more')
})

test('429 is waited out for as long as Retry-After says, nothing of it is parked, and all of it is delivered once', async () => {
  let refusedAt = 0
  let early = 0
  await using p = await PushFixture.open({ batch_size: 5, concurrency: 4, max_retry_count: 1 }, () => {
    if (refusedAt === 0) {
      refusedAt = performance.now()
      return { status: 429, headers: { 'retry-after': '1' } }
    }
    if (performance.now() - refusedAt < 990) early++
    return {}
  })
  await p.append(inGroups(5, 20)) // one request: no other is under way when it is refused
  await p.until(() => refusedAt > 0)
  await p.append(inGroups(95, 20, 5))
  await p.untilDelivered(100)
  assert.equal(early, 0)
  assert.deepEqual(sorted(p.ids), range(100))
  assert.equal((await p.rows('open')).length + (await p.rows('discarded')).length, 0)
})

test('a request that is answered after its time comes again, and nothing of its group goes before it', async () => {
  const again = Promise.withResolvers<void>()
  const order: number[] = []
  await using p = await PushFixture.open({ batch_size: 1, ack_wait_ms: 500 }, async ([id]) => {
    order.push(id as number)
    if (id !== 0) return {}
    if (order.filter((one) => one === 0).length > 1) again.resolve()
    await again.promise // 200 to the first as well, and nobody listens any more
    return {}
  })
  await p.append(inGroups(30, 3))
  await p.untilDelivered(30)
  await p.until(() => p.ids.filter((id) => id === 0).length >= 2)
  // on a busy machine others may be late as well, and come again
  const ofGroup = (group: number) => order.filter((id) => id % 3 === group).filter((id, i, all) => id !== all[i - 1])
  for (const group of range(3)) assert.deepEqual(ofGroup(group), range(10).map((n) => group + 3 * n)) // prettier-ignore
})

test('behind a receiver that hangs the requests, and what is held in memory, stay bounded while the backlog grows', async () => {
  let isHanging = true
  await using p = await PushFixture.open({ batch_size: 100, max_memory_mb: 4, concurrency: 4, ack_wait_ms: 60_000 }, () =>
    isHanging ? 'hang' : {},
  )
  const append = (from: number) => p.append(range(200, from).map((id) => ({ id, group: `g${id}`, pad: 5_000 })))
  // buffers that nobody holds are freed by another thread after a collection: the lowest of some says what is held
  const held = async (enough = 0) => {
    let lowest = Infinity
    for (let i = 0; i < (enough > 0 ? 1_000 : 20) && lowest > enough; i++) {
      collect()
      lowest = Math.min(lowest, process.memoryUsage().arrayBuffers)
      await pass(5, 'buffers that nobody holds are freed by another thread')
    }
    return lowest
  }
  for (let i = 0; i < 40; i++) await append(i * 200) // more than the log keeps of what was written last
  await p.until(() => p.requests.length >= 4)
  const before = await held()
  for (let i = 40; i < 70; i++) await append(i * 200) // 30 MB more
  await p.until(() => p.requests.length >= 6) // more probes have come
  const grown = (await held(before + 8 * 1024 * 1024)) - before
  const [figures] = p.f.sink.status().partitions ?? []
  assert.ok(Number(figures?.['windowBytes']) < 6 * 1024 * 1024, String(figures?.['windowBytes']))
  assert.ok(grown < 8 * 1024 * 1024, `${Math.round(grown / 1024 / 1024)} MB more`)
  assert.ok(p.receiver.mostOpen <= 4 + 12, `${p.receiver.mostOpen} requests at once`)
  isHanging = false
  p.receiver.cut()
  await p.until(() => p.delivered.length > 0)
})

test('one poison message in 10,000 does not delay the others, nor does one at the head of each of 50 groups', async (context) => {
  const [count, groups, lot, batch_size] = [10_000, 5_000, 500, 50]
  for (const poison of [[9_250], range(50).map((i) => i * 100 + 7)]) {
    const bad = new Set(poison)
    const others = (ids: readonly number[]) => ids.some((id) => !bad.has(id))
    let comes = Promise.withResolvers<void>()
    let hold: Promise<void> | undefined
    const phases = new Set<unknown>()
    await using p = await PushFixture.open({ batch_size }, async (ids) => {
      phases.add(p.f.sink.status().details?.['destination'])
      if (!ids.some((id) => bad.has(id))) return {}
      const waits = others(ids) ? undefined : hold
      hold = waits ? undefined : hold
      await waits // of each lot one answer to poison alone stays away until everything else has come
      return { status: 500, body: 'poison' }
    })
    let goal = 0
    for (let from = 0; from < count; from += lot) {
      comes = Promise.withResolvers<void>()
      hold = comes.promise
      await p.append(inGroups(lot, groups, from))
      goal += range(lot, from).filter((id) => !bad.has(id) && !bad.has(id - groups)).length
      await p.untilDelivered(goal)
      comes.resolve()
    }
    await p.untilRows('open', bad.size)
    assert.deepEqual([...phases], ['up'], 'it is the messages, not the destination')
    // to find one takes halves, and halves of these: as many requests as its batch can be halved, and as many for the other halves
    const asked = p.requests.filter(others).length
    context.diagnostic(`${asked} requests with ${bad.size} of them poison`)
    assert.ok(asked <= (count / batch_size) * 1.5 + bad.size * 2 * Math.ceil(Math.log2(batch_size)), `${asked} requests`)
  }
})

test('after an outage few requests go first, and more only as they are taken', async () => {
  let isDown = true
  let returned = 0
  let taken = 0
  let herd = 0
  await using p = await PushFixture.open({ batch_size: 5, concurrency: 8 }, async () => {
    if (isDown) return { status: 503 }
    returned++
    if (taken === 0) herd = returned
    await pass(50, 'the receiver takes its time')
    taken++
    return {}
  })
  await p.append(inGroups(400, 400))
  await p.until(() => p.requests.length >= 20)
  isDown = false
  await p.untilDelivered(400)
  assert.ok(herd <= 3, `${herd} requests before the first was taken`)
  assert.deepEqual(sorted(p.ids), range(400))
  assert.equal((await p.rows('open')).length, 0)
})
