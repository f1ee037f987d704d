/**
 * The dispatcher beside a naive model of it: the model keeps one object a message, scans everything, and knows nothing of
 * windows, chains, heaps or parking. Every step is checked against it. The owner is one whose clients ask, or one that sends: then
 * nothing lapses, the owner tells the end of each delivery once, and what failed is parked until its next try.
 */
import assert from 'node:assert/strict'
import { AckPending } from '../../../engine/dispatch/ack-pending.ts'
import { refList, type RefList } from '../../../engine/dispatch/ack-id.ts'
import { commitPoint, committed } from '../../../engine/dispatch/commits.ts'
import { countInFlight, countUnfinished, hasRoom, newDispatcher, oldestUs, type Dispatcher } from '../../../engine/dispatch/dispatcher.ts'
import { fail, finish, lapse, release } from '../../../engine/dispatch/ends.ts'
import { offer } from '../../../engine/dispatch/intake.ts'
import { parkedFailed, moved, nextOf, notMoved, parkedEnded, toPark, type FailedMessage } from '../../../engine/dispatch/parked/parking.ts'
import { take, type Lane } from '../../../engine/dispatch/take.ts'
import { chooseToLoad, groupLoaded, refKey, type ParkedGroupFacts, type ParkedRef } from '../../../engine/dispatch/parked/parked-groups.ts'
import { compareRefs } from '../../../engine/dispatch/restored.ts'
import type { Commit, MessageRef } from '../../../engine/log/log.ts'
import { PackBuilder } from '../../../engine/log/pack-builder.ts'
import { ACTION, MESSAGE_FLAG, Pack } from '../../../engine/log/pack.ts'
import { ORIGIN, PART, comparePositions, type Part, type Position } from '../../../engine/position.ts'

type Written = Readonly<{ lsn: number; group: number; part: Part }>
type Known = {
  readonly ref: MessageRef
  readonly position: Position
  readonly group: number
  /** above the filter: not a repetition of the source */
  readonly accepted: boolean
  readonly tombstone: boolean
  done: boolean
  /** read by this owner while the sink's filter drops its group */
  isVoid: boolean
  /** for that it counts as done: it is not in the parked store */
  dropped: boolean
  /** invisible until then; Infinity: the owner sends it */
  until: number
  /** handed out at least once, ever */
  delivered: boolean
  /** counts against max_ack_pending */
  pending: boolean
}

type Row = { state: 'open' | 'done'; attempts: number; /** backs off until then */ until: number }
export type WorldOptions = Readonly<{
  grouping: boolean
  windowBytes: number
  maxPending: number
  sends?: boolean
  /** an owner that sends takes so many of a group together */
  perGroup?: number
}>

export const ACK_WAIT_MS = 1_000
const BACK_OFF_MS = 500
const UNBOUND = { max: Infinity, overhead: 0, first: true }

export class World {
  readonly grouping: boolean
  readonly #windowBytes: number
  readonly #maxPending: number
  readonly #perGroup: number
  readonly sends: boolean
  #now = 0
  /** of the group that the sink's filter drops; 0: it has none */
  #droppedGroup = 0
  #lsn = 0
  readonly #log: { pack: Buffer; known: Known[] }[] = []
  readonly #source: Written[] = []
  #filter: Position = ORIGIN
  #durable: { commit: Commit; done: Set<Known> } | undefined
  /** the parked store: its rows survive a crash */
  readonly #rows = new Map<number, Row>()
  #restored: MessageRef = { offset: 0, index: 0 }
  #dispatcher!: Dispatcher
  #pending!: AckPending
  #term = 0
  /** a commit without the exact set in flight is durable since the take-over */
  #mayHandOut = false
  readonly handedOut: Known[] = []
  deliveries = 0
  parks = 0
  failures = 0

  constructor({ grouping, windowBytes, maxPending, sends = false, perGroup = 1 }: WorldOptions) {
    this.grouping = grouping
    this.sends = sends
    this.#windowBytes = windowBytes
    this.#maxPending = maxPending
    this.#perGroup = perGroup
    this.#start()
  }

