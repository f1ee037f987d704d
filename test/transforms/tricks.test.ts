/** Every trick against the sandbox, with another function at work beside it all the time. */
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { LONG } from '../faults/size.ts'
import type { BatchOutcome } from '../../transforms/sandbox/batch-outcome.ts'
import { STATE } from '../../transforms/sandbox/wire.ts'
import { batch, fn, pool, rows } from './function-fixture.ts'
import { ESCAPES, EXHAUSTIONS } from './tricks.ts'

const MB = 1024 * 1024
/** What the engine's process may grow by while everything is tried: the answers of a few hundred calls. */
const GROWTH_BYTES = 100 * MB
/** a shorter limit than the product's, so that a hundred endless loops end in time */
const shared = pool({ memoryMb: 320, callMs: 150 })
const others = { runs: 0, wrong: 0, stop: new AbortController(), ended: Promise.resolve() }
let residentBefore = 0

before(async () => {
  await run('return 0')
  residentBefore = process.memoryUsage.rss()
  others.ended = work()
})
after(async () => {
  others.stop.abort()
  await others.ended
  await shared.stop()
})

async function run(body: string, module = ''): Promise<BatchOutcome> {
  const code = `${module}\nexport default function transform(action, record, changes, metadata) {\n  if (record.id !== 2) return { id: record.id, consumer: metadata.consumer.id, polluted: ({}).polluted ?? null }\n  ${body}\n}`
  return shared.run([fn(code)], batch(rows(3)))
}

/** Another function, perhaps another tenant's: it sees nothing of all this, and all its messages come through. */
async function work(): Promise<void> {
  const mine = fn(
    'export default (a, r) => [r.id * 2, typeof globalThis.secret, ({}).polluted ?? null, JSON.stringify({ a: 1 })]',
    'transform',
    'other',
  )
  while (!others.stop.signal.aborted) {
    const outcome = await inTime(
      rows(50).map((_, i) => i + 1),
      () => shared.run([mine], batch(rows(50))),
    )
    others.runs++
    for (let i = 0; i < 50; i++)
      if (outcome.states[i] !== STATE.kept || outcome.resultText(0, i) !== `[${(i + 1) * 2},"undefined",null,"{\\"a\\":1}"]`) others.wrong++
  }
}

/** Again, but not for ever, where a call that takes no time ran out of it: then the machine stood still. @param ids of those */
async function inTime(ids: readonly number[], call: () => Promise<BatchOutcome>): Promise<BatchOutcome> {
  for (let left = 2; ; left--) {
    const outcome = await call()
    if (left === 0 || !ids.some((id) => LATE.test(outcome.failures.get(id - 1)?.code ?? ''))) return outcome
  }
}
const LATE = /^FUNCTION_(TIMEOUT|KILLED)$/

for (const { name, body, module } of ESCAPES)
  test(`no way out: ${name}`, async () => {
    const outcome = await run(body, module)
    const text = outcome.states[1] === STATE.kept ? outcome.resultText(0, 1) : ''
    assert.ok(!text.startsWith('"ESCAPED"'), text)
    assert.equal(outcome.done, 3)
    assert.notEqual(outcome.states[0], STATE.dropped)
    if (outcome.states[0] === STATE.kept) assert.equal(outcome.resultText(0, 0), '{"id":1,"consumer":"c1","polluted":null}')
    if (outcome.states[2] === STATE.kept) assert.match(outcome.resultText(0, 2), /^(\{"id":3,"consumer":"c1"|"ESCAPED-own")/)
  })

for (const { name, body, isSlow } of EXHAUSTIONS)
  test(`contained: ${name}`, { skip: isSlow && !LONG }, async () => {
    const outcome = await inTime([1, 3], () => run(body))
    assert.deepEqual(
      [...outcome.states],
      [STATE.kept, STATE.failed, STATE.kept],
      outcome.states[1] === STATE.kept ? outcome.resultText(0, 1).slice(0, 100) : '',
    )
    assert.match(outcome.failures.get(1)?.code ?? '', /^FUNCTION_(FAILED|TIMEOUT|MEMORY|KILLED)$/)
    assert.equal(outcome.resultText(0, 2), '{"id":3,"consumer":"c1","polluted":null}')
  })

test('meanwhile every message of another function came through, and the engine has not grown', () => {
  assert.ok(others.runs > 50, `${others.runs} runs`)
  assert.equal(others.wrong, 0)
  globalThis.gc?.()
  const grown = process.memoryUsage.rss() - residentBefore
  assert.ok(grown < GROWTH_BYTES, `${Math.round(grown / MB)} MB`)
})

test('a function that ended its sandbox at three messages is switched off, and another text of it begins anew', async () => {
  const bomb = fn(`export default (a, r) => { if (r.id > 1) return 'a'.repeat(2 ** 28).split('').length; return 1 }`)
  const outcome = await shared.run([bomb], batch(rows(6)))
  assert.deepEqual([...outcome.states], [STATE.kept, ...Array.from({ length: 5 }, () => STATE.failed)])
  assert.deepEqual(
    [1, 2, 3, 4, 5].map((i) => outcome.failures.get(i)?.code),
    ['FUNCTION_KILLED', 'FUNCTION_KILLED', 'FUNCTION_KILLED', 'FUNCTION_OFF', 'FUNCTION_OFF'],
  )
  assert.equal(shared.strikes(bomb.key)?.isOff, true)
  const mended = await shared.run([fn('export default (a, r) => r.id')], batch(rows(6)))
  assert.equal(mended.failures.size, 0)
})

test('a message that ends its sandbox each time it is tried counts once, and messages of two groups switch nothing off', async () => {
  const bomb = fn(`export default (a, r) => { if (r.bomb) return 'a'.repeat(2 ** 28).split('').length; return r.id }`)
  const run = async (...messages: readonly { id: number; group: number; bomb: boolean }[]) => {
    const named = (i: number) => ({ text: `row ${messages[i]?.id}`, group: `group ${messages[i]?.group}` })
    const outcome = await shared.run([bomb], { ...batch(messages.map((record) => ({ record }))), named })
    return messages.map((_, i) => outcome.failures.get(i)?.code ?? outcome.resultText(0, i))
  }
  const bad = (id: number, group = id) => ({ id, group, bomb: true })
  for (let times = 0; times < 3; times++) assert.deepEqual(await run(bad(1)), ['FUNCTION_KILLED'])
  assert.deepEqual(await run({ id: 2, group: 2, bomb: false }), ['2'], 'others go on')
  assert.deepEqual(await run(bad(1), bad(3, 2), bad(4, 2)), ['FUNCTION_KILLED', 'FUNCTION_KILLED', 'FUNCTION_KILLED'])
  assert.deepEqual(await run(bad(5), { id: 6, group: 6, bomb: false }), ['FUNCTION_KILLED', 'FUNCTION_OFF'])
  assert.deepEqual(shared.strikes(bomb.key)?.messages, ['row 1', 'row 3', 'row 4', 'row 5'])
})
