import assert from 'node:assert/strict'
import { test } from 'node:test'
import { TailCache } from '../../../engine/log/tail-cache.ts'

const pack = (byte: number) => Buffer.alloc(100, byte)

test('a pack is kept until it is read, and memory stays within its bound however many come', () => {
  const cache = new TailCache(1_000)
  for (let offset = 0; offset < 5_000; offset++) {
    cache.add(1, 0, offset, pack(offset % 256))
    assert.ok(cache.bytes <= 1_000)
    if (offset < 3) continue
    assert.equal(cache.take(1, 0, offset - 3)?.[0], (offset - 3) % 256)
    assert.equal(cache.take(1, 0, offset - 3), undefined)
  }
  assert.equal(cache.bytes, 300)
})

test('nothing is kept for a reader that has fallen behind, until it is near the tail again; others keep theirs', () => {
  const cache = new TailCache(1_000)
  for (let offset = 0; offset < 20; offset++) cache.add(1, 0, offset, pack(offset))
  assert.equal(cache.take(1, 0, 0), undefined)
  for (let offset = 0; offset < 5; offset++) cache.take(1, 0, offset + 1)
  cache.add(1, 0, 20, pack(20))
  cache.add(2, 0, 0, pack(1))
  assert.equal(cache.take(1, 0, 20), undefined)
  assert.equal(cache.take(2, 0, 0)?.[0], 1)
  cache.caughtUp(1, 0)
  cache.add(1, 0, 21, pack(21))
  assert.equal(cache.take(1, 0, 21)?.[0], 21)
})

test('a deleted topic leaves nothing', () => {
  const cache = new TailCache(1_000)
  for (let offset = 0; offset < 20; offset++) cache.add(1, 0, offset, pack(offset))
  cache.forget(1, 0)
  assert.equal(cache.bytes, 0)
  cache.add(1, 0, 20, pack(20))
  assert.equal(cache.bytes, 100)
})
