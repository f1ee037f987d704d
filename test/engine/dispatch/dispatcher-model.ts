/**
 * The dispatcher beside a naive model of it: the model keeps one object a message, scans everything, and knows nothing of
 * windows, chains, heaps or parking. Every step is checked against it.
 */
import assert from 'node:assert/strict'
import { AckPending } from '../../../engine/dispatch/ack-pending.ts'
import { refList, type RefList } from '../../../engine/dispatch/ack-id.ts'
import { Dispatcher } from '../../../engine/dispatch/dispatcher.ts'
import { refKey, type ParkedGroupFacts, type ParkedRef } from '../../../engine/dispatch/parked/parked-group.ts'
import { compareRefs } from '../../../engine/dispatch/restored.ts'
import type { Commit, MessageRef } from '../../../engine/log/log.ts'
import { PackBuilder } from '../../../engine/log/pack-builder.ts'
import { ACTION, Pack } from '../../../engine/log/pack.ts'
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
  /** invisible until then */
  until: number
  /** handed out at least once, ever */
  delivered: boolean
  /** counts against max_ack_pending */
  pending: boolean
}

export const ACK_WAIT_MS = 1_000
const UNBOUND = { max: Infinity, overhead: 0, first: true }

export class World {
  readonly grouping: boolean
  readonly #windowBytes: number
  readonly #maxPending: number
  #now = 0
  #lsn = 0
  readonly #log: { pack: Buffer; known: Known[] }[] = []
  readonly #source: Written[] = []
  #filter: Position = ORIGIN
  #durable: { commit: Commit; done: Set<Known> } | undefined
  /** the parked store: its rows survive a crash */
  readonly #rows = new Map<number, 'open' | 'done'>()
  #restored: MessageRef = { offset: 0, index: 0 }
  #dispatcher!: Dispatcher
  #term = 0
  /** a commit without the exact set in flight is durable since the take-over */
  #mayHandOut = false
  readonly handedOut: Known[] = []
  deliveries = 0
  parks = 0

