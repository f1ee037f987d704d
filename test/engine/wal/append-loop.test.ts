import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { BusyShare } from '../../../engine/busy-share.ts'
import type { EngineError } from '../../../engine/errors.ts'
import { PART } from '../../../engine/position.ts'
import { AppendLoop } from '../../../engine/wal/append-loop.ts'
import { pass } from '../../waiting.ts'

/** @property gathered whoever pushes a capital letter has a pack's worth. @param over bytes of each append */
function setUp(over: { lingerMs?: number; timeoutMs?: number; bytes?: number } = {}) {
  const { bytes = 1 } = over
  const gathered: string[] = []
  const appends: { content: string; settle: PromiseWithResolvers<void> }[] = []
  const events: string[] = []
  const failed = Promise.withResolvers<EngineError>()
  let begun = Promise.withResolvers<void>()
  const loop = new AppendLoop({
    log: {
      append: ([record]) => {
        const settle = Promise.withResolvers<void>()
        appends.push({ content: record?.pack.toString() ?? '', settle })
        begun.resolve()
        begun = Promise.withResolvers()
        return settle.promise
      },
    },
    packing: {
      get isEmpty() {
        return gathered.length === 0
      },
      get isFull() {
        return gathered.some((text) => text !== text.toLowerCase())
      },
      take: (reached) => ({
        records: [{ topic: 't', partition: 0, pack: Buffer.from(gathered.splice(0).join('')) }],
        progress: { source: 's', ...reached },
        messages: 1,
        bytes,
        oldestCommitUs: 0,
        readAtMs: 0,
      }),
    },
    cursor: { settle: () => ({ position: { history: 0, lsn: 1n, idx: 0, part: PART.row } }) },
    decoding: new BusyShare(0),
    durable: (_append, number) => events.push(`durable ${number}`),
    failed: (error) => {
      events.push(`failed ${error.code}`)
      failed.resolve(error)
    },
    lingerMs: over.lingerMs ?? 1,
    timeoutMs: over.timeoutMs ?? 10_000,
  })
  return { loop, gathered, appends, events, failed: failed.promise, next: () => begun.promise }
}

/** Holds the clock and the timers of a test still. @returns lets ms pass */
function heldClock(t: TestContext): (ms: number) => void {
  t.mock.timers.enable({ apis: ['setTimeout'] })
  const clock = t.mock.method(performance, 'now', () => 1_000)
  return (ms) => {
    const now = performance.now() + ms
    clock.mock.mockImplementation(() => now)
    t.mock.timers.tick(ms)
  }
}

test('one append is open at a time; what is gathered meanwhile leaves in the next', async () => {
  const { loop, gathered, appends, events, next } = setUp()
  gathered.push('a')
  const first = next()
  loop.wake()
  await first
  gathered.push('b')
  loop.wake()
  gathered.push('c')
  loop.wake()
  assert.deepEqual(
    appends.map((a) => a.content),
    ['a'],
  )
  const second = next()
  appends[0]?.settle.resolve()
  await second
  assert.deepEqual(
    appends.map((a) => a.content),
    ['a', 'bc'],
  )
  appends[1]?.settle.resolve()
  await loop.drain()
  assert.deepEqual(events, ['durable 1', 'durable 2'])
})

test('a full pack does not linger', () => {
  const { loop, gathered, appends } = setUp({ lingerMs: 3_600_000 })
  gathered.push('A')
  loop.wake()
  assert.equal(appends.length, 1)
  loop.stop()
})

test('what is no full pack waits until some milliseconds after the last append began, and as long after its end as it took', async (t) => {
  const tick = heldClock(t)
  const { loop, gathered, appends } = setUp({ lingerMs: 6 })
  const contents = () => appends.map(({ content }) => content)
  const settle = async (tookMs: number) => {
    tick(tookMs)
    appends.at(-1)?.settle.resolve()
    await new Promise((resolve) => setImmediate(resolve))
  }
  const gather = (text: string) => {
    gathered.push(text)
    loop.wake()
  }
  tick(100)
  gather('a')
  tick(1)
  assert.deepEqual(contents(), ['a'], 'alone it leaves at once')
  gather('b')
  await settle(2)
  tick(3)
  assert.deepEqual(contents(), ['a'])
  gather('c')
  tick(1)
  assert.deepEqual(contents(), ['a', 'bc'], '6 ms after the last one began')
  gather('d')
  await settle(8)
  tick(7)
  assert.deepEqual(contents(), ['a', 'bc'])
  tick(1)
  assert.deepEqual(contents(), ['a', 'bc', 'd'], 'after 8 ms it rests for 8 ms')
  gather('e')
  await settle(500)
  tick(9)
  assert.deepEqual(contents(), ['a', 'bc', 'd'])
  tick(1)
  assert.deepEqual(contents(), ['a', 'bc', 'd', 'e'], 'it rests no longer than 10 ms')
  gather('F')
  await settle(1)
  assert.deepEqual(contents(), ['a', 'bc', 'd', 'e', 'F'], 'a full pack does not wait')
  loop.stop()
})

test('after an append that was long for its bytes, what follows waits for a part of that only', async (t) => {
  const tick = heldClock(t)
  const { loop, gathered, appends } = setUp({ lingerMs: 6, bytes: 512 * 1024 })
  tick(100)
  gathered.push('ROWS')
  loop.wake()
  gathered.push('a')
  tick(8)
  appends[0]?.settle.resolve()
  await new Promise((resolve) => setImmediate(resolve))
  assert.equal(appends.length, 1)
  tick(1)
  assert.deepEqual(
    appends.map(({ content }) => content),
    ['ROWS', 'a'],
  )
  loop.stop()
})

test('a change that comes long after the last one waits for no time below zero, of which Node would warn', async (t) => {
  const warnings: string[] = []
  const warned = ({ name }: Error) => void warnings.push(name)
  process.on('warning', warned)
  t.after(() => process.off('warning', warned))
  const { loop, gathered, next } = setUp({ lingerMs: 0 })
  await pass(5, 'so long ago was the last change')
  gathered.push('a')
  const begun = next()
  loop.wake()
  await begun
  await new Promise((resolve) => setImmediate(resolve))
  assert.deepEqual(warnings, [])
  loop.stop()
})

test('after a failed append nothing more is appended, and the failure is told once', async () => {
  const { loop, gathered, appends, events, failed } = setUp()
  gathered.push('A')
  loop.wake()
  gathered.push('b')
  appends[0]?.settle.reject(new Error('no space'))
  assert.equal((await failed).code, 'LOG_APPEND_FAILED')
  loop.wake()
  await loop.drain()
  assert.deepEqual(
    appends.map((a) => a.content),
    ['A'],
  )
  assert.deepEqual(events, ['failed LOG_APPEND_FAILED'])
})

test('an append that never settles fails by time limit, and its late success changes nothing', async () => {
  const { loop, gathered, appends, events, failed } = setUp({ timeoutMs: 20 })
  gathered.push('A')
  loop.wake()
  assert.equal((await failed).code, 'LOG_APPEND_TIMEOUT')
  appends[0]?.settle.resolve()
  gathered.push('b')
  loop.wake()
  await loop.drain()
  assert.deepEqual(events, ['failed LOG_APPEND_TIMEOUT'])
  assert.equal(appends.length, 1)
})

test('a stop leaves an open append to itself', async () => {
  const { loop, gathered, appends, events } = setUp()
  gathered.push('A')
  loop.wake()
  loop.stop()
  appends[0]?.settle.reject(new Error('closed'))
  await loop.drain()
  assert.deepEqual(events, [])
})
