import assert from 'node:assert/strict'
import { test } from 'node:test'
import { TailCache } from '../../../engine/log/tail-cache.ts'

const pack = (byte: number) => Buffer.alloc(100, byte)

test('a pack is kept until it is read, and memory stays within its bound however many come', () => {
  const cache = new TailCache(1_000)
  using reader = cache.follow(1, 0)
  reader.isNear(0, 0)
  for (let offset = 0; offset < 5_000; offset++) {
    cache.add(1, 0, offset, pack(offset % 256))
    assert.ok(cache.bytes <= 1_000)
    if (offset < 3) continue
    assert.equal(reader.take(offset - 3)?.[0], (offset - 3) % 256)
    assert.equal(reader.take(offset - 3), undefined)
  }
  assert.equal(cache.bytes, 300)
})

test('nothing is kept for a reader that has fallen behind, until it is near the tail again; others keep theirs', () => {
  const cache = new TailCache(1_000)
  using reader = cache.follow(1, 0)
  using other = cache.follow(2, 0)
  reader.isNear(0, 0)
  other.isNear(0, 0)
  for (let offset = 0; offset < 20; offset++) cache.add(1, 0, offset, pack(offset))
  assert.equal(reader.take(0), undefined)
  cache.add(1, 0, 20, pack(20))
  cache.add(2, 0, 0, pack(1))
  assert.equal(reader.take(20), undefined)
  assert.equal(other.take(0)?.[0], 1)
  reader.isNear(21, 21)
  cache.add(1, 0, 21, pack(21))
  assert.equal(reader.take(21)?.[0], 21)
})

test('a pack waits for every reader near the tail, and is one buffer for all of them', () => {
  const cache = new TailCache(1_000)
  using first = cache.follow(1, 0)
  using second = cache.follow(1, 0)
  first.isNear(0, 0)
  second.isNear(0, 0)
  for (let offset = 0; offset < 3; offset++) cache.add(1, 0, offset, pack(offset))
  using late = cache.follow(1, 0)
  late.isNear(0, 3)
  const taken = first.take(0)
  assert.equal(late.take(0), taken, 'from the hands of another, who is not counted for it')
  assert.equal(cache.bytes, 300, 'the second has not read it yet')
  assert.equal(second.take(0), taken)
  assert.equal(cache.bytes, 200)
  second[Symbol.dispose]()
  assert.ok(first.take(1) && first.take(2))
  assert.equal(cache.bytes, 0, 'nobody waits for one who has gone')
})

test('what one reader has read from the disk is given to the next', () => {
  const cache = new TailCache(1_000)
  using first = cache.follow(1, 0)
  using second = cache.follow(1, 0)
  const read = pack(7)
  first.read(0, read)
  assert.equal(second.take(0), read)
})

test('a deleted topic leaves nothing', () => {
  const cache = new TailCache(1_000)
  using reader = cache.follow(1, 0)
  reader.isNear(0, 0)
  for (let offset = 0; offset < 5; offset++) cache.add(1, 0, offset, pack(offset))
  cache.drop(1, 0, Infinity)
  assert.equal(cache.bytes, 0)
})
