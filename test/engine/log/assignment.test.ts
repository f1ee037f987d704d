import assert from 'node:assert/strict'
import { test } from 'node:test'
import { assignLikeFirst, assignPartitions, type GroupMember } from '../../../engine/log/kafka/assignment.ts'
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

test('the groups of one topic come to the same assignment, whatever each had before, and also while only one of them knows of a newcomer', () => {
  const processes = fc.record({
    partitions: fc.integer({ min: 1, max: 20 }),
    count: fc.integer({ min: 1, max: 6 }),
    had: fc.array(fc.uniqueArray(fc.integer({ min: 0, max: 20 }), { maxLength: 20 }), { minLength: 12, maxLength: 12 }),
  })
  fc.assert(
    fc.property(processes, ({ partitions, count, had }) => {
      const nodes = [...Array(count).keys()].map((i) => `node${i}`)
      const spread = (group: string, members: readonly GroupMember[]) => {
        const shares = assignLikeFirst({ group, topic: 'stream' }, members, partitions)
        return new Map(members.map(({ id, node }) => [node as string, shares.get(id) as number[]]))
      }
      const member = (group: string, node: string, i: number, first?: GroupMember['first']) => ({
        id: `${group}-${(i * 7) % 5}-${i}`,
        node,
        had: had[i] ?? [],
        first,
      })
      const a = spread(
        'a',
        nodes.map((node, i) => member('a', node, i)),
      )
      const told = (node: string) => ({ group: 'a', partitions: a.get(node) ?? [] })
      assert.deepEqual(
        spread(
          'b',
          nodes.map((node, i) => member('b', node, 11 - i, told(node))),
        ),
        a,
      )
      const newcomer = (group: string) => ({ id: `${group}-new`, node: 'new', had: [] })
      const more = spread('a', [...nodes.map((node, i) => ({ ...member('a', node, i), had: a.get(node) ?? [] })), newcomer('a')])
      assert.deepEqual(spread('b', [...nodes.map((node, i) => member('b', node, i, told(node))), newcomer('b')]), more)
    }),
  )
})

test('what each topic has left over goes to another process', () => {
  const members = ['a', 'b', 'c'].map((id) => ({ id, node: id, had: [] }))
  const owners = Array.from({ length: 30 }, (_, i) => {
    const shares = assignLikeFirst({ group: 'g', topic: `stream.${i}` }, members, 1)
    return [...shares].find(([, share]) => share.length > 0)?.[0]
  })
  for (const { id } of members) assert.ok(owners.filter((owner) => owner === id).length >= 4, owners.join(' '))
})
