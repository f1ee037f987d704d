import assert from 'node:assert/strict'
import { test } from 'node:test'
import { BodyBuffers } from '../../sinks/body-buffers.ts'

test('memory that was given back is used again when it is large enough, and never by two at once', () => {
  const buffers = new BodyBuffers()
  const first = buffers.take(100_000)
  assert.equal(first.length, 100_000)
  buffers.giveBack(first)
  assert.notEqual(buffers.take(1_000_000).buffer, first.buffer)
  const again = buffers.take(90_000)
  assert.equal(again.length, 90_000)
  assert.equal(again.buffer, first.buffer)
  assert.notEqual(buffers.take(90_000).buffer, first.buffer)
})

test('no more than a few megabytes are held', () => {
  const buffers = new BodyBuffers()
  const large = buffers.take(16 * 1024 * 1024)
  buffers.giveBack(large)
  assert.notEqual(buffers.take(1).buffer, large.buffer)
  const many = Array.from({ length: 100 }, () => buffers.take(1024 * 1024))
  for (const one of many) buffers.giveBack(one)
  const used = Array.from({ length: 100 }, () => buffers.take(1).buffer).filter((memory) => many.some(({ buffer }) => buffer === memory))
  assert.ok(used.length <= 4)
})
