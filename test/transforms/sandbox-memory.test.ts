/**
 * What functions hold stays bounded, however much goes through them and however often they change: of the sandboxes and of the
 * engine's process, measured once they are warm and at the end. With --long: a million messages, 200 functions, 1,000 redeployments.
 */
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { after, test, type TestContext } from 'node:test'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { LONG } from '../faults/size.ts'
import { CalmClock } from '../services/calm-clock.ts'
import { heldResults } from '../../transforms/sandbox/held-results.ts'
import type { Callable } from '../../transforms/sandbox/sandbox.ts'
import { STATE } from '../../transforms/sandbox/wire.ts'
import { batch, batchOf, fn, MEMORY_MB, pool, rows, TAIL } from './function-fixture.ts'
import { pass, until } from '../waiting.ts'

const MB = 1024 * 1024
/** What memory allocators keep for themselves differs by this from one moment to another. */
const SLACK_MB = 60
/** What was freed goes back to the system in its own time. */
const FREED_WITHIN_MS = 2_000
const shared = pool()
after(() => shared.stop())
setFlagsFromString('--expose-gc')
const collect = runInNewContext('gc') as () => void

type Resident = Readonly<{ engine: number; /** undefined where the system doesn't tell */ sandboxes: number | undefined }>

/** Resident sizes, MB, without what this process only has to collect. */
async function resident(of = shared): Promise<Resident> {
  collect()
  await pass(0, 'what was collected is freed in tasks')
  collect()
  return { engine: process.memoryUsage.rss() / MB, sandboxes: sandboxesMb(of) }
}

const isBelow = (end: Resident, warm: Resident): boolean =>
  end.engine < warm.engine + SLACK_MB && (end.sandboxes ?? 0) < (warm.sandboxes ?? 0) + SLACK_MB

function sandboxesMb(of = shared): number | undefined {
  try {
    return of.pids.reduce((sum, pid) => sum + Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]) / 1024, 0)
  } catch {
    return undefined
  }
}

async function assertBounded(t: TestContext, warm: Resident): Promise<void> {
  using clock = new CalmClock()
  let end = await resident()
  const isFreed = async () => isBelow(end, warm) || isBelow((end = await resident()), warm)
  await until('what was freed goes back to the system', isFreed, { withinMs: FREED_WITHIN_MS, clock }).catch(() => undefined)
  const shown = ({ engine, sandboxes }: Resident) => `engine ${engine.toFixed(0)} MB, sandboxes ${sandboxes?.toFixed(0)} MB`
  t.diagnostic(`warm: ${shown(warm)}; at the end: ${shown(end)}`)
  assert.ok(end.engine < warm.engine + SLACK_MB, `the engine has grown from ${shown(warm)} to ${shown(end)}`)
  if (warm.sandboxes === undefined || end.sandboxes === undefined) return
  assert.ok(end.sandboxes < warm.sandboxes + SLACK_MB, `sandboxes have grown from ${shown(warm)} to ${shown(end)}`)
}

test('functions that are deployed again and again leave nothing behind', async (t) => {
  const pids = new Set<number>()
  const deploy = async (from: number, count: number) => {
    for (let i = from; i < from + count; i++) {
      const deployed = fn(`export default (a, r) => [r.id, ${i}]`)
      const outcome = await shared.run([deployed], batch(rows(100)))
      assert.equal(outcome.resultText(0, 99), `[100,${i}]`)
      shared.forget(deployed.key)
      for (const pid of shared.pids) pids.add(pid)
    }
  }
  await deploy(0, LONG ? 100 : 30)
  const warm = await resident()
  await deploy(100, LONG ? 1_000 : 120)
  await assertBounded(t, warm)
  assert.equal(pids.size, 1, 'nothing had to be ended or replaced for it')
})

test('many functions in turn, with many messages, stay below the setting, and none of them fails', async (t) => {
  const many = Array.from({ length: LONG ? 200 : 30 }, (_, i) =>
    fn(`const n = ${i}\nexport default (a, r) => ({ n, id: r.id, text: r.text })`),
  )
  const messages = batch(Array.from({ length: 500 }, (_, i) => ({ record: { id: i, text: 'x'.repeat(400) } })))
  const go = async (rounds: number) => {
    for (let round = 0; round < rounds; round++)
      for (const one of many) {
        const outcome = await shared.run([one], messages)
        assert.equal(outcome.failures.size, 0)
        assert.equal(outcome.done, 500)
      }
  }
  await go(1)
  const warm = await resident()
  await go(LONG ? 1_000_000 / 500 / many.length : 2)
  if (LONG) await assertBounded(t, warm) // before that each of them is still filling its own share
  const end = await resident()
  assert.ok((end.sandboxes ?? 0) < MEMORY_MB, `${end.sandboxes} MB`)
})

