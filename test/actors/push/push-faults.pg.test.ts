/** A sink that sends, and a receiver that takes less, later or nothing: what is sent again, what is parked, and what it costs the others. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { inGroups, PushFixture } from './push-fixture.ts'

const range = (count: number, from = 0) => Array.from({ length: count }, (_, i) => from + i)
const sorted = (ids: readonly number[]) => ids.toSorted((a, b) => a - b)
setFlagsFromString('--expose-gc')
const collect = runInNewContext('gc') as () => void
const pause = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms))

test('413 halves the batch until it is taken, later batches are no larger, and a message too large by itself is parked', async () => {
  await using p = await PushFixture.open({ batch_size: 64, concurrency: 2 }, (ids, { body }) =>
    body.length > 20_000 ? { status: 413, body: `${ids.length} are too many` } : {},
  )
  await p.append(inGroups(200, 50).map((message) => ({ ...message, pad: 1_000 })))
  await p.untilDelivered(200)
  assert.deepEqual(sorted(p.ids), range(200)) // each once
  assert.deepEqual(await p.rows('open'), [])
  const refused = p.requests.length
  await p.append([{ id: 500, group: 'huge', pad: 30_000 }, ...range(20, 501).map((id) => ({ id, pad: 1_000 }))])
  await p.untilDelivered(220)
  const [row] = await p.untilRows('open', 1)
  assert.equal(row?.attempt_log[0]?.status, 413)
  const later = p.requests.slice(refused).filter((ids) => !ids.includes(500))
  assert.ok(later.every((ids) => ids.length < 20), JSON.stringify(later.map((ids) => ids.length))) // prettier-ignore
})

test('429 is waited out for as long as Retry-After says, nothing of it is parked, and all of it is delivered once', async () => {
  let refusedAt = 0
  let early = 0
  await using p = await PushFixture.open({ batch_size: 5, concurrency: 4, max_retry_count: 1 }, () => {
    if (refusedAt === 0) {
      refusedAt = performance.now()
      return { status: 429, headers: { 'retry-after': '1' } }
    }
    if (performance.now() - refusedAt < 990 && performance.now() - refusedAt > 100) early++ // those before were under way
    return {}
  })
  await p.append(inGroups(100, 20))
  await p.untilDelivered(100)
  assert.ok(performance.now() - refusedAt >= 990)
  assert.equal(early, 0)
  assert.deepEqual(sorted(p.ids), range(100))
  assert.equal((await p.rows('open')).length + (await p.rows('discarded')).length, 0)
})

test('a request that is answered after its time comes again, and nothing of its group goes before it', async () => {
  let isLate = true
  const order: number[] = []
  await using p = await PushFixture.open({ batch_size: 1, ack_wait_ms: 500 }, async ([id]) => {
    order.push(id as number)
    if (id === 0 && isLate) {
      isLate = false
      await pause(900) // 200, and nobody listens any more
    }
    return {}
  })
  await p.append(inGroups(30, 3))
  await p.untilDelivered(30)
  await p.until(() => p.ids.filter((id) => id === 0).length === 2)
  assert.deepEqual(order.filter((id) => id % 3 === 0), [0, 0, 3, 6, 9, 12, 15, 18, 21, 24, 27]) // prettier-ignore
  assert.deepEqual(sorted(order), [0, ...range(30)])
})

test('behind a receiver that hangs the requests, and what is held in memory, stay bounded while the backlog grows', async () => {
  let isHanging = true
  await using p = await PushFixture.open({ batch_size: 100, max_memory_mb: 4, concurrency: 4, ack_wait_ms: 60_000 }, () =>
    isHanging ? 'hang' : {},
  )
  const append = (from: number) => p.append(range(200, from).map((id) => ({ id, group: `g${id}`, pad: 5_000 })))
  // buffers that nobody holds are freed by another thread after a collection: the lowest of some says what is held
  const held = async () => {
    let lowest = Infinity
    for (let i = 0; i < 20; i++) {
      collect()
      lowest = Math.min(lowest, process.memoryUsage().arrayBuffers)
      await new Promise((resolve) => setTimeout(resolve, 5))
    }
    return lowest
  }
  for (let i = 0; i < 40; i++) await append(i * 200) // more than the log keeps of what was written last
  await p.until(() => p.requests.length >= 4)
  const before = await held()
  for (let i = 40; i < 70; i++) await append(i * 200) // 30 MB more
  await p.until(() => p.requests.length >= 6) // more probes have come
  const grown = (await held()) - before
  const [figures] = p.f.sink.status().partitions ?? []
  assert.ok(Number(figures?.['windowBytes']) < 6 * 1024 * 1024, String(figures?.['windowBytes']))
  assert.ok(grown < 8 * 1024 * 1024, `${Math.round(grown / 1024 / 1024)} MB more`)
  assert.ok(p.receiver.mostOpen <= 4 + 12, `${p.receiver.mostOpen} requests at once`)
  isHanging = false
  p.receiver.cut()
  await p.until(() => p.delivered.length > 0)
})

test('one poison message in 10,000 does not delay the others, nor does one at the head of each of 50 groups', async (context) => {
  const run = async (poison: readonly number[], count = 10_000) => {
    const bad = new Set(poison)
    const groups = 5_000
    await using p = await PushFixture.open({ batch_size: 50 }, (ids) =>
      ids.some((id) => bad.has(id)) ? { status: 500, body: 'poison' } : {},
    )
    const isBlocked = (id: number) => bad.has(id) || bad.has(id - groups)
    const delays: number[] = []
    let goal = 0
    for (let from = 0; from < count; from += 500) {
      const at = performance.now()
      await p.append(inGroups(500, groups, from))
      const due = p.delivered.length
      goal += range(500, from).filter((id) => !isBlocked(id)).length
      await p.untilDelivered(goal)
      for (const delivery of p.delivered.slice(due)) delays.push(delivery.at - at)
    }
    if (bad.size > 0) await p.untilRows('open', bad.size)
    return delays.toSorted((a, b) => a - b)[Math.floor(delays.length * 0.99)] as number
  }
  await run([], 1_000) // compiled
  const without = await run([])
  for (const [name, poison] of Object.entries({ 'one of them': [9_250], '50 heads': range(50).map((i) => i * 100 + 7) })) {
    const p99 = await run(poison)
    context.diagnostic(`p99 ${p99.toFixed(0)} ms with ${name}, ${without.toFixed(0)} ms without`)
    assert.ok(p99 <= without * 1.5 + 100, `p99 ${p99.toFixed(0)} ms with ${name}, ${without.toFixed(0)} ms without`)
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
    await pause(50)
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
