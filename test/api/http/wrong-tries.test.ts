import assert from 'node:assert/strict'
import { test } from 'node:test'
import { WrongTries } from '../../../api/http/wrong-tries.ts'

function watched() {
  const lines: object[] = []
  const clock = { now: 0 }
  const tries = new WrongTries({ warn: (fields: object) => void lines.push(fields) } as never, {
    what: 'wrong',
    free: 10,
    clock: () => clock.now,
  })
  return { lines, clock, tries, [Symbol.dispose]: () => tries[Symbol.dispose]() }
}

test('ten tries a minute are answered as they come, further ones a second apart, and never later than ten seconds', () => {
  using w = watched()
  const waits = Array.from({ length: 25 }, () => w.tries.add('a'))
  assert.deepEqual(waits.slice(0, 13), [...Array.from({ length: 10 }, () => 0), 1_000, 2_000, 3_000])
  assert.equal(waits.at(-1), 10_000)
  assert.equal(w.tries.add('b'), 0, 'another address is not slowed')
  w.clock.now += 61_000
  assert.equal(w.tries.add('a'), 0, 'a minute later it may err again')
})

test('the log has a line for each address and minute, with the count', () => {
  using w = watched()
  for (let i = 0; i < 30; i++) w.tries.add('a')
  w.tries.add('b')
  assert.deepEqual(w.lines, [{ from: 'a', tries: 1 }, { from: 'b', tries: 1 }]) // prettier-ignore
  w.clock.now += 59_000
  w.tries.sweep()
  assert.equal(w.lines.length, 2)
  w.clock.now += 1_000
  w.tries.sweep()
  assert.deepEqual(w.lines.slice(2), [{ from: 'a', tries: 29 }])
})

test('who stops trying is forgotten, and beyond ten thousand all others are one', () => {
  using w = watched()
  for (let i = 0; i < 12_000; i++) w.tries.add(String(i))
  assert.equal(w.tries.size, 10_001)
  assert.ok(w.tries.add('one-more') > 0, 'the others are slowed together')
  for (let i = 0; i < 3; i++) {
    w.clock.now += 61_000
    w.tries.sweep()
  }
  assert.equal(w.tries.size, 0)
})