test('one function that a million messages go through holds no more at the end than when it was warm', { skip: !LONG }, async (t) => {
  const one = fn('export default (a, r) => ({ id: r.id, text: r.text.toUpperCase(), key: a + r.id })')
  const messages = batch(Array.from({ length: 1_000 }, (_, i) => ({ record: { id: 2 ** 53 - i, text: 'é'.repeat(i % 400) } })))
  const go = async (count: number) => {
    for (let done = 0; done < count; done += 4 * messages.count) {
      const outcomes = await Promise.all([1, 2, 3, 4].map(() => shared.run([one], messages)))
      for (const { failures } of outcomes) assert.equal(failures.size, 0)
    }
  }
  await go(100_000)
  const warm = await resident()
  await go(1_000_000)
  await assertBounded(t, warm)
})

/** A few that keep much, or many. */
const [FUNCTIONS, SINKS, KEPT] = LONG ? ([200, 500, 50_000] as const) : ([50, 100, 400_000] as const)

test(`${FUNCTIONS} functions of ${SINKS} sinks take no more memory than the setting gives, whichever of them is next`, async (t) => {
  const memoryMb = 256
  await using bounded = pool({ memoryMb })
  const functions = Array.from({ length: FUNCTIONS }, (_, i) =>
    fn(`const kept = new Array(${KEPT}).fill(${i})\nexport default (a, r, c, m) => [m.consumer.id, kept[r.id], r.id]`),
  )
  const { lines, lineEnds, count } = batch(rows(LONG ? 1_000 : 10))
  const before = await resident(bounded)
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
      largest = Math.max(largest, sandboxesMb(bounded) ?? 0)
    }
  const end = await resident(bounded)
  t.diagnostic(
    `sandboxes at most ${largest.toFixed(0)} MB of ${memoryMb}; engine ${before.engine.toFixed(0)} MB before, ${end.engine.toFixed(0)} MB after`,
  )
  assert.ok(largest < memoryMb * 2, `${largest} MB`) // two of them while one takes over from the other
  assert.ok(end.engine < before.engine + SLACK_MB, 'the engine itself has not grown with them')
})

test('a message of megabytes goes through between small ones', async () => {
  const big = JSON.stringify({ record: { id: 2, text: 'y'.repeat(6 * MB) }, changes: null, action: 'insert', metadata: {} })
  const small = (id: number) => JSON.stringify({ record: { id }, changes: null, action: 'insert', metadata: {} })
  const outcome = await shared.run([fn('export default (a, r) => (r.text ?? "").length')], batchOf([small(1), big, small(3)]))
  assert.deepEqual([0, 1, 2].map((i) => outcome.resultText(0, i)), ['0', String(6 * MB), '0']) // prettier-ignore
})

test('a large result stands alone and is freed when its reader is done; small ones share an answer that is left to the collector', async () => {
  const outcome = await shared.run(
    [fn("export default (a, r) => 'x'.repeat(r.id)")],
    batch([500_000, 10, 1_500_000, 20, 30].map((id) => ({ record: { id } }))),
  )
  const [, , large, small, other] = Array.from({ length: outcome.count }, (_, i) => outcome.result(0, i))
  assert.deepEqual([small?.done, other?.done], [undefined, undefined])
  assert.equal(small?.text, other?.text)
  assert.equal(large?.done, undefined, 'it shares its answer with those before it')
  const alone = await shared.run(
    [fn("export default (a, r) => 'y'.repeat(r.id)")],
    batch([1_500_000, 10].map((id) => ({ record: { id } }))),
  )
  const [first, second] = [alone.result(0, 0), alone.result(0, 1)]
  const held = heldResults.bytes
  first.done?.()
  assert.equal(first.text.buffer.byteLength, 0)
  assert.ok(heldResults.bytes <= held - 1_500_000)
  assert.equal(second.text.toString('utf8', second.start, second.end), `"${'y'.repeat(10)}"`)
})

test('results of 4 MB for each message are held a few at a time, and every message has its turn', async (t) => {
  const count = LONG ? 1_000 : 120
  const text = JSON.stringify({ record: {}, changes: null, action: 'insert', metadata: {} })
  const large = fn("const text = 'é'.repeat(2e6)\nexport default () => text")
  const before = (await resident()).engine
  let largest = 0
  const looking = setInterval(() => (largest = Math.max(largest, process.memoryUsage.rss() / MB)), 20).unref()
  let runs = 0
  for (let done = 0; done < count; runs++) {
    const outcome = await shared.run([large], batchOf(Array.from({ length: count - done }, () => text)))
    assert.equal(outcome.failures.size, 0)
    const [first] = outcome.states
    assert.equal(first, STATE.kept)
    const left = outcome.states.indexOf(STATE.left)
    const run = left < 0 ? outcome.count : left
    for (let i = 0; i < run; i++) assert.equal(outcome.result(0, i).end - outcome.result(0, i).start, 4_000_002)
    done += run
  }
  clearInterval(looking)
  t.diagnostic(`${runs} runs, at most ${(largest - before).toFixed(0)} MB more`)
  assert.ok(largest < before + 300, `it has grown by ${(largest - before).toFixed(0)} MB`)
})
