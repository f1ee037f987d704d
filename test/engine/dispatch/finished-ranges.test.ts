import assert from 'node:assert/strict'
import { test } from 'node:test'
import { FinishedRanges } from '../../../engine/dispatch/finished-ranges.ts'
import fc from '../../services/fast-check.ts'

test('ranges hold exactly what was added: ascending, disjoint, never touching', () => {
  const span = fc.tuple(fc.nat(60), fc.integer({ min: 1, max: 6 }))
  fc.assert(
    fc.property(fc.array(span, { maxLength: 40, size: 'max' }), (spans) => {
      const ranges = new FinishedRanges()
      const held = new Set<number>()
      for (const [from, length] of spans) {
        ranges.add(from, from + length)
        for (let i = from; i < from + length; i++) held.add(i)
        const listed: number[] = []
        for (let r = 0; r < ranges.count; r++) {
          assert.ok(r === 0 || ranges.start(r) > ranges.end(r - 1))
          for (let i = ranges.start(r); i < ranges.end(r); i++) listed.push(i)
        }
        assert.deepEqual(
          listed,
          [...held].sort((a, b) => a - b),
        )
      }
    }),
  )
})
