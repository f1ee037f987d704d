import assert from 'node:assert/strict'
import { test } from 'node:test'
import { GroupHeads } from '../../../engine/dispatch/group-heads.ts'

/** A generator with a seed, so that a failure comes again. */
function random(seed: number): () => number {
  let state = seed
  return () => (state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0) / 2 ** 32
}

for (const { title, groupOf } of [
  { title: 'hashes', groupOf: (n: number) => (n * 2_654_435_761 * 1_000_003) % 2 ** 52 },
  { title: 'hashes of which all stand at few places', groupOf: (n: number) => n * 2 ** 20 + (n % 3) },
])
  test(`groups by ${title} are found, changed and taken out as in a map`, () => {
    const next = random(7)
    const heads = new GroupHeads()
    const map = new Map<number, number>()
    for (let step = 0; step < 60_000; step++) {
      const growing = step % 20_000 < 10_000
      const group = groupOf(Math.floor(next() * 1_500))
      if (next() < (growing ? 0.7 : 0.3)) {
        heads.set(group, step)
        map.set(group, step)
      } else {
        heads.delete(group)
        map.delete(group)
      }
      assert.equal(heads.size, map.size)
      const other = groupOf(Math.floor(next() * 1_500))
      assert.equal(heads.get(other), map.get(other))
    }
    for (const [group, seq] of map) assert.equal(heads.get(group), seq)
  })

test('a hundred thousand groups come and go', () => {
  const heads = new GroupHeads()
  const groupOf = (n: number) => (n * 40_503 * 2_654_435_761) % 2 ** 52
  for (let n = 0; n < 100_000; n++) heads.set(groupOf(n), n)
  assert.equal(heads.size, 100_000)
  for (let n = 0; n < 100_000; n++) {
    assert.equal(heads.get(groupOf(n)), n)
    heads.delete(groupOf(n))
  }
  assert.equal(heads.size, 0)
  heads.set(5, 1)
  assert.equal(heads.get(5), 1)
})