  // ── the source ──────────────────────────────────────────────────────────────────────────────────

  append(groups: readonly number[], tombstones: readonly boolean[]): void {
    const written = groups.map((group, i): Written => ({ lsn: ++this.#lsn, group, part: tombstones[i] ? PART.tombstone : PART.row }))
    this.#source.push(...written)
    this.#write(written)
  }

  /** The source starts again and appends its last messages once more, cut into packs in another way, then what is new. */
  repeat(back: number, size: number): void {
    const again = this.#source.slice(-back)
    for (let i = 0; i < again.length; i += size) this.#write(again.slice(i, i + size))
  }

  #write(written: readonly Written[]): void {
    if (written.length === 0) return
    const builder = new PackBuilder({ history: 0, term: 1, routing: 1 })
    const offset = this.#log.length
    const known = written.map(({ lsn, group, part }, index): Known => {
      builder.begin(BigInt(lsn), 1, lsn)
      builder.bodies.ascii(`["${group}"]body of ${lsn}`)
      builder.add(0, part, ACTION.insert, 1, part === PART.tombstone ? MESSAGE_FLAG.tombstone : 0, group, `["${group}"]`.length, 0)
      const position: Position = { history: 0, lsn: BigInt(lsn), idx: 0, part }
      const accepted = comparePositions(position, this.#filter) > 0
      if (accepted) this.#filter = position
      const tombstone = part === PART.tombstone
      return {
        ref: { offset, index },
        position,
        group,
        accepted,
        tombstone,
        done: tombstone || !accepted,
        isVoid: false,
        dropped: false,
        until: 0,
        delivered: false,
        pending: false,
      }
    })
    this.#log.push({ pack: builder.encode(), known })
  }

  // ── the owner's work ────────────────────────────────────────────────────────────────────────────

  read(packs: number): void {
    for (let i = 0; i < packs && hasRoom(this.#dispatcher); i++) {
      const offset = this.#dispatcher.window.nextOffset
      const record = this.#log[offset]
      if (!record) return
      const drops = Uint8Array.from(record.known, ({ group }) => Number(group === this.#droppedGroup))
      offer(this.#dispatcher, offset, Pack.decode(record.pack), this.#droppedGroup === 0 ? undefined : drops)
      for (const m of record.known) {
        m.isVoid = m.group === this.#droppedGroup
        if (!m.isVoid || m.done || this.#rows.has(keyOf(m))) continue
        m.done = m.dropped = true
        m.until = 0
      }
    }
  }

  /** The sink gets a filter: what is read from here on of this group is dropped. */
  filter(group: number): void {
    this.#droppedGroup ||= group // one that is lifted brings back, at the next restart, what it has dropped of the window
  }

  take(max: number, lane: Lane = 'all'): void {
    this.#load()
    const isTogether = this.sends && this.grouping && this.#perGroup > 1
    const expected = isTogether ? [] : this.#expected(max, lane)
    const batch = take(this.#dispatcher, max, UNBOUND, lane)
    const got = (batch?.messages ?? []).map(({ offset, index }) => this.#log[offset]?.known[index] as Known)
    if (isTogether) this.#checkTogether(got, max, lane)
    else
      assert.deepEqual(
        got.map((m) => m.ref),
        expected.map((m) => m.ref),
        'what is handed out, in order',
      )
    for (const [i, message] of got.entries()) {
      const { view, place } = batch?.messages[i] ?? assert.fail('what is handed out has a place')
      const body = view.buffer.toString('utf8', view.bodyStart(place), view.bodyEnd(place))
      assert.equal(body, `body of ${message.position.lsn}`)
      message.until = this.sends ? Infinity : this.#now + ACK_WAIT_MS
      message.delivered = true
      message.pending = true
      this.deliveries++
      this.handedOut.push(message)
    }
    const inFlight = this.#visible().filter((m) => !m.done && (this.sends ? m.until === Infinity : m.until > this.#now)).length
    if (this.parks === 0) assert.equal(countInFlight(this.#dispatcher), inFlight, 'in flight') // of a parked group only the first is counted
  }

  ack(chosen: readonly Known[]): void {
    const some = this.sends ? this.#sentWith(chosen) : chosen
    const known = some.filter((m) => this.#isKnown(m))
    this.#finish(some)
    for (const message of known) this.#end(message)
  }

  nack(chosen: readonly Known[]): void {
    this.#release(this.sends ? this.#sentWith(chosen) : chosen)
  }

  #release(some: readonly Known[]): void {
    release(this.#dispatcher, refsOf(some))
    for (const message of some)
      if (!message.done && this.#isKnown(message) && (this.sends || !this.#isParkedBehind(message))) message.until = 0
  }

  /** Of each of these groups an answer takes the first ones, refuses the next, and the rest comes again behind it. */
  fail(chosen: readonly Known[]): void {
    const done: Known[] = []
    const behind: Known[] = []
    const bad: Known[] = []
    for (const [, sent] of Map.groupBy(this.#sentWith(chosen), (m) => (this.grouping ? m.group : keyOf(m)))) {
      const at = Math.floor(sent.length / 2)
      done.push(...sent.slice(0, at))
      bad.push(sent[at] as Known)
      behind.push(...sent.slice(at + 1))
    }
    this.#release(behind)
    const failures = bad.map((m): FailedMessage => {
      const attempts = (this.#rows.get(keyOf(m))?.attempts ?? 0) + 1
      return { ...m.ref, failed: { attempts, retryInMs: BACK_OFF_MS, error: 'no', record: {} } }
    })
    const again = fail(this.#dispatcher, failures)
    this.#finish(done)
    for (const m of done) this.#end(m)
    this.#recordFailures(again)
    this.failures += bad.length
    for (const m of bad) {
      m.until = this.#now + BACK_OFF_MS
      m.pending = false
    }
  }

  #recordFailures(again: readonly FailedMessage[]): void {
    const until = this.#now + BACK_OFF_MS
    const moves = nextOf(this.#dispatcher.failures)
    if (moves.length > 0) this.commit()
    for (const { offset, index } of moves) this.#rows.set(refKey(offset, index), { state: 'open', attempts: 1, until })
    moved(this.#dispatcher, moves)
    for (const { offset, index, failed } of again) {
      this.#rows.set(refKey(offset, index), { state: 'open', attempts: failed.attempts, until })
      parkedFailed(this.#dispatcher, { offset, index }, failed.attempts, until)
    }
  }

  /** What is being sent of the groups of these, lowest first: an answer tells of all of a group that it brought. */
  #sentWith(chosen: readonly Known[]): Known[] {
    const sent = chosen.filter((m) => !m.done && m.until === Infinity)
    if (!this.grouping) return sent
    const groups = new Set(sent.map(({ group }) => group))
    return this.#all().filter((m) => !m.done && m.until === Infinity && groups.has(m.group))
  }

  pass(ms: number): void {
    this.#now += ms
    lapse(this.#dispatcher, this.#now)
  }

  commit(clean = false): Commit {
    const commit = commitPoint(this.#dispatcher, this.#term, clean)
    this.#checkCommit(commit)
    this.#durable = { commit, done: new Set(this.#all().filter((m) => m.done && !m.dropped)) }
    committed(this.#dispatcher, commit)
    if (!commit.inFlight) this.#mayHandOut = true
    return commit
  }

  /** @param during acked while the rows are being written */
  park(works: boolean, during: readonly Known[]): void {
    const moves = toPark(this.#dispatcher)
    if (moves.length > 0) this.commit() // what is finished below them must not come back after them
    const late = refList()
    const ended = this.sends ? this.#sentWith(during) : during
    const known = ended.filter((m) => this.#isKnown(m))
    if (ended.length > 0) {
      const { elsewhere } = finish(this.#dispatcher, refsOf(ended))
      late.offsets.push(...elsewhere.offsets)
      late.indexes.push(...elsewhere.indexes)
    }
    if (works) {
      for (const { offset, index } of moves) this.#rows.set(refKey(offset, index), { state: 'open', attempts: 0, until: 0 })
      moved(this.#dispatcher, moves)
      this.parks += moves.length
    } else {
      notMoved(this.#dispatcher, moves)
      // what is being sent may be sent twice then: the model forgets the first
      if (this.sends) for (const { offset, index } of moves) (this.#log[offset]?.known[index] as Known).until = 0
    }
    if (late.offsets.length > 0) this.#finishRefs(late)
    for (const message of known) this.#end(message)
  }

  // ── the end of an owner ─────────────────────────────────────────────────────────────────────────

  /** Goes on from the last durable commit, without warning. */
  crash(): void {
    const done = this.#durable?.done ?? new Set<Known>()
    const handedOut = this.#durable?.commit.handedOut ?? { offset: 0, index: 0 }
    const head = { offset: this.#log.length, index: 0 }
    const below = compareRefs(handedOut, head) < 0 ? handedOut : head
    const known = this.#durable?.commit.inFlight
    for (const message of this.#all()) {
      const row = this.#rows.get(keyOf(message))
      // what is dropped is finished only together with what is recorded as finished: else the filter of that time says it anew
      message.dropped &&= this.#isFinishedIn(message.ref)
      message.done = message.tombstone || !message.accepted || message.dropped || row?.state === 'done' || (!row && done.has(message))
      message.pending = false
      message.isVoid = false
      if (this.sends) message.until = row?.state === 'open' ? row.until : 0
      else if (!known) message.until = !message.done && compareRefs(message.ref, below) < 0 ? this.#now + ACK_WAIT_MS : 0
      else {
        const held = known.find((k) => compareRefs(k.message, message.ref) === 0)
        message.until = held && !message.done ? this.#now + held.invisibleForMs : 0
      }
    }
    this.#start()
  }

  /** Stops as it should: everything is told to the next owner. */
  stop(): void {
    if (this.sends) this.nack(this.#all())
    const commit = this.commit(true)
    const before = new Map(this.#all().map((m) => [m, m.until]))
    this.crash()
    // unless something wasn't read yet, what a clean stop tells is all there is to know
    if (commit.inFlight)
      for (const [m, until] of before)
        assert.equal(Math.max(m.until, this.#now), m.done ? this.#now : Math.max(until, this.#now), 'visibility survives a stop')
  }

  /** Reads and delivers everything, then checks that everything came and that the commit says so. */
  finish(): void {
    for (let rounds = 0; this.#all().some((m) => !m.done); rounds++) {
      assert.ok(rounds < 1_000, 'it comes to an end')
      this.pass(ACK_WAIT_MS)
      this.read(10)
      this.park(true, [])
      this.commit()
      this.take(100)
      if (this.sends) this.take(100, 'failed')
      this.ack(this.handedOut.filter((m) => !m.done))
    }
    this.read(this.#log.length)
    assert.deepEqual(
      [countInFlight(this.#dispatcher), countUnfinished(this.#dispatcher), this.#pending.count],
      [0, 0, 0],
      'nothing is left open',
    )
    const { next, finished } = this.commit()
    assert.deepEqual(next, { offset: this.#log.length, index: 0 })
    assert.deepEqual(finished, [])
    for (const m of this.#all()) if (m.accepted && !m.tombstone && !m.dropped) assert.ok(m.delivered, `message ${m.position.lsn} came`)
  }

  // ── the model ───────────────────────────────────────────────────────────────────────────────────

  #all(): Known[] {
    return this.#log.flatMap((r) => r.known)
  }
  #isRead(message: Known): boolean {
    return message.ref.offset < this.#dispatcher.window.nextOffset
  }
  #isKnown(message: Known): boolean {
    return this.#isRead(message) || this.#rows.get(keyOf(message))?.state === 'open'
  }
  #visible(): Known[] {
    return this.#all().filter((m) => this.#isKnown(m))
  }
  /** Of a parked group only the first message can come back before its time; later ones were delivered before a crash at most. */
  #isParkedBehind(message: Known): boolean {
    const isOpenRow = (m: Known) => this.#rows.get(keyOf(m))?.state === 'open'
    return (
      this.grouping &&
      isOpenRow(message) &&
      this.#all().some((m) => m.group === message.group && isOpenRow(m) && compareRefs(m.ref, message.ref) < 0)
    )
  }

  /** Whether the last durable commit says that a message is finished. */
  #isFinishedIn(ref: MessageRef): boolean {
    const { next, finished } = this.#durable?.commit as Commit
    return compareRefs(ref, next) < 0 || finished.some(({ from, to }) => compareRefs(from, ref) <= 0 && compareRefs(ref, to) < 0)
  }

  /** Of each group its lowest open messages go, all of its earlier ones with them, and none is left that may go. */
  #checkTogether(got: readonly Known[], max: number, lane: Lane): void {
    const open = this.#visible().filter((m) => !m.done)
    for (const [group, of] of Map.groupBy(got, (m) => m.group))
      assert.deepEqual(of, open.filter((m) => m.group === group).slice(0, of.length), 'the first of a group, in order')
    for (const m of got) assert.ok(m.until <= this.#now, 'it is not sent already')
    assert.ok(got.length <= max)
    for (const [, [first]] of got.length === max ? [] : Map.groupBy(open, (m) => m.group))
      if (first && first.until <= this.#now && this.#laneOf(first) === lane) assert.ok(got.includes(first), 'what may go is taken')
  }

  #laneOf(m: Known): Lane {
    return (this.#rows.get(keyOf(m))?.attempts ?? 0) > 0 ? 'failed' : 'all'
  }

  #expected(max: number, lane: Lane): Known[] {
    const open = this.#visible().filter((m) => !m.done)
    const promised = this.sends ? { offset: Infinity, index: 0 } : (this.#durable?.commit.handedOut ?? { offset: 0, index: 0 })
    let pending = this.#all().filter((m) => !m.done && m.pending).length
    const chosen: Known[] = []
    if (!this.#mayHandOut && !this.sends) return chosen
    for (const m of open) {
      if (chosen.length >= max) break
      if (compareRefs(m.ref, promised) >= 0) break
      if (m.until > this.#now || this.#laneOf(m) !== lane) continue
      if (this.grouping && open.some((o) => o.group === m.group && compareRefs(o.ref, m.ref) < 0)) continue
      if (!m.pending && pending >= this.#maxPending) continue
      if (!m.pending) pending++
      chosen.push(m)
    }
    return chosen
  }

  #end(message: Known): void {
    message.done = true
    message.until = 0
    message.pending = false
  }

  #checkCommit(commit: Commit): void {
    const read = this.#all().filter((m) => this.#isRead(m))
    const finished = (m: Known) => m.done || this.#rows.has(keyOf(m))
    const lowest = read.find((m) => !finished(m))
    const end = { offset: this.#dispatcher.window.nextOffset, index: 0 }
    if (this.#dispatcher.window.end === 0) assert.deepEqual(commit.next, this.#restored)
    else assert.deepEqual(commit.next, lowest?.ref ?? end, 'the lowest unfinished message')
    const before = this.#all().filter((m) => m.accepted && compareRefs(m.ref, commit.next) < 0)
    assert.deepEqual(commit.accepted, before[before.length - 1]?.position ?? ORIGIN, 'the greatest accepted position before it')
    const open = this.#visible().filter((m) => !m.done)
    assert.equal(countUnfinished(this.#dispatcher), open.length, 'how many are unfinished')
    const oldest = open.length > 0 ? Number(open[0]?.position.lsn) : Infinity
    // of a parked group whose first message was finished a moment ago only an older one is known
    if (this.#dispatcher.parked.byKey.size > 0) assert.ok(oldestUs(this.#dispatcher) <= oldest, 'the oldest unfinished one, or older')
    else assert.equal(oldestUs(this.#dispatcher), oldest, 'the oldest unfinished one')
    const inRange = (ref: MessageRef) => commit.finished.some(({ from, to }) => compareRefs(from, ref) <= 0 && compareRefs(ref, to) < 0)
    for (const m of read) {
      if (!m.accepted || m.tombstone || m.isVoid || compareRefs(m.ref, commit.next) < 0) continue
      assert.equal(inRange(m.ref), finished(m), `message ${m.position.lsn} ${finished(m) ? 'is' : "isn't"} finished`)
    }
  }

  // ── between the dispatcher and the store ────────────────────────────────────────────────────────

  #start(): void {
    const from = this.#durable?.commit.next ?? { offset: 0, index: 0 }
    this.#restored = from
    const parkedRefs = refList()
    const groups = new Map<number, ParkedGroupFacts & { open: number }>()
    for (const m of this.#all()) {
      const row = this.#rows.get(keyOf(m))
      if (row && m.ref.offset >= from.offset) {
        parkedRefs.offsets.push(m.ref.offset)
        parkedRefs.indexes.push(m.ref.index)
      }
      if (row?.state !== 'open') continue
      const key = this.grouping ? m.group : keyOf(m)
      const first = { ...m.ref, deliveries: row.attempts, commitTimeUs: Number(m.position.lsn), hiddenMs: row.until - this.#now }
      const facts = groups.get(key) ?? { key, open: 0, ...first }
      facts.open++
      groups.set(key, facts)
    }
    const parkedGroups: ParkedGroupFacts[] = [...groups.values()]
    this.#pending = new AckPending(this.#maxPending)
    this.#dispatcher = newDispatcher({
      generation: 1,
      partition: 0,
      settings: { ackWaitMs: ACK_WAIT_MS, maxDeliveries: null, windowBytes: this.#windowBytes, perGroup: this.#perGroup },
      grouping: this.grouping,
      keyed: false,
      sends: this.sends,
      pending: this.#pending,
      restore: { commit: this.#durable?.commit, head: this.#log.length, parkedRefs, parkedGroups },
      clock: () => this.#now,
    })
    this.#term++
    this.#mayHandOut = false
    this.commit(true) // the take-over
  }

  #finish(chosen: readonly Known[]): void {
    this.#finishRefs(refsOf(chosen))
  }

  #finishRefs(refs: RefList): void {
    const { elsewhere } = finish(this.#dispatcher, refs)
    const rows: ParkedRef[] = []
    for (const [i, offset] of elsewhere.offsets.entries()) {
      const index = elsewhere.indexes[i] as number
      const row = this.#rows.get(refKey(offset, index))
      if (row?.state !== 'open') continue
      row.state = 'done'
      const group = this.#log[offset]?.known[index]?.group as number
      rows.push({ key: this.grouping ? group : refKey(offset, index), offset, index })
    }
    parkedEnded(this.#dispatcher, rows)
  }

  /** Fetches what may be delivered of the parked messages, as the owner's loop does. */
  #load(): void {
    const { parked } = this.#dispatcher
    for (const group of chooseToLoad(parked, 1_000)) {
      const isOfGroup = (m: Known) => (this.grouping ? m.group === group.key : keyOf(m) === group.key)
      const rows = this.#all().filter((m) => this.#rows.get(keyOf(m))?.state === 'open' && isOfGroup(m))
      const [first, ...others] = rows.map((m) => {
        const pack = Pack.decode(this.#log[m.ref.offset]?.pack as Buffer)
        return { ...m.ref, view: onlyOne(pack, m.ref.index), attempts: this.#rows.get(keyOf(m))?.attempts ?? 0 }
      })
      assert.ok(first, 'a parked group has an open message')
      const end = first.attempts > 0 ? 0 : others.findIndex(({ attempts }) => attempts > 0)
      const behind = (end < 0 ? others : others.slice(0, end)).slice(0, this.#perGroup - 1)
      groupLoaded(parked, group, first, behind)
    }
  }
}

const keyOf = (m: Known): number => refKey(m.ref.offset, m.ref.index)
const refsOf = (messages: readonly Known[]): RefList => ({
  offsets: messages.map((m) => m.ref.offset),
  indexes: messages.map((m) => m.ref.index),
})

/** One message of a pack, seen as the parked store gives it: at place 0. */
function onlyOne(pack: Pack, index: number): Pack {
  return new Proxy(pack, {
    get: (target, name) => {
      const value: unknown = Reflect.get(target, name)
      if (typeof value === 'function') return (): unknown => Reflect.apply(value, target, [index])
      return value
    },
  })
}
