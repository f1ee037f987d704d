import assert from 'node:assert/strict'
import { test } from 'node:test'
import { EngineError, type ErrorCode } from '../../../engine/errors.ts'
import {
  decideStart,
  historyAt,
  parseTimelineHistory,
  succession,
  type Incarnation,
  type StartFacts,
  type System,
} from '../../../engine/wal/history.ts'

const ID = '7300000000000000001'
const one: Incarnation = { history: 0, systemIdentifier: ID, timeline: 1, beginsAt: 0n }
const system = (timeline: number, ancestors: System['ancestors'] = [], over: Partial<System> = {}): System => ({
  systemIdentifier: ID,
  timeline,
  flushedLsn: 10_000n,
  ancestors,
  ...over,
})
const facts = (over: Partial<StartFacts>): StartFacts => ({
  database: 'shop',
  slot: 's',
  saved: 500n,
  slotConfirmed: 500n,
  known: [one],
  system: system(1),
  durableLsn: undefined,
  isElsewhere: false,
  acceptedGap: undefined,
  ...over,
})
const fails = (code: ErrorCode) => (error: unknown) => error instanceof EngineError && error.code === code

test('the first contact is history 0 from the beginning, whatever the timeline', () => {
  assert.deepEqual(succession([], system(3, [{ timeline: 1, endsAt: 5n }])).added, [
    { history: 0, systemIdentifier: ID, timeline: 3, beginsAt: 0n },
  ])
})

test('the same timeline adds nothing', () => {
  assert.deepEqual(succession([one], system(1)), { added: [], forkedAt: undefined, foreign: false })
})

test('a promoted standby begins the next history at the switch; what commits below keeps its number', () => {
  const { added, forkedAt } = succession([one], system(2, [{ timeline: 1, endsAt: 400n }]))
  assert.equal(forkedAt, 400n)
  assert.deepEqual(added, [{ history: 1, systemIdentifier: ID, timeline: 2, beginsAt: 400n }])
  const all = [one, ...added]
  assert.equal(historyAt(all, 399n), 0)
  assert.equal(historyAt(all, 400n), 1)
})

test('two switches while away give two histories', () => {
  const { added } = succession(
    [one],
    system(3, [
      { timeline: 1, endsAt: 400n },
      { timeline: 2, endsAt: 600n },
    ]),
  )
  assert.deepEqual(
    added.map((i) => [i.history, i.timeline, i.beginsAt]),
    [
      [1, 2, 400n],
      [2, 3, 600n],
    ],
  )
})

test('a sibling of a timeline we followed begins where the two pasts part', () => {
  const known = [one, { history: 1, systemIdentifier: ID, timeline: 2, beginsAt: 400n }]
  const earlier = succession(known, system(3, [{ timeline: 1, endsAt: 300n }]))
  assert.deepEqual(
    earlier.added.map((i) => [i.history, i.timeline, i.beginsAt]),
    [[2, 3, 300n]],
  )
  const later = succession(known, system(3, [{ timeline: 1, endsAt: 450n }])) // timeline 1 went on after our switch
  assert.deepEqual(
    later.added.map((i) => [i.history, i.timeline, i.beginsAt]),
    [
      [2, 1, 400n],
      [3, 3, 450n],
    ],
  )
  const all = [...known, ...earlier.added]
  assert.equal(historyAt(all, 299n), 0)
  assert.equal(historyAt(all, 350n), 2)
})

test('going back to the old primary after having followed the new one is a new history from the switch', () => {
  const known = [one, { history: 1, systemIdentifier: ID, timeline: 2, beginsAt: 400n }]
  const { added, forkedAt } = succession(known, system(1))
  assert.equal(forkedAt, 400n)
  assert.deepEqual(
    added.map((i) => [i.history, i.timeline, i.beginsAt]),
    [[2, 1, 400n]],
  )
})

