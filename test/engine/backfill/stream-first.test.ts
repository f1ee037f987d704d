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
  first.took(20, 10_020)
  assert.equal(first.waitMs(10_020), 10)
  assert.equal(first.rows(1024 * 1024), 1)
  assert.ok(first.rows(512) * 512 <= 256 * 1024)
})

test('where slices take long they have more rows, so that a backfill does not stand still', () => {
  const first = new StreamFirst()
  const quick = first.rows(512)
  first.took(50, 1_000)
  assert.equal(first.rows(512), quick)
  first.took(600, 2_000)
  assert.ok(first.rows(512) >= quick * 4)
  assert.ok(first.waitMs(2_000) < 50)
  first.took(60_000, 90_000)
  assert.ok(first.rows(512) * 512 <= 1024 * 1024)
  first.took(5, 91_000)
  assert.equal(first.rows(512), quick)
})
