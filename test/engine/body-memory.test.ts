import assert from 'node:assert/strict'
import { test } from 'node:test'
import { BodyMemory } from '../../engine/body-memory.ts'

const MB = 1024 * 1024

test('memory that was given back is used again, and what was not is nobody else’s', () => {
  const memory = new BodyMemory()
  const first = memory.take(700_000).fill(1)
  const second = memory.take(700_000).fill(2)
  assert.notEqual(first.buffer, second.buffer)
  memory.give(first)
  const third = memory.take(650_000).fill(3)
  assert.equal(third.buffer, first.buffer)
  assert.equal(third.length, 650_000)
  assert.notEqual(memory.take(650_000).buffer, third.buffer)
  assert.ok(second.every((byte) => byte === 2))
})

test('what is kept for later is bounded, and neither small nor very large bodies count in it', () => {
  const memory = new BodyMemory()
  const taken = Array.from({ length: 30 }, () => memory.take(MB))
  for (const body of [...taken, memory.take(1_000), memory.take(16 * MB)]) memory.give(body)
  assert.ok(memory.freeBytes >= 4 * MB && memory.freeBytes <= 8 * MB, String(memory.freeBytes))
  const free = memory.freeBytes
  memory.take(2 * MB) // larger than all that is kept
  assert.equal(memory.freeBytes, free)
})

test('what is too large to be kept is freed at once', () => {
  const memory = new BodyMemory()
  const body = memory.take(16 * MB)
  assert.equal(body.fill(1).length, 16 * MB)
  memory.give(body)
  assert.equal(body.buffer.byteLength, 0)
})

test('bodies that have become larger are kept in the place of those that are too small', () => {
  const memory = new BodyMemory()
  for (const small of Array.from({ length: 30 }, () => memory.take(MB))) memory.give(small)
  const large = memory.take(3 * MB)
  memory.give(large)
  assert.equal(memory.take(3 * MB).buffer, large.buffer)
})
