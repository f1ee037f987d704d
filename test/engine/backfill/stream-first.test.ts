import assert from 'node:assert/strict'
import { test } from 'node:test'
import { StreamFirst } from '../../../engine/backfill/stream-first.ts'

test('changes are streamed from when some came until none has come for a second', () => {
  const first = new StreamFirst()
  assert.equal(first.isStreaming(0, 5), false)
  assert.equal(first.isStreaming(3, 10), true)
  assert.equal(first.isStreaming(3, 1_009), true)
  assert.equal(first.isStreaming(3, 1_010), false)
  assert.equal(first.isStreaming(4, 9_000), true)
})

test('slices beside the stream are small, and those of all backfills of a source come one after the other', () => {
  const first = new StreamFirst()
  assert.equal(first.waitMs(100), 0)
  const next = first.waitMs(101)
  assert.ok(next > 1, `${next} ms`)
  assert.ok(first.waitMs(101) > next)
  assert.equal(first.waitMs(10_000), 0)
  assert.equal(first.rows(1024 * 1024), 1)
  assert.ok(first.rows(512) * 512 <= 256 * 1024)
})