test('another system identifier has nothing in common', () => {
  const { added, foreign } = succession([one], system(1, [], { systemIdentifier: '9' }))
  assert.ok(foreign)
  assert.deepEqual(added, [{ history: 1, systemIdentifier: '9', timeline: 1, beginsAt: 0n }])
})

test('a first start takes the position of the slot', () => {
  assert.equal(decideStart(facts({ saved: undefined, known: [], slotConfirmed: 77n })).confirmed, 77n)
})

test('a slot that forgot confirmations in a crash is told again only of what has come again', () => {
  const start = decideStart(facts({ slotConfirmed: 450n }))
  assert.equal(start.confirmed, 450n)
  assert.deepEqual(start.added, [])
})

test('a slot above what was saved is a gap, which names both positions and the command that accepts it', () => {
  assert.throws(
    () => decideStart(facts({ slotConfirmed: 501n })),
    (error) => {
      assert.ok(fails('SLOT_GAP')(error))
      assert.match((error as Error).message, /0\/1F4.*0\/1F5.*npx tailrace source accept-gap shop /s)
      return true
    },
  )
  assert.deepEqual(decideStart(facts({ slotConfirmed: 501n, acceptedGap: 501n })), {
    confirmed: 501n,
    added: [],
    gapAccepted: true,
    phantomsFrom: undefined,
  })
  assert.throws(() => decideStart(facts({ slotConfirmed: 502n, acceptedGap: 501n })), fails('SLOT_GAP'))
})

test('after a timeline switch a slot above the switch is a gap even below what was saved', () => {
  const switched = system(2, [{ timeline: 1, endsAt: 400n }])
  assert.throws(() => decideStart(facts({ system: switched, slotConfirmed: 450n })), fails('SLOT_GAP'))
  const start = decideStart(facts({ system: switched, slotConfirmed: 400n }))
  assert.equal(start.confirmed, 400n)
  assert.equal(start.phantomsFrom, 400n) // we had confirmed up to 500
})

test('a switch above everything received leaves no phantoms', () => {
  const start = decideStart(facts({ system: system(2, [{ timeline: 1, endsAt: 900n }]), slotConfirmed: 480n, durableLsn: 600n }))
  assert.equal(start.phantomsFrom, undefined)
  assert.equal(start.confirmed, 480n)
})

test('another server is always a gap until accepted', () => {
  const other = system(1, [], { systemIdentifier: '9' })
  assert.throws(() => decideStart(facts({ system: other, slotConfirmed: 10n })), fails('SLOT_GAP'))
  const accepted = decideStart(facts({ system: other, slotConfirmed: 10n, acceptedGap: 10n }))
  assert.equal(accepted.confirmed, 10n)
  assert.equal(accepted.added[0]?.history, 1)
})

test('a log that ends below what it had sent went back; accepted, it is a new history', () => {
  const back = system(1, [], { flushedLsn: 480n })
  assert.throws(() => decideStart(facts({ system: back, slotConfirmed: 300n })), fails('SOURCE_WENT_BACK'))
  const accepted = decideStart(facts({ system: back, slotConfirmed: 300n, acceptedGap: 300n }))
  assert.deepEqual(accepted.added, [{ history: 1, systemIdentifier: ID, timeline: 1, beginsAt: 300n }])
  assert.throws(() => decideStart(facts({ system: system(1, [], { flushedLsn: 550n }), durableLsn: 600n })), fails('SOURCE_WENT_BACK'))
  // written past its old end, as the run before has found out
  const grown = decideStart(facts({ slotConfirmed: 300n, acceptedGap: 300n }))
  assert.deepEqual(grown.added, accepted.added)
  assert.equal(grown.phantomsFrom, 300n)
})

test('a timeline history file is read line by line, comments aside', () => {
  assert.deepEqual(parseTimelineHistory('1\t0/3000148\tno recovery target specified\n\n# note\n2\t0/A000000\tbefore 2000-01-01\n'), [
    { timeline: 1, endsAt: 0x3000148n },
    { timeline: 2, endsAt: 0xa000000n },
  ])
})
