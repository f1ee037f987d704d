import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Bag, NOWHERE } from '../../engine/bag.ts'

const members = (count: number) => Array.from({ length: count }, (_, name) => ({ name, place: NOWHERE }))
const names = (bag: Bag<{ name: number; place: number }>) => [...bag].map(({ name }) => name).sort()

test('a bag holds what was added and not deleted, wherever it stood', () => {
  for (const gone of [0, 1, 2, 3]) {
    const bag = new Bag<{ name: number; place: number }>()
    const all = members(4)
    for (const member of all) bag.add(member)
    assert.equal(bag.delete(all[gone] as (typeof all)[number]), true)
    assert.deepEqual(
      names(bag),
      [0, 1, 2, 3].filter((name) => name !== gone),
    )
    for (const member of all) bag.delete(member)
    assert.equal(bag.size, 0)
  }
})

test('what is in no bag, or was taken out, is not deleted again', () => {
  const bag = new Bag<{ name: number; place: number }>()
  const [first, second] = members(2) as [{ name: number; place: number }, { name: number; place: number }]
  bag.add(first)
  assert.equal(bag.delete(second), false)
  assert.equal(bag.delete(first), true)
  assert.equal(bag.delete(first), false)
  bag.add(first)
  assert.deepEqual(names(bag), [0])
})
