import assert from 'node:assert/strict'
import { test } from 'node:test'
import { BusyShare } from '../../../engine/busy-share.ts'
import { ChunkQueue } from '../../../engine/wal/chunk-queue.ts'
import { Chunk } from '../../../engine/wal/decode/chunk.ts'

function queue(waits: Readonly<Record<string, Promise<void>>> = {}) {
  const handled: string[] = []
  const causes: (string | undefined)[] = []
  const failures: unknown[] = []
  const chunks = new ChunkQueue({
    handle: (chunk) => {
      const text = chunk.bytes().toString()
      handled.push(text)
      const done = waits[text]
      return done && { cause: `wait of ${text}`, done }
    },
    waiting: (cause) => causes.push(cause),
    failed: (error) => failures.push(error),
    decoding: new BusyShare(0),
  })
  return { chunks, handled, causes, failures, receive: (text: string) => chunks.receive(Chunk.of(Buffer.from(text))) }
}

test('what comes before the start, and while something is waited for, is handled afterwards, in order', async () => {
  const wait = Promise.withResolvers<void>()
  const { chunks, handled, causes, receive } = queue({ b: wait.promise })
  receive('a')
  assert.deepEqual(handled, [])
  chunks.resume()
  for (const text of ['b', 'c', 'd']) receive(text)
  assert.deepEqual(handled, ['a', 'b'])
  assert.deepEqual([chunks.isIdle, chunks.heldBytes], [false, 2])
  wait.resolve()
  await wait.promise.then()
  assert.deepEqual(handled, ['a', 'b', 'c', 'd'])
  assert.deepEqual(causes, [undefined, 'wait of b', undefined])
  assert.deepEqual([chunks.isIdle, chunks.heldBytes], [true, 0])
})

test('a wait met among what was held holds the rest again', async () => {
  const waits = { a: Promise.withResolvers<void>(), c: Promise.withResolvers<void>() }
  const { chunks, handled, receive } = queue({ a: waits.a.promise, c: waits.c.promise })
  chunks.resume()
  for (const text of ['a', 'b', 'c', 'd']) receive(text)
  waits.a.resolve()
  await waits.a.promise.then()
  assert.deepEqual(handled, ['a', 'b', 'c'])
  waits.c.resolve()
  await waits.c.promise.then()
  assert.deepEqual(handled, ['a', 'b', 'c', 'd'])
})

test('a chunk is copied while it is held: its buffer is used again', () => {
  const { chunks, handled } = queue()
  const reused = Buffer.from('one')
  chunks.receive(Chunk.of(reused))
  reused.write('two')
  chunks.receive(Chunk.of(reused))
  chunks.resume()
  assert.deepEqual(handled, ['one', 'two'])
})

test('a wait that fails is told, and nothing is handled after it; nor after a stop', async () => {
  const wait = Promise.withResolvers<void>()
  const { chunks, handled, failures, receive } = queue({ a: wait.promise })
  chunks.resume()
  receive('a')
  receive('b')
  wait.reject(new Error('no catalogue'))
  await wait.promise.catch(() => undefined)
  assert.deepEqual([handled, failures.length], [['a'], 1])
  chunks.stop()
  chunks.resume()
  receive('c')
  assert.deepEqual(handled, ['a'])
})
