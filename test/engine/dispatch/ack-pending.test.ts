/** The shares of a sink's partitions in what may be out at once. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { shareOf } from '../../../engine/dispatch/ack-pending.ts'
import fc from '../../services/fast-check.ts'

test('the shares of all partitions are the bound of the sink, and no partition is without one', () => {
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 1024 }), fc.nat({ max: 20_000 }), (partitions, more) => {
      const max = partitions + more
      const shares = Array.from({ length: partitions }, (_, partition) => shareOf(max, partitions, partition))
      assert.equal(
        shares.reduce((sum, share) => sum + share, 0),
        max,
      )
      assert.ok(Math.min(...shares) >= 1)
      assert.ok(Math.max(...shares) - Math.min(...shares) <= 1, 'evenly')
    }),
  )
})