  constructor(options: { grouping: boolean; windowBytes: number; maxPending: number }) {
    this.grouping = options.grouping
    this.#windowBytes = options.windowBytes
    this.#maxPending = options.maxPending
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
    const builder = new PackBuilder({ history: 0, term: 1, generation: 1, routing: 1 })
    const offset = this.#log.length
    const known = written.map(({ lsn, group, part }, index): Known => {
      builder.begin(BigInt(lsn), 1, lsn)
      builder.bodies.ascii(`["${group}"]body of ${lsn}`)
      builder.add(0, part, ACTION.insert, 1, 0, group, `["${group}"]`.length, 0)
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
        until: 0,
        delivered: false,
        pending: false,
      }
    })
    this.#log.push({ pack: builder.encode(), known })
  }

  // ── the owner's work ────────────────────────────────────────────────────────────────────────────

  read(packs: number): void {
    for (let i = 0; i < packs && this.#dispatcher.room(); i++) {
      const offset = this.#dispatcher.window.nextOffset
      const record = this.#log[offset]
      if (!record) return
      this.#dispatcher.offer(offset, Pack.decode(record.pack))
    }
  }

  take(max: number): void {
    this.#load()
    const expected = this.#expected(max)
    const batch = this.#dispatcher.take(max, UNBOUND)
    const got = (batch?.offsets ?? []).map((offset, i) => ({ offset, index: batch?.indexes[i] as number }))
    assert.deepEqual(
      got,
      expected.map((m) => m.ref),
      'what is handed out, in order',
    )
    for (const [i, message] of expected.entries()) {
      const view = batch?.views[i]
      const place = batch?.places[i] as number
      const body = view?.buffer.toString('utf8', view.bodyStart(place), view.bodyEnd(place))
      assert.equal(body, `body of ${message.position.lsn}`)
      message.until = this.#now + ACK_WAIT_MS
      message.delivered = true
      message.pending = true
      this.deliveries++
      this.handedOut.push(message)
    }
    const inFlight = this.#visible().filter((m) => !m.done && m.until > this.#now).length
    if (this.parks === 0) assert.equal(this.#dispatcher.inFlight, inFlight, 'in flight') // of a parked group only the first is counted
  }

  ack(chosen: readonly Known[]): void {
    this.#finish(chosen)
    for (const message of chosen) if (this.#isRead(message)) this.#end(message)
  }

  nack(chosen: readonly Known[]): void {
    this.#dispatcher.release(refsOf(chosen))
    for (const message of chosen) if (!message.done && this.#isKnown(message) && !this.#isParkedBehind(message)) message.until = 0
  }

  pass(ms: number): void {
    this.#now += ms
    this.#dispatcher.lapse(this.#now)
  }

  commit(clean = false): Commit {
    const commit = this.#dispatcher.commitPoint(this.#term, clean)
    this.#checkCommit(commit)
    this.#durable = { commit, done: new Set(this.#all().filter((m) => m.done)) }
    this.#dispatcher.committed(commit)
    if (!commit.inFlight) this.#mayHandOut = true
    return commit
  }

  /** @param during acked while the rows are being written */
  park(works: boolean, during: readonly Known[]): void {
    const moves = this.#dispatcher.parking.toPark(this.#windowBytes)
    if (moves.length > 0) this.commit() // what is finished below them must not come back after them
    const late = refList()
    if (during.length > 0) {
      const { elsewhere } = this.#dispatcher.finish(refsOf(during))
      late.offsets.push(...elsewhere.offsets)
      late.indexes.push(...elsewhere.indexes)
    }
    if (works) {
      for (const { offset, index } of moves) this.#rows.set(refKey(offset, index), 'open')
      this.#dispatcher.parking.moved(moves)
      this.parks += moves.length
    } else this.#dispatcher.parking.notMoved(moves, ACK_WAIT_MS)
    if (late.offsets.length > 0) this.#finishRefs(late)
    for (const message of during) if (this.#isRead(message)) this.#end(message)
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
      message.done = message.tombstone || !message.accepted || done.has(message) || this.#rows.get(keyOf(message)) === 'done'
      message.pending = false
      if (!known) message.until = !message.done && compareRefs(message.ref, below) < 0 ? this.#now + ACK_WAIT_MS : 0
      else {
        const held = known.find((k) => compareRefs(k.message, message.ref) === 0)
        message.until = held && !message.done ? this.#now + held.invisibleForMs : 0
      }
    }
    this.#start()
  }

  /** Stops as it should: everything is told to the next owner. */
  stop(): void {
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
      this.ack(this.handedOut.filter((m) => !m.done))
    }
    this.read(this.#log.length)
    const { next, finished } = this.commit()
    assert.deepEqual(next, { offset: this.#log.length, index: 0 })
    assert.deepEqual(finished, [])
    for (const m of this.#all()) if (m.accepted && !m.tombstone) assert.ok(m.delivered, `message ${m.position.lsn} came`)
  }

  // ── the model ───────────────────────────────────────────────────────────────────────────────────

  #all(): Known[] {
    return this.#log.flatMap((r) => r.known)
  }
  #isRead(message: Known): boolean {
    return message.ref.offset < this.#dispatcher.window.nextOffset
  }
  #isKnown(message: Known): boolean {
    return this.#isRead(message) || this.#rows.get(keyOf(message)) === 'open'
  }
  #visible(): Known[] {
    return this.#all().filter((m) => this.#isKnown(m))
  }
  /** Of a parked group only the first message can come back before its time; later ones were delivered before a crash at most. */
  #isParkedBehind(message: Known): boolean {
    const isOpenRow = (m: Known) => this.#rows.get(keyOf(m)) === 'open'
    return (
      this.grouping &&
      isOpenRow(message) &&
      this.#all().some((m) => m.group === message.group && isOpenRow(m) && compareRefs(m.ref, message.ref) < 0)
    )
  }

  #expected(max: number): Known[] {
    const open = this.#visible().filter((m) => !m.done)
    const promised = this.#durable?.commit.handedOut ?? { offset: 0, index: 0 }
    let pending = this.#all().filter((m) => !m.done && m.pending).length
    const chosen: Known[] = []
    if (!this.#mayHandOut) return chosen
    for (const m of open) {
      if (chosen.length >= max) break
      if (compareRefs(m.ref, promised) >= 0) break
      if (m.until > this.#now) continue
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
    assert.deepEqual(commit.filter, before[before.length - 1]?.position ?? ORIGIN, 'the greatest accepted position before it')
    const open = this.#visible().filter((m) => !m.done)
    assert.equal(this.#dispatcher.unfinished, open.length, 'how many are unfinished')
    const oldest = open.length > 0 ? Number(open[0]?.position.lsn) : Infinity
    // of a parked group whose first message was finished a moment ago only an older one is known
    if (this.#dispatcher.parked.size > 0) assert.ok(this.#dispatcher.oldestUs() <= oldest, 'the oldest unfinished one, or older')
    else assert.equal(this.#dispatcher.oldestUs(), oldest, 'the oldest unfinished one')
    const inRange = (ref: MessageRef) => commit.finished.some(({ from, to }) => compareRefs(from, ref) <= 0 && compareRefs(ref, to) < 0)
    for (const m of read) {
      if (!m.accepted || m.tombstone || compareRefs(m.ref, commit.next) < 0) continue
      assert.equal(inRange(m.ref), finished(m), `message ${m.position.lsn} ${finished(m) ? 'is' : "isn't"} finished`)
    }
  }

  // ── between the dispatcher and the store ────────────────────────────────────────────────────────

  #start(): void {
    const from = this.#durable?.commit.next ?? { offset: 0, index: 0 }
    this.#restored = from
    const parkedRefs = refList()
    const groups = new Map<number, { key: number; open: number; offset: number; index: number; deliveries: number; commitTimeUs: number }>()
    for (const m of this.#all()) {
      const state = this.#rows.get(keyOf(m))
      if (state && m.ref.offset >= from.offset) {
        parkedRefs.offsets.push(m.ref.offset)
        parkedRefs.indexes.push(m.ref.index)
      }
      if (state !== 'open') continue
      const key = this.grouping ? m.group : keyOf(m)
      const facts = groups.get(key) ?? { key, open: 0, ...m.ref, deliveries: 0, commitTimeUs: Number(m.position.lsn) }
      facts.open++
      groups.set(key, facts)
    }
    const parkedGroups: ParkedGroupFacts[] = [...groups.values()]
    this.#dispatcher = new Dispatcher({
      generation: 1,
      partition: 0,
      settings: { ackWaitMs: ACK_WAIT_MS, maxDeliveries: null, windowBytes: this.#windowBytes },
      grouping: this.grouping,
      keyed: false,
      pending: new AckPending(this.#maxPending),
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
    const { elsewhere } = this.#dispatcher.finish(refs)
    const rows: ParkedRef[] = []
    for (const [i, offset] of elsewhere.offsets.entries()) {
      const index = elsewhere.indexes[i] as number
      if (this.#rows.get(refKey(offset, index)) !== 'open') continue
      this.#rows.set(refKey(offset, index), 'done')
      const group = this.#log[offset]?.known[index]?.group as number
      rows.push({ key: this.grouping ? group : refKey(offset, index), offset, index })
    }
    this.#dispatcher.parking.parkedEnded(rows)
  }

  /** Fetches what may be delivered of the parked messages, as the owner's loop does. */
  #load(): void {
    const { parked } = this.#dispatcher
    for (const group of parked.toLoad(1_000)) {
      const first = this.#all().find(
        (m) => this.#rows.get(keyOf(m)) === 'open' && (this.grouping ? m.group === group.key : keyOf(m) === group.key),
      )
      assert.ok(first, 'a parked group has an open message')
      const pack = Pack.decode(this.#log[first.ref.offset]?.pack as Buffer)
      parked.loaded(group, first.ref, onlyOne(pack, first.ref.index))
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
