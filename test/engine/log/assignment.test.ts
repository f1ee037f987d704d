import assert from 'node:assert/strict'
import { test } from 'node:test'
import { assignPartitions, type GroupMember } from '../../../engine/log/kafka/assignment.ts'
import fc from '../../services/fast-check.ts'

const groups = fc.record({
  partitions: fc.integer({ min: 0, max: 40 }),
  members: fc.uniqueArray(
    fc.record({ id: fc.string({ minLength: 1, maxLength: 4 }), had: fc.uniqueArray(fc.integer({ min: 0, max: 45 }), { maxLength: 40 }) }),
    { minLength: 1, maxLength: 8, selector: ({ id }) => id },
  ),
})

test('every partition goes to one member, evenly, whatever each says it had', () => {
  fc.assert(
    fc.property(groups, ({ partitions, members }) => {
      const shares = assignPartitions(members, partitions)
      const all = [...shares.values()].flat().sort((a, b) => a - b)
      assert.deepEqual(all, [...Array(partitions).keys()])
      const sizes = [...shares.values()].map((share) => share.length)
      assert.ok(Math.max(...sizes) - Math.min(...sizes) <= 1, sizes.join())
    }),
  )
})

test('members keep what they had: an unchanged group moves nothing, a newcomer or a leaver only what must', () => {
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 40 }), fc.integer({ min: 1, max: 8 }), (partitions, count) => {
      const ids = [...Array(count).keys()].map((i) => `m${i}`)
      const first = assignPartitions(
        ids.map((id) => ({ id, had: [] })),
        partitions,
      )
      const had = (shares: Map<string, number[]>): GroupMember[] => [...shares].map(([id, share]) => ({ id, had: share }))
      assert.deepEqual(assignPartitions(had(first), partitions), first)
      const more = assignPartitions([...had(first), { id: 'new', had: [] }], partitions)
      const moved = ids.flatMap((id) => (more.get(id) ?? []).filter((p) => !first.get(id)?.includes(p)))
      assert.deepEqual(moved, [], 'only the newcomer gets partitions it did not have')
      const less = assignPartitions(had(more).slice(0, -1), partitions)
      for (const id of ids) for (const p of more.get(id) ?? []) assert.ok(less.get(id)?.includes(p), `${id} keeps ${p}`)
    }),
  )
})
