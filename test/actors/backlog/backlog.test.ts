import assert from 'node:assert/strict'
import { test } from 'node:test'
import { BacklogGuard, type BacklogOf, type Filled } from '../../../actors/backlog/backlog.ts'
import { ReadingGate } from '../../../engine/wal/flow.ts'

function guarded(...names: string[]) {
  const gate = new ReadingGate()
  const sizes = new Map(names.map((name) => [name, 0]))
  const bound = new Set(names)
  const maxBytes = 10 * 2 ** 20
  const others = new Map(names.map((name) => [name, 0]))
  const large = async (share: number): Promise<BacklogOf[]> =>
    [...bound]
      .flatMap((name) => {
        const of = (what: Filled, figures: ReadonlyMap<string, number>) => ({ what, bytes: figures.get(name) ?? 0 })
        return [of('own', sizes), of('others', others)].map((figure) => ({ sinkId: name, name, maxBytes, relief: gate, ...figure }))
      })
      .filter(({ bytes }) => bytes >= maxBytes * share)
  const guard = new BacklogGuard(large, (error) => assert.fail(String(error)))
  return { gate, guard, sizes, others, bound }
}

test('a full backlog stops reading with the name of its sink, until it has drained to nine tenths', async () => {
  const { gate, guard, sizes } = guarded('goods')
  using _ = guard
  sizes.set('goods', 10 * 2 ** 20)
  await guard.check()
  assert.deepEqual(gate.causes, ['the backlog of sink "goods" is full (10 MB of 10 MB)'])
  assert.equal(guard.full('goods')?.what, 'own')
  sizes.set('goods', 9.5 * 2 ** 20)
  await guard.check()
  assert.equal(gate.closed, true)
  sizes.set('goods', 8.9 * 2 ** 20)
  await guard.check()
  assert.equal(gate.closed, false)
})

test('two full sinks both have to drain, and one that is no longer bound lets go', async () => {
  const { gate, guard, sizes, bound } = guarded('goods', 'orders')
  using _ = guard
  for (const name of bound) sizes.set(name, 2 ** 30)
  await guard.check()
  assert.equal(gate.causes.length, 2)
  sizes.set('goods', 0)
  await guard.check()
  assert.equal(gate.closed, true)
  bound.delete('orders')
  await guard.check()
  assert.equal(gate.closed, false)
})

test('what a sink keeps of others has the same bound, and each of the two is named while it is full', async () => {
  const { gate, guard, sizes, others } = guarded('goods')
  using _ = guard
  sizes.set('goods', 9 * 2 ** 20)
  others.set('goods', 10 * 2 ** 20)
  await guard.check()
  assert.equal(gate.causes.length, 1)
  assert.match(gate.causes[0] ?? '', /sink "goods" has not passed messages of its stream that its actions leave out \(10 MB of 10 MB\)/)
  sizes.set('goods', 11 * 2 ** 20)
  await guard.check()
  assert.equal(gate.causes.length, 1, 'it is held once')
  others.set('goods', 0)
  await guard.check()
  assert.deepEqual(gate.causes, ['the backlog of sink "goods" is full (11 MB of 10 MB)'])
  assert.equal(guard.full('goods')?.what, 'own')
  sizes.set('goods', 0)
  await guard.check()
  assert.deepEqual([gate.closed, guard.full('goods')], [false, undefined])
})
