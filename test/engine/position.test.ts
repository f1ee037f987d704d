import assert from 'node:assert/strict'
import { test } from 'node:test'
import { PackBuilder } from '../../engine/log/pack-builder.ts'
import { ACTION, Pack } from '../../engine/log/pack.ts'
import { comparePositions, PART, type Position } from '../../engine/position.ts'

test('positions are ordered by history, then commit, then index, then part, by themselves and in a pack', () => {
  const ascending: Position[] = []
  for (const history of [0, 1])
    for (const lsn of [7n, 0xffffffff_00000000n])
      for (const idx of [0, 9, 1_000_000]) for (const part of [PART.tombstone, PART.row]) ascending.push({ history, lsn, idx, part })
  for (const [i, position] of ascending.entries()) {
    const builder = new PackBuilder({ history: position.history, term: 1, routing: 1 })
    builder.begin(position.lsn, 1, 1)
    builder.add(position.idx, position.part, ACTION.update, 1, 0, 1, 0, 0)
    const pack = Pack.decode(builder.encode())
    assert.deepEqual(pack.position(0), position)
    for (const [j, other] of ascending.entries()) {
      assert.equal(Math.sign(comparePositions(position, other)), Math.sign(i - j))
      assert.equal(Math.sign(pack.compare(0, other)), Math.sign(i - j))
    }
  }
})
