import assert from 'node:assert/strict'
import { test } from 'node:test'
import { commitFromText, commitToText } from '../../../engine/log/kafka/commit-text.ts'
import type { Commit, FinishedRange } from '../../../engine/log/log.ts'
import fc from '../../services/fast-check.ts'
import { Random } from '../../faults/random.ts'

const plain = <T>(model: { [K in keyof T]: fc.Arbitrary<T[K]> }) => fc.record(model, { noNullPrototype: true })
const ref = plain({ offset: fc.integer({ min: 0, max: 2 ** 48 }), index: fc.integer({ min: 0, max: 2 ** 31 }) })
const commits: fc.Arbitrary<Commit> = fc
  .record({
    next: ref,
    accepted: plain({
      history: fc.integer({ min: 0, max: 1000 }),
      lsn: fc.bigInt({ min: 0n, max: 2n ** 64n - 1n }),
      idx: fc.integer({ min: -1, max: 2 ** 31 - 1 }),
      part: fc.constantFrom(0 as const, 1 as const),
    }),
    steps: fc.array(fc.tuple(fc.integer({ min: 0, max: 3 }), fc.integer({ min: 1, max: 500 })), { maxLength: 60 }),
    handedOut: ref,
    inFlight: fc.option(
      fc.array(
        fc.record(
          {
            message: ref,
            invisibleForMs: fc.integer({ min: 0, max: 10 ** 9 }),
            origin: plain({ generation: fc.integer({ min: 0, max: 99 }), partition: fc.integer({ min: 0, max: 99 }) }),
          },
          { requiredKeys: ['message', 'invisibleForMs'], noNullPrototype: true },
        ),
        { maxLength: 20 },
      ),
      { nil: undefined },
    ),
    term: fc.integer({ min: 0, max: 2 ** 40 }),
    parked: fc.option(fc.integer({ min: 0, max: 2 ** 40 }), { nil: undefined }),
  })
  .map(({ steps, inFlight, parked, ...rest }) => {
    let { offset, index } = rest.next
    const places = steps.map(([records, indexes]) => {
      index = records > 0 ? indexes : index + indexes
      offset += records
      return { offset, index }
    })
    const finished: FinishedRange[] = []
    for (let i = 0; i + 1 < places.length; i += 2) finished.push({ from: places[i], to: places[i + 1] } as FinishedRange)
    return { ...rest, finished, ...(inFlight ? { inFlight } : {}), ...(parked === undefined ? {} : { parked }) }
  })

test('a commit comes back from its text as it was', () => {
  fc.assert(
    fc.property(commits, fc.integer({ min: 1, max: 2 ** 40 }), (commit, number) => {
      const { text, isWhole } = commitToText({ commit, number }, 100_000)
      assert.deepEqual(commitFromText(text, commit.next.offset), { commit, number, isWhole: true })
      assert.ok(isWhole)
    }),
  )
})

test('what is too long leaves out ranges and messages in flight, and says so', () => {
  fc.assert(
    fc.property(commits, (commit) => {
      const { text, isWhole } = commitToText({ commit, number: 1 }, 120)
      assert.ok(text.length <= 120, `${text.length} characters`)
      const told = commitFromText(text, commit.next.offset)
      assert.equal(told?.isWhole, isWhole)
      const { inFlight: _, ...core } = { ...commit, finished: [] }
      assert.deepEqual(told?.commit, isWhole ? commit : core)
    }),
  )
})

test('half of 10,000 messages finished at random fit beside an offset in Kafka', () => {
  const finished: FinishedRange[] = []
  const random = new Random(1)
  for (let offset = 0; offset < 100; offset++)
    for (let index = 0; index < 100; index++) if (random.chance(0.5)) addTo(finished, offset, index)
  const next = { offset: 0, index: 0 }
  const accepted = { history: 0, lsn: 1n, idx: 0, part: 1 } as const
  const { text, isWhole } = commitToText(
    { commit: { next, accepted, finished, handedOut: { offset: 164, index: 0 }, term: 7 }, number: 9 },
    4_096,
  )
  assert.ok(isWhole, `${finished.length} ranges`)
  assert.ok(text.length < 3_500, `${finished.length} ranges in ${text.length} characters`)
})

test("a text that isn't ours, or was cut, is not believed", () => {
  const accepted = { history: 0, lsn: 1n, idx: 0, part: 1 } as const
  const commit = { next: { offset: 5, index: 1 }, accepted, finished: [], handedOut: { offset: 5, index: 0 }, term: 7 }
  const { text } = commitToText({ commit, number: 9 }, 4_096)
  for (const other of ['', null, 'x', 'T', 'T1', '{"a":1}', text.slice(0, 8)])
    assert.equal(commitFromText(other, 5), undefined, String(other))
  assert.throws(() => commitFromText('T2AAAA', 5), { code: 'LOG_TOO_NEW' })
})

function addTo(ranges: FinishedRange[], offset: number, index: number): void {
  const last = ranges.at(-1)
  if (last?.to.offset === offset && last.to.index === index)
    ranges[ranges.length - 1] = { from: last.from, to: { offset, index: index + 1 } }
  else ranges.push({ from: { offset, index }, to: { offset, index: index + 1 } })
}
