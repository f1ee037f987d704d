import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { EngineError } from '../../../engine/errors.ts'
import { PART } from '../../../engine/position.ts'
import { AppendLoop, type Append } from '../../../engine/wal/append-loop.ts'

function setUp(over: { lingerMs?: number; timeoutMs?: number } = {}) {
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
    take: (): Append | undefined =>
      gathered.length === 0
        ? undefined
        : {
            records: [{ topic: 't', partition: 0, pack: Buffer.from(gathered.splice(0).join('')) }],
            progress: { source: 's', position: { history: 0, lsn: 1n, idx: 0, part: PART.row } },
            messages: 1,
            bytes: 1,
            oldestCommitUs: 0,
          },
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

test('one append is open at a time; what is gathered meanwhile leaves in the next', async () => {
  const { loop, gathered, appends, events, next } = setUp()
  gathered.push('a')
  const first = next()
  loop.wake(false)
  await first
  gathered.push('b')
  loop.wake(true)
  gathered.push('c')
  loop.wake(true)
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
  gathered.push('a')
  loop.wake(true)
  assert.equal(appends.length, 1)
  loop.stop()
})

test('after a failed append nothing more is appended, and the failure is told once', async () => {
  const { loop, gathered, appends, events, failed } = setUp()
  gathered.push('a')
  loop.wake(true)
  gathered.push('b')
  appends[0]?.settle.reject(new Error('no space'))
  assert.equal((await failed).code, 'LOG_APPEND_FAILED')
  loop.wake(true)
  await loop.drain()
  assert.deepEqual(
    appends.map((a) => a.content),
    ['a'],
  )
  assert.deepEqual(events, ['failed LOG_APPEND_FAILED'])
})

test('an append that never settles fails by time limit, and its late success changes nothing', async () => {
  const { loop, gathered, appends, events, failed } = setUp({ timeoutMs: 20 })
  gathered.push('a')
  loop.wake(true)
  assert.equal((await failed).code, 'LOG_APPEND_TIMEOUT')
  appends[0]?.settle.resolve()
  gathered.push('b')
  loop.wake(true)
  await loop.drain()
  assert.deepEqual(events, ['failed LOG_APPEND_TIMEOUT'])
  assert.equal(appends.length, 1)
})

test('a stop leaves an open append to itself', async () => {
  const { loop, gathered, appends, events } = setUp()
  gathered.push('a')
  loop.wake(true)
  loop.stop()
  appends[0]?.settle.reject(new Error('closed'))
  await loop.drain()
  assert.deepEqual(events, [])
})
