/** Single cases that random schedules meet too seldom. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { AckPending } from '../../../engine/dispatch/ack-pending.ts'
import { refsOf } from '../../../engine/dispatch/batch.ts'
import { commitPoint, committed, wantsCommit, wantsCommitAt } from '../../../engine/dispatch/commits.ts'
import {
  countInFlight,
  countUnfinished,
  dispose,
  hasRoom,
  newDispatcher,
  type Dispatcher,
  type DispatcherOptions,
  type DispatchSettings,
} from '../../../engine/dispatch/dispatcher.ts'
import { chooseToLoad, groupLoaded } from '../../../engine/dispatch/parked/parked-groups.ts'
import { deliveriesOf, fail, finish, lapse, nextLapse, release } from '../../../engine/dispatch/ends.ts'
import { offer } from '../../../engine/dispatch/intake.ts'
import { isStuck, moved, nextOf, notMoved, parkedEnded, parkedFailed, toPark } from '../../../engine/dispatch/parked/parking.ts'
import { mayDeliver, take } from '../../../engine/dispatch/take.ts'
import { ReadMemory } from '../../../engine/dispatch/read-memory.ts'
import type { Commit } from '../../../engine/log/log.ts'
import { PackBuilder } from '../../../engine/log/pack-builder.ts'
import { ACTION, MESSAGE_FLAG, Pack } from '../../../engine/log/pack.ts'
import { MESSAGE_LONGEST_JITTERED_MS } from '../../../engine/back-off.ts'
import { ORIGIN, PART, type Part } from '../../../engine/position.ts'

type Message = Readonly<{ group: number; part?: Part; bytes?: number; tooLarge?: boolean }>
const ANY = { max: Infinity, overhead: 0, first: true }

const settings: DispatchSettings = { ackWaitMs: 1_000, maxDeliveries: null, windowBytes: 1 << 30 }
const options = { generation: 1, partition: 0, grouping: true, keyed: false, pending: new AckPending(1_000_000) }

class Bench {
  now = 0
  readonly pending: AckPending
  readonly dispatcher: Dispatcher
  #lsn = 0
  #offset = 0

  constructor(other: Partial<DispatchSettings> = {}, more: Partial<DispatcherOptions> & { maxPending?: number } = {}) {
    this.pending = new AckPending(more.maxPending ?? 1_000_000)
    this.dispatcher = newDispatcher({
      ...{ ...options, settings: { ...settings, ...other }, pending: this.pending },
      restore: { commit: undefined, head: 0, parkedRefs: { offsets: [], indexes: [] }, parkedGroups: [] },
      clock: () => this.now,
      ...more,
    })
    this.commit()
  }
  /** of a message, whichever */
  view = Pack.decode(new PackBuilder({ history: 0, term: 1, routing: 1 }).encode())
  offer(messages: readonly Message[], drops?: Uint8Array): void {
    this.view = packOf(++this.#lsn, messages)
    offer(this.dispatcher, this.#offset++, this.view, drops)
  }
  commit() {
    const commit = commitPoint(this.dispatcher, 1)
    committed(this.dispatcher, commit)
    return commit
  }
  /** @returns "offset.index" of each message handed out */
  take(max = 1_000): string[] {
    const batch = take(this.dispatcher, max, ANY)
    return (batch?.messages ?? []).map(({ offset, index }) => `${offset}.${index}`)
  }
  finish(...names: string[]) {
    return finish(this.dispatcher, refs(names))
  }
}
function packOf(lsn: number, messages: readonly Message[]): Pack {
  const builder = new PackBuilder({ history: 0, term: 1, routing: 1 })
  builder.begin(BigInt(lsn), 1, 0)
  for (const [idx, { group, part = PART.row, bytes = 10, tooLarge }] of messages.entries()) {
    builder.bodies.ascii(tooLarge ? '"bytes":99,"metadata":{"table_name":"t"' : 'b'.repeat(bytes))
    const flags = (tooLarge ? MESSAGE_FLAG.discarded : 0) | (part === PART.tombstone ? MESSAGE_FLAG.tombstone : 0)
    builder.add(idx, part, ACTION.insert, 1, flags, group, 0, 0)
  }
  return Pack.decode(builder.encode())
}
const refs = (names: readonly string[]) => ({
  offsets: names.map((n) => Number(n.split('.')[0])),
  indexes: names.map((n) => Number(n.split('.')[1])),
})
const messages = (count: number, group = (i: number) => i): Message[] => Array.from({ length: count }, (_, i) => ({ group: group(i) }))

test('nothing is handed out beyond what a durable commit promised', () => {
  const bench = new Bench()
  for (let i = 0; i < 5; i++) bench.offer(messages(1_000, (n) => i * 1_000 + n))
  const first = bench.take(10_000) // the first commit promised 8 records beyond an empty log
  assert.equal(first.length, 5_000)
  for (let i = 5; i < 80; i++) bench.offer(messages(1_000, (n) => i * 1_000 + n))
  const promised = bench.take(100_000)
  assert.equal(promised.length, 3_000, 'up to record 8')
  assert.deepEqual(bench.take(), [])
  assert.equal(mayDeliver(bench.dispatcher), false)
  assert.equal(wantsCommit(bench.dispatcher), true)
  const { handedOut } = bench.commit()
  assert.deepEqual(handedOut, { offset: 10, index: 0 }, '2,000 messages further')
  assert.equal(bench.take(100_000).length, 2_000)
})

test('in a quiet log the promise ends at the read head, and what comes then waits for the next commit', () => {
  const bench = new Bench()
  bench.offer(messages(3))
  assert.equal(bench.take().length, 3)
  bench.commit()
  assert.equal(wantsCommit(bench.dispatcher), false)
  bench.now = wantsCommitAt(bench.dispatcher)
  assert.ok(bench.now <= 200, 'soon')
  assert.equal(wantsCommit(bench.dispatcher), true)
  const commit = bench.commit()
  assert.deepEqual(commit.handedOut, { offset: 1, index: 0 })
  assert.deepEqual([wantsCommit(bench.dispatcher), wantsCommitAt(bench.dispatcher)], [false, Infinity], 'once')
  bench.offer(messages(1, () => 7))
  assert.deepEqual(bench.take(), [])
  const restore = { commit, head: 2, parkedRefs: { offsets: [], indexes: [] }, parkedGroups: [] }
  const next = new Bench({}, { restore }) // killed before the commit
  next.offer(messages(3))
  next.offer(messages(1, () => 7))
  assert.deepEqual(next.take(), ['1.0'], 'the others may be with clients')
  bench.commit()
  assert.deepEqual(bench.take(), ['1.0'])
})

test('a restart after a crash promises no less than what may have been handed out: what was promised and there', () => {
  const commit = { ...new Bench().commit(), handedOut: { offset: 500, index: 3 } }
  const restored = (head: number) =>
    new Bench({}, { restore: { commit, head, parkedRefs: { offsets: [], indexes: [] }, parkedGroups: [] } })
  assert.deepEqual(restored(600).commit().handedOut, { offset: 500, index: 3 })
  assert.deepEqual(restored(200).commit().handedOut, { offset: 200, index: 0 })
})

test('messages that arrive after a take-over are not taken for handed out, although they lie below the old promise', () => {
  const commit = { ...new Bench().commit(), handedOut: { offset: 64, index: 0 } }
  const bench = new Bench({}, { restore: { commit, head: 1, parkedRefs: { offsets: [], indexes: [] }, parkedGroups: [] } })
  bench.offer(messages(1))
  bench.offer(messages(1, () => 7))
  assert.deepEqual(bench.take(), ['1.0'], 'record 0 was there before and may be with a client')
  bench.finish('1.0')
  bench.now = 1_000
  assert.deepEqual(bench.take(), ['0.0'])
})

test('a partition that moves on before anything was read or handed out still knows what is with clients, and for how long', () => {
  const first = new Bench()
  for (let i = 0; i < 3; i++) first.offer(messages(1, () => i))
  assert.deepEqual(first.take(2), ['0.0', '1.0'])
  first.now = 300
  const stopped = commitPoint(first.dispatcher, 1, true)
  const restore = { head: 3, parkedRefs: { offsets: [], indexes: [] }, parkedGroups: [] }
  const second = newDispatcher({ ...options, settings, clock: () => 5_000, restore: { ...restore, commit: stopped } })
  const taken = commitPoint(second, 2, true)
  committed(second, taken)
  assert.deepEqual(taken.inFlight, stopped.inFlight)
  offer(second, 0, packOf(1, [{ group: 0 }]))
  assert.equal(take(second, 10, ANY), undefined, 'the take-over has promised nothing')
  assert.equal(wantsCommit(second), true)
  const left = commitPoint(second, 2, true) // it has read one record, and stops
  assert.deepEqual(left.inFlight?.map(({ message, invisibleForMs }) => [message.offset, invisibleForMs]).sort(), [
    [0, 700],
    [1, 700],
  ])
  const third = new Bench({}, { restore: { ...restore, commit: left } })
  for (let i = 0; i < 3; i++) third.offer(messages(1, () => i))
  assert.deepEqual(third.take(), ['2.0'])
  third.now = 700
  assert.deepEqual(third.take(), ['0.0', '1.0'])
})

test('an ack of a message that the new owner has not read yet is refused for now', () => {
  const commit = { ...new Bench().commit(), handedOut: { offset: 64, index: 0 } }
  const bench = new Bench({}, { restore: { commit, head: 2, parkedRefs: { offsets: [], indexes: [] }, parkedGroups: [] } })
  assert.equal(bench.finish('0.0').early, true)
  bench.offer(messages(1))
  assert.deepEqual([bench.finish('0.0').early, bench.finish('0.0').finished, bench.finish('1.0').early], [false, 0, true])
  assert.deepEqual(bench.commit().next, { offset: 1, index: 0 })
})

test('a message that was never delivered can not be acked', () => {
  const bench = new Bench()
  bench.offer(messages(3))
  assert.equal(bench.finish('0.0', '0.2', '5.0', '0.99', '0.0').finished, 0)
  assert.deepEqual(bench.take(), ['0.0', '0.1', '0.2'])
  assert.equal(bench.finish('0.1', '0.1').finished, 1, 'once')
})

test('the byte bound lets one message through, whatever its size, and counts what the answer adds', () => {
  const bench = new Bench()
  bench.offer([
    { group: 1, bytes: 500 },
    { group: 2, bytes: 40 },
    { group: 3, bytes: 40 },
    { group: 4, bytes: 40 },
  ])
  const bytes = { max: 100, overhead: 10, first: true }
  assert.equal(take(bench.dispatcher, 10, bytes)?.messages.length, 1)
  assert.equal(take(bench.dispatcher, 10, bytes)?.messages.length, 2, '2 × (40 + 10)')
  assert.equal(take(bench.dispatcher, 10, { ...bytes, max: 20, first: false }), undefined, 'another partition has filled the answer')
  assert.equal(take(bench.dispatcher, 10, bytes)?.messages.length, 1)
})

test('max_ack_pending lets only redeliveries through, and counts returned messages', () => {
  const bench = new Bench({}, { maxPending: 2 })
  bench.offer(messages(4))
  assert.deepEqual(bench.take(), ['0.0', '0.1'])
  release(bench.dispatcher, refs(['0.1']))
  assert.deepEqual(bench.take(), ['0.1'])
  bench.now = 1_000
  assert.deepEqual(bench.take(), ['0.0', '0.1'])
  bench.finish('0.0')
  assert.deepEqual(bench.take(), ['0.2'])
  assert.equal(bench.pending.count, 2)
  dispose(bench.dispatcher)
  assert.equal(bench.pending.count, 0)
})

test('a message delivered max_retry_count times is taken out to be discarded, and its group goes on', () => {
  const bench = new Bench({ maxDeliveries: 2 })
  bench.offer(messages(2, () => 1))
  assert.deepEqual(bench.take(), ['0.0'])
  bench.now = 1_000
  assert.deepEqual(bench.take(), ['0.0'])
  bench.now = 2_000
  assert.deepEqual(bench.take(), [], 'it lapsed for the second time, and is not recorded yet')
  const { dispatcher } = bench
  const moves = nextOf(dispatcher.discards)
  assert.deepEqual(
    moves.map(({ offset, index, kind, deliveries }) => ({ offset, index, kind, deliveries })),
    [{ offset: 0, index: 0, kind: 'discard', deliveries: 2 }],
  )
  assert.deepEqual(bench.commit().next, { offset: 0, index: 0 }, 'not finished before its record is durable')
  notMoved(dispatcher, moves)
  bench.now = 3_000
  assert.deepEqual(bench.take(), [])
  moved(dispatcher, nextOf(dispatcher.discards))
  assert.deepEqual(bench.take(), ['0.1'])
  assert.deepEqual(bench.commit().next, { offset: 0, index: 1 })
  assert.equal(bench.pending.count, 1)
})

test('a returned message is not discarded: only a visibility time that lapses counts', () => {
  const bench = new Bench({ maxDeliveries: 1 })
  bench.offer(messages(1))
  bench.take()
  release(bench.dispatcher, refs(['0.0']))
  assert.deepEqual(bench.take(), ['0.0'])
})

test('what comes back and no client has had counts as no delivery, in the window and parked', () => {
  const bench = new Bench()
  const { dispatcher, pending } = bench
  bench.offer(messages(1))
  for (let time = 0; time < 3; time++) {
    const { lease } = take(dispatcher, 1, ANY) ?? {}
    assert.equal(deliveriesOf(dispatcher, 0, 0), 1)
    release(dispatcher, refs(['0.0']), { lease, isUnseen: true })
    assert.equal(pending.count, 0)
  }
  bench.take()
  fail(dispatcher, [{ offset: 0, index: 0, failed: { attempts: 1, retryInMs: 0, error: 'no', record: {} } }])
  moved(dispatcher, nextOf(dispatcher.failures))
  lapse(dispatcher, ++bench.now)
  for (let time = 0; time < 3; time++) {
    const [group] = chooseToLoad(dispatcher.parked, 10)
    if (group) groupLoaded(dispatcher.parked, group, { offset: 0, index: 0, view: bench.view })
    const { lease } = take(dispatcher, 1, ANY) ?? {}
    assert.equal(deliveriesOf(dispatcher, 0, 0), 2)
    assert.equal(release(dispatcher, refs(['0.0']), { lease, isUnseen: true }).messages, 1)
  }
})

test('tombstones are finished at once by a sink without keys, and delivered by one with keys', () => {
  const both: Message[] = [{ group: 1, part: PART.tombstone }, { group: 2 }]
  const pull = new Bench()
  pull.offer(both)
  assert.deepEqual(pull.take(), ['0.1'])
  const keyed = new Bench({}, { keyed: true })
  keyed.offer(both)
  assert.deepEqual(keyed.take(), ['0.0', '0.1'])
})

test('tombstones between finished messages split no range', () => {
  const bench = new Bench()
  bench.offer([{ group: 1 }, { group: 2 }, { group: 3, part: PART.tombstone }, { group: 4 }, { group: 5, part: PART.tombstone }])
  assert.deepEqual(bench.take(), ['0.0', '0.1', '0.3'])
  bench.finish('0.1', '0.3')
  assert.deepEqual(bench.commit().finished, [{ from: { offset: 0, index: 1 }, to: { offset: 0, index: 5 } }])
})

test('no visibility time is waited for when everything was acked or returned', () => {
  const bench = new Bench()
  bench.offer(messages(3))
  bench.take(2)
  assert.equal(nextLapse(bench.dispatcher), 1_000)
  bench.finish('0.0')
  assert.equal(nextLapse(bench.dispatcher), 1_000)
  release(bench.dispatcher, refs(['0.1']))
  assert.equal(nextLapse(bench.dispatcher), Infinity)
})

test('a shorter visibility time holds for what is handed out from then on', () => {
  const bench = new Bench()
  bench.offer(messages(2))
  bench.take(1)
  bench.dispatcher.settings = { ...bench.dispatcher.settings, ackWaitMs: 500 }
  bench.take(1)
  bench.now = 500
  assert.deepEqual(bench.take(), ['0.1'])
  bench.now = 1_000
  assert.deepEqual(bench.take(), ['0.0', '0.1'])
})

test('a full window is parked from below only when nothing in it can be delivered and max_ack_pending is not reached', () => {
  const bench = new Bench({ windowBytes: 4_000 }, { maxPending: 60 })
  while (hasRoom(bench.dispatcher)) bench.offer(messages(10, () => 1))
  const { dispatcher } = bench
  assert.deepEqual(toPark(dispatcher), [], 'a backlog that nobody reads stays in the log')
  assert.deepEqual(bench.take(), ['0.0'])
  bench.pending.max = 1
  assert.deepEqual(toPark(dispatcher), [], 'at max_ack_pending reading on would not help')
  bench.pending.max = 60
  const moves = toPark(dispatcher)
  assert.ok(moves.length > 1)
  notMoved(dispatcher, moves)
  assert.equal(bench.pending.count, 1)
  moved(dispatcher, toPark(dispatcher))
  assert.equal(hasRoom(bench.dispatcher), true)
  assert.equal(bench.dispatcher.parked.openRows, moves.length)
  bench.offer(messages(1, () => 2))
  assert.deepEqual(bench.take(), [`${bench.dispatcher.window.nextOffset - 1}.0`], 'another group goes on')
})

test('a giveBack of an old answer does not take a message from the client that has it now', () => {
  const bench = new Bench()
  bench.offer(messages(1))
  const old = take(bench.dispatcher, 1, ANY)
  assert.ok(old)
  bench.now = 1_000
  assert.deepEqual(bench.take(), ['0.0'])
  assert.equal(release(bench.dispatcher, refsOf(old.messages), { lease: old.lease }).messages, 0)
  assert.deepEqual(bench.take(), [])
})

test('what failed and was parked while messages before it are open is found there by its end and its return, and counts as pending no more', () => {
  for (const sends of [false, true]) {
    const bench = new Bench({}, { sends })
    const { dispatcher, pending } = bench
    bench.offer(messages(3))
    bench.take()
    const failed = { attempts: 1, retryInMs: 100, error: 'no', record: {} }
    fail(dispatcher, [{ offset: 0, index: 1, failed }])
    moved(dispatcher, nextOf(dispatcher.failures))
    assert.equal(pending.count, 2)
    const again = () => {
      bench.now += 100
      lapse(dispatcher, bench.now)
      const [group] = chooseToLoad(dispatcher.parked, 10)
      assert.ok(group)
      groupLoaded(dispatcher.parked, group, { offset: 0, index: 1, view: bench.view })
      const batch = take(dispatcher, 10, ANY, sends ? 'failed' : 'all')
      assert.deepEqual(batch?.messages.map(({ index }) => index), [1]) // prettier-ignore
      assert.equal(deliveriesOf(dispatcher, 0, 1), sends ? 1 : 2)
      assert.equal(pending.count, 3)
    }
    again()
    parkedFailed(dispatcher, { offset: 0, index: 1 }, 1, bench.now + 100)
    assert.equal(pending.count, 2)
    again()
    assert.deepEqual(bench.finish('0.1').elsewhere, refs(['0.1']))
    assert.equal(release(dispatcher, refs(['0.1'])).messages, 1)
  }
})

test('what a filter drops as it is read is finished, nobody’s delivery, and held by nothing', () => {
  const bench = new Bench()
  bench.offer(
    messages(4, () => 7),
    Uint8Array.of(1, 0, 1, 0),
  )
  assert.deepEqual(bench.take(), ['0.1'])
  bench.finish('0.1')
  assert.deepEqual(bench.take(), ['0.3'])
  bench.finish('0.3')
  bench.offer(messages(2), Uint8Array.of(1, 1))
  assert.deepEqual(bench.take(), [])
  assert.deepEqual(bench.commit().next, { offset: 2, index: 0 })
  assert.equal(countUnfinished(bench.dispatcher), 0)
})

test('a message that was too large to be kept is given up as it is read, also when it may be with a client, and its group goes on', () => {
  const bench = new Bench()
  bench.offer([{ group: 1 }, { group: 1, tooLarge: true }, { group: 1 }])
  bench.offer([{ group: 2, tooLarge: true }])
  bench.commit()
  const { dispatcher } = bench
  const moves = nextOf(dispatcher.failures)
  assert.deepEqual(
    moves.map(({ offset, index, kind, failed }) => [offset, index, kind, failed?.error]),
    [
      [0, 1, 'discard', 'the message has 99 bytes, more than MAX_MESSAGE_MB allows'],
      [1, 0, 'discard', 'the message has 99 bytes, more than MAX_MESSAGE_MB allows'],
    ],
  )
  assert.deepEqual(bench.take(), ['0.0'])
  bench.finish('0.0')
  assert.deepEqual(bench.take(), ['0.2'], 'not on record yet, and not in the way')
  dispatcher.failures.unshift(...moves)
  assert.equal(nextOf(dispatcher.failures).length, 2, 'until it is recorded')
  moved(dispatcher, moves)
  bench.finish('0.2')
  assert.deepEqual(bench.commit().next, { offset: 2, index: 0 })
  assert.equal(bench.pending.count, 0)

  const again = new Bench(
    {},
    {
      restore: {
        commit: { next: { offset: 0, index: 0 }, accepted: ORIGIN, finished: [], handedOut: { offset: 9, index: 0 }, term: 1 },
        head: 9,
        parkedRefs: { offsets: [1], indexes: [0] },
        parkedGroups: [],
      },
    },
  )
  again.offer([{ group: 1 }, { group: 1, tooLarge: true }, { group: 1 }])
  again.offer([{ group: 2, tooLarge: true }])
  const left = nextOf(again.dispatcher.failures)
  assert.deepEqual(
    left.map(({ offset, index }) => [offset, index]),
    [[0, 1]],
    'the other one is on record',
  )
  moved(again.dispatcher, left)
  assert.equal(again.pending.count, 2, 'those that may be with clients of the former owner')
})

test('an owner that sends batches has several of a group in one; one that sends messages one by one has one of each group', () => {
  for (const [perGroup, first, rest] of [
    [100, ['0.0', '0.1', '0.2', '0.3'], []],
    [1, ['0.0', '0.2'], ['0.1', '0.3']],
  ] as const) {
    const bench = new Bench({ perGroup }, { sends: true })
    bench.offer(messages(4, (i) => Math.floor(i / 2)))
    assert.deepEqual(bench.take(), first)
    assert.deepEqual(bench.take(), [])
    bench.finish(...first)
    assert.deepEqual(bench.take(), rest)
    bench.offer(messages(2, () => 7))
    bench.finish(...rest)
    assert.equal(bench.take().length, perGroup === 1 ? 1 : 2)
    assert.equal(bench.take().length, 0)
  }
})

test('without a commit nothing up to where the generation opens is accepted', () => {
  const opensAt = { history: 0, lsn: 2n, idx: 1, part: PART.row }
  const restore = { commit: undefined, head: 0, parkedRefs: { offsets: [], indexes: [] }, parkedGroups: [], opensAt }
  const bench = new Bench({}, { restore })
  bench.offer(messages(3)) // at position 1
  bench.offer(messages(3))
  bench.offer(messages(1))
  assert.deepEqual(bench.take(), ['1.2', '2.0'])
})

test('a next try that was stored by a clock ahead of ours holds its message no longer than the longest back-off', () => {
  const failed = { key: 1, offset: 0, index: 0, open: 1, deliveries: 1, commitTimeUs: 0 }
  const parkedRefs = { offsets: [0], indexes: [0] }
  const wanted = (hiddenMs: number, atMs: number) => {
    const restore = { commit: undefined, head: 1, parkedRefs, parkedGroups: [{ ...failed, hiddenMs }] }
    const bench = new Bench({}, { sends: true, restore })
    bench.now = atMs
    lapse(bench.dispatcher, atMs)
    return bench.dispatcher.parked.toLoad.size > 0
  }
  assert.deepEqual([wanted(60_000, 59_999), wanted(60_000, 60_000)], [false, true])
  const aYear = 365 * 86_400_000
  assert.deepEqual([wanted(aYear, MESSAGE_LONGEST_JITTERED_MS - 1), wanted(aYear, MESSAGE_LONGEST_JITTERED_MS)], [false, true])
})

test('what a former owner finished stays finished, although the filter of its next one drops it and that of the one after doesn’t', () => {
  const first = new Bench()
  first.offer(messages(3))
  assert.deepEqual(first.take(), ['0.0', '0.1', '0.2'])
  first.finish('0.1')
  const restart = (commit: Commit, drops?: Uint8Array) => {
    const restore = { commit, head: 1, parkedRefs: { offsets: [], indexes: [] }, parkedGroups: [] }
    const bench = new Bench({}, { restore })
    bench.offer(messages(3), drops)
    return bench
  }
  const { finished } = first.commit()
  const second = restart(first.commit(), Uint8Array.of(0, 1, 0))
  assert.deepEqual(second.commit().finished, finished)
  const third = restart(second.commit())
  third.now = settings.ackWaitMs
  assert.deepEqual(third.take(), ['0.0', '0.2'])
})

const KB = 1024
const MB = 1024 * KB
/** Takes in packs of 64 kB for as long as there is room. */
function fill(b: Bench): void {
  for (let group = 0; hasRoom(b.dispatcher); group++)
    b.offer(Array.from({ length: 16 }, (_, i) => ({ group: group * 16 + i, bytes: 4 * KB })))
}

test('while nobody asks about an answer is read ahead, the rest when somebody does, and about an answer again when nobody has for a while', () => {
  const b = new Bench()
  fill(b)
  assert.ok(b.dispatcher.window.bytes < 768 * KB, `${b.dispatcher.window.bytes}`)
  assert.equal(b.take(64).length, 64)
  fill(b)
  assert.ok(b.dispatcher.window.freshBytes > 3 * MB, `${b.dispatcher.window.freshBytes}`)
  while (b.dispatcher.window.freshBytes > 100 * KB) {
    b.commit()
    b.finish(...b.take(16))
  }
  b.now += 60_000
  fill(b)
  assert.ok(b.dispatcher.window.freshBytes < 768 * KB, `${b.dispatcher.window.freshBytes}`)
})

test('what partitions hold together has one bound: above it each holds a little, parks what blocks that, and goes on', () => {
  const memory = new ReadMemory(6 * MB)
  const two = [new Bench({}, { memory }), new Bench({}, { memory })] as const
  for (let i = 0; i < 40; i++) {
    for (const b of two) {
      b.commit()
      b.take(100) // held by a client that does not acknowledge
      fill(b)
    }
  }
  assert.ok(memory.isFull && memory.bytes < 8 * MB, `${memory.bytes}`)
  const late = new Bench({}, { memory })
  fill(late)
  assert.ok(late.dispatcher.window.bytes > 0 && memory.bytes < 9 * MB, `${memory.bytes}`)
  const [one] = two
  const { dispatcher } = one
  one.commit()
  one.take()
  assert.ok(!hasRoom(one.dispatcher) && isStuck(dispatcher))
  for (let turn = 0; turn < 100 && isStuck(dispatcher); turn++) moved(dispatcher, toPark(dispatcher))
  assert.ok(hasRoom(one.dispatcher))
  for (const b of [...two, late]) dispose(b.dispatcher)
  assert.equal(memory.bytes, 0)
})

test('messages that are ended in a row are those that were named: never the first of the next record, nor one of another delivery', () => {
  const bench = new Bench()
  bench.offer(messages(3))
  bench.offer(messages(3, (i) => 10 + i))
  assert.deepEqual([bench.take(2), bench.take(2), bench.take(2)], [['0.0', '0.1'], ['0.2', '1.0'], ['1.1', '1.2']]) // prettier-ignore
  const { finished } = bench.finish('0.1', '0.2', '0.3', '0.4', '1.1', '1.2', '1.3')
  assert.equal(finished, 4)
  assert.deepEqual([countInFlight(bench.dispatcher), bench.pending.count], [2, 2])
  bench.now = 1_001
  assert.deepEqual(bench.take(), ['0.0', '1.0'], 'what was not named comes again')
})

test('an owner that sends can not tell the end of what is not in its hands: an end that would find nothing is an error, and one of a client is ignored', () => {
  const failed = { attempts: 1, retryInMs: 100, error: 'no', record: {} }
  for (const sends of [true, false]) {
    const bench = new Bench({}, { sends })
    const { dispatcher } = bench
    bench.offer(messages(2, () => 7))
    const ends = [
      () => bench.finish('0.0'),
      () => bench.finish('3.0'),
      () => release(dispatcher, refs(['0.1'])),
      () => fail(dispatcher, [{ offset: 0, index: 0, failed }]),
    ]
    for (const end of ends)
      if (sends)
        assert.throws(end, { code: 'INTERNAL', message: /^message \d\.\d ended without being in flight: it is (untouched|unknown)$/ })
      else end()
    assert.deepEqual(bench.take(), ['0.0'], 'nothing has ended')
    assert.equal(bench.finish('0.0').finished, 1)
    assert.equal(bench.finish('0.0').finished, 0, 'somebody may have ended it by hand meanwhile')
  }
})

test('the end of a parked message that the reader has not come to yet is found in the store, and is an error if the store had none', () => {
  const parkedGroups = [{ key: 1, offset: 3, index: 0, open: 1, deliveries: 0, commitTimeUs: 0 }]
  const restore = { commit: undefined, head: 9, parkedRefs: refs(['3.0']), parkedGroups }
  const bench = new Bench({}, { sends: true, restore })
  assert.deepEqual(bench.finish('3.0').elsewhere, refs(['3.0']))
  assert.throws(() => bench.finish('3.1'), { code: 'INTERNAL' })
})

test('messages of a group that are parked while they are being sent stay in hand until each has ended, and one that failed waits for its time', () => {
  const bench = new Bench({ perGroup: 2, windowBytes: 1 }, { sends: true })
  const { dispatcher } = bench
  bench.offer(messages(2, () => 7))
  assert.deepEqual(bench.take(), ['0.0', '0.1'])
  moved(dispatcher, toPark(dispatcher))
  parkedEnded(dispatcher, [{ key: 7, offset: 0, index: 0 }])
  assert.deepEqual(chooseToLoad(dispatcher.parked, 10), [], 'the second one is being sent')
  const second = { offset: 0, index: 1, failed: { attempts: 1, retryInMs: 100, error: 'no', record: {} } }
  assert.deepEqual(fail(dispatcher, [second]), [second], 'the store has it')
  parkedFailed(dispatcher, { offset: 0, index: 1 }, 1, 100)
  assert.deepEqual([chooseToLoad(dispatcher.parked, 10).length, nextLapse(dispatcher)], [0, 100])
  lapse(dispatcher, 100)
  assert.equal(chooseToLoad(dispatcher.parked, 10).length, 1)
})
