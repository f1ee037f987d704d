import assert from 'node:assert/strict'
import { test } from 'node:test'
import { ReadingGate } from '../../../engine/wal/flow.ts'

test('the gate is closed while anybody holds it, tells each change once, and names the causes', () => {
  const gate = new ReadingGate()
  const seen: boolean[] = []
  const unwatch = gate.watch(() => seen.push(gate.closed))
  const first = gate.hold('backlog of a full')
  const second = gate.hold('backlog of a full')
  const third = gate.hold('disk')
  assert.deepEqual(gate.causes, ['backlog of a full', 'disk'])
  first()
  first()
  second()
  assert.ok(gate.closed)
  third()
  assert.deepEqual(seen, [true, false])
  unwatch()
  gate.hold('x')()
  assert.equal(seen.length, 2)
})
