/** What a sandbox holds stays bounded, however much goes through it and however often functions change. */
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { after, test } from 'node:test'
import { LONG } from '../faults/size.ts'
import type { Callable } from '../../transforms/sandbox/sandbox.ts'
import { batch, batchOf, fn, MEMORY_MB, pool, rows, TAIL } from './function-fixture.ts'

const MB = 1024 * 1024
const shared = pool()
after(() => shared.stop())

/** Of the sandboxes together; undefined where the system doesn't tell. */
function residentMb(of = shared): number | undefined {
  try {
    return of.pids.reduce((sum, pid) => sum + Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]) / 1024, 0)
  } catch {
    return undefined
  }
}

test('functions that are deployed again and again leave nothing behind', async () => {
  const pids = new Set<number>()
  for (let i = 0; i < (LONG ? 1_000 : 120); i++) {
    const deployed = fn(`export default (a, r) => [r.id, ${i}]`)
    const outcome = await shared.run([deployed], batch(rows(100)))
    assert.equal(outcome.resultText(0, 99), `[100,${i}]`)
    shared.forget(deployed.key)
    for (const pid of shared.pids) pids.add(pid)
  }
  const resident = residentMb()
  if (resident !== undefined) assert.ok(resident < MEMORY_MB, `${resident} MB`)
  assert.equal(pids.size, 1, 'nothing had to be ended or replaced for it')
})

test('many functions in turn, with many messages, stay below the setting, and none of them fails', async () => {
  const many = Array.from({ length: LONG ? 200 : 40 }, (_, i) =>
    fn(`const n = ${i}\nexport default (a, r) => ({ n, id: r.id, text: r.text })`),
  )
  const messages = batch(Array.from({ length: 500 }, (_, i) => ({ record: { id: i, text: 'x'.repeat(400) } })))
  const rounds = LONG ? 1_000_000 / 500 / many.length : 2
  for (let round = 0; round < rounds; round++)
    for (const one of many) {
      const outcome = await shared.run([one], messages)
      assert.equal(outcome.failures.size, 0)
      assert.equal(outcome.done, 500)
    }
  const resident = residentMb()
  if (resident !== undefined) assert.ok(resident < MEMORY_MB, `${resident} MB`)
})

/** A few that keep much, or many. */
const [FUNCTIONS, SINKS, KEPT] = LONG ? ([200, 500, 50_000] as const) : ([50, 100, 400_000] as const)

test(`${FUNCTIONS} functions of ${SINKS} sinks take no more memory than the setting gives, whichever of them is next`, async () => {
  const memoryMb = 256
  await using bounded = pool({ memoryMb })
  const functions = Array.from({ length: FUNCTIONS }, (_, i) =>
    fn(`const kept = new Array(${KEPT}).fill(${i})\nexport default (a, r, c, m) => [m.consumer.id, kept[r.id], r.id]`),
  )
  const { lines, lineEnds, count } = batch(rows(LONG ? 1_000 : 10))
  const engineMb = process.memoryUsage.rss() / MB
  let largest = 0
  for (let round = 0; round < (LONG ? 4 : 1); round++)
    for (let sink = 0; sink < SINKS; sink += 20) {
      const turn = Array.from({ length: 20 }, async (_, k) => {
        const id = `sink ${sink + k}`
        const tail = JSON.stringify({ ...TAIL, consumer: { ...TAIL.consumer, id } })
        const n = (sink + k) % functions.length
        const outcome = await bounded.run([functions[n] as Callable], { lines, lineEnds, count, tail })
        assert.equal(outcome.resultText(0, 4), `["${id}",${n},5]`)
      })
      await Promise.all(turn)
      largest = Math.max(largest, residentMb(bounded) ?? 0)
    }
  assert.ok(largest < memoryMb * 2, `${largest} MB`) // two of them while one takes over from the other
  assert.ok(process.memoryUsage.rss() / MB - engineMb < 100, 'the engine itself has not grown with them')
})

test('a message of megabytes goes through between small ones', async () => {
  const big = JSON.stringify({ record: { id: 2, text: 'y'.repeat(6 * MB) }, changes: null, action: 'insert', metadata: {} })
  const small = (id: number) => JSON.stringify({ record: { id }, changes: null, action: 'insert', metadata: {} })
  const outcome = await shared.run([fn('export default (a, r) => (r.text ?? "").length')], batchOf([small(1), big, small(3)]))
  assert.deepEqual([0, 1, 2].map((i) => outcome.resultText(0, i)), ['0', String(6 * MB), '0']) // prettier-ignore
})
