import assert from 'node:assert/strict'
import { test } from 'node:test'
import { JsonMembers } from '../../sinks/json-members.ts'
import { Random } from '../faults/random.ts'

/** Name and value of each member, as JSON.parse would have them. */
function read(text: string, start = 0): [string, unknown][] | undefined {
  const bytes = Buffer.from(text)
  const members = JsonMembers.of(bytes, start)
  if (!members) return undefined
  const pairs: [string, unknown][] = []
  for (let name = members.name(); name; name = members.name()) {
    const value = members.value()
    pairs.push([JSON.parse(bytes.toString('utf8', name.start, name.end)), JSON.parse(bytes.toString('utf8', value.start, value.end))])
  }
  return pairs
}

test('members of any object are found where JSON.parse finds them', () => {
  const random = new Random(7)
  const texts = ['', 'a', '"', '\\', '\\"', '{', '}]', '},"x":{', 'größe', '\u2028', '💡', ' ', ':,']
  const value = (depth: number): unknown => {
    const kind = random.int(0, depth > 4 ? 4 : 7)
    if (kind < 2) return random.pick(texts)
    if (kind === 2) return random.pick([0, -1, 1.5, 1e21, -2.5e-7, 9007199254740991])
    if (kind === 3) return random.pick([true, false, null])
    if (kind === 4) return random.pick([[], {}])
    if (kind < 7)
      return Object.fromEntries(Array.from({ length: random.int(0, 3) }, (_, i) => [`${random.pick(texts)}${i}x`, value(depth + 1)]))
    return Array.from({ length: random.int(0, 3) }, () => value(depth + 1))
  }
  for (let n = 0; n < 2_000; n++) {
    const object = Object.fromEntries(Array.from({ length: random.int(0, 5) }, (_, i) => [`${random.pick(texts)}${i}x`, value(1)]))
    const text = JSON.stringify(object, null, random.pick([0, 2]))
    assert.deepEqual(read(`  ${text}`), Object.entries(object), text)
  }
})

test('names are compared by what they mean, and what is no object has no members', () => {
  const bytes = Buffer.from('{"gr\\u00f6\\u00dfe":1,"größer":2}')
  const members = JsonMembers.of(bytes, 0)
  const name = members?.name()
  assert.ok(members && name)
  assert.deepEqual([members.is(name, 'größe'), members.is(name, 'größer')], [true, false])
  members.value()
  const second = members.name()
  assert.ok(second && members.is(second, 'größer') && !members.is(second, 'größe'))
  for (const text of ['[{}]', '"{}"', '1', 'null']) assert.equal(read(text), undefined)
})

test('a number that no float64 holds is seen at any depth, others are not taken for one', () => {
  const seen = (text: string) => {
    const members = JsonMembers.of(Buffer.from(text), 0)
    while (members?.name()) members.value()
    return [members?.isOutOfRange, members?.depth]
  }
  for (const number of ['1e400', '-1E+309', '9'.repeat(310), '[[{"a":[1e999]}]]'])
    assert.equal(seen(`{"a":0,"b":${number},"c":"x"}`)[0], true, number)
  for (const number of ['1e308', '1e-400', '9'.repeat(300), '"1e400"', 'true', '"\\\\\\"1e400"'])
    assert.equal(seen(`{"a":0,"b":${number}}`)[0], false, number)
  assert.equal(seen('{"a":[[1],{"b":{}}],"c":1}')[1], 4)
})
