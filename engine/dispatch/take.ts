/** Hands messages out: in position order, of a group the lowest first, within a bound of messages and bytes. */
import { emptyBatch, type TakenBatch, type Message } from './batch.ts'
import { endOfPromise, isPromisedTo } from './commits.ts'
import { countPending, type Dispatcher } from './dispatcher.ts'
import { lapse } from './ends.ts'
import { anyReady, beginGroup, behind, hand, isParked, joinGroup, nextReady, takeReady } from './messages.ts'
import { groupTaken, nextGroup, type Origin } from './parked/parked-groups.ts'
import { STATE } from './window.ts'

/**
 * Says which messages a take is for: all; fresh ones, which have never failed; or failed ones, which are parked, the first of each
 * group.
 */
export type Lane = 'all' | 'fresh' | 'failed'

/** Bounds the bytes that a take may give. */
export type TakeBytes = Readonly<{
  max: number
  /** what the answer adds to each body */
  overhead: number
  /** nothing is in the answer yet, so one message passes whatever its size */
  first: boolean
}>

/** One take: what it may give, and what it has gathered. */
type Gathering = {
  readonly batch: TakenBatch
  /** what it took of the window */
  readonly seqs: number[]
  readonly max: number
  readonly bytes: TakeBytes
  /** messages and bytes so far, those of other generations included */
  count: number
  taken: number
  full: boolean
}

/**
 * Hands out deliverable messages in position order.
 * @param max at most so many
 * @param bytes a bound of the bodies with `overhead` bytes each; without one before it in the answer, one message always passes
 * @param lane where the owner sends, what has failed before is taken apart
 */
export function take(d: Dispatcher, max: number, bytes: TakeBytes, lane: Lane = 'all'): TakenBatch | undefined {
  const now = d.clock()
  d.askedAt = now
  lapse(d, now)
  if (!d.isPromised) return undefined
  const lease = d.leases.reserve()
  const batch = emptyBatch(d.generation, d.partition, lease)
  const call: Gathering = { batch, seqs: [], max, bytes, count: 0, taken: 0, full: false }
  const endsAt = d.sends ? Infinity : now + d.settings.ackWaitMs
  takeParked(d, call, endsAt, lane === 'failed')
  if (lane !== 'failed') {
    takeInLine(d, call)
    takeFresh(d, call)
  }
  if (call.seqs.length) d.leases.hold(lease, endsAt, call.seqs)
  return call.count ? call.batch : undefined
}

/** Tells whether a take might find something. It may still find nothing, when every message must wait for its group. */
export function mayDeliver(d: Dispatcher, lane: Lane = 'all'): boolean {
  if (!d.isPromised) return false
  if (lane === 'failed') return d.parked.failed.length > 0
  if (nextGroup(d.parked) || nextReady(d) !== Infinity) return true
  const w = d.window
  if (d.sends) return w.cursor < w.end
  return w.cursor < w.end && !d.pending.full && isPromisedTo(d, w.refOf(w.cursor))
}

/** Tells whether messages lie ready, or were not looked at yet, whether or not `max_ack_pending` lets them go. */
export const hasReady = (d: Dispatcher): boolean =>
  d.parked.readyCount > 0 || d.parked.toLoad.size > 0 || anyReady(d) || d.window.cursor < d.window.end

function takeParked(d: Dispatcher, call: Gathering, endsAt: number, failed: boolean): void {
  const { parked } = d
  for (let group = nextGroup(parked, failed); group; group = nextGroup(parked, failed)) {
    if (!group.pending && d.pending.full) return
    const { view, offset, index, origin, deliveries, formerAttempts } = group
    if (!view) return
    const former = failed ? { former: { attempts: deliveries, records: formerAttempts } } : {}
    if (!put(call, { view, place: 0, offset, index, ...former }, origin)) return
    if (!group.pending) countPending(d, 1)
    let together = 0
    if (takesTogether(d))
      for (const { view, offset, index, origin } of group.behind) {
        if (call.full || !put(call, { view, place: 0, offset, index }, origin)) break
        together++
      }
    groupTaken(parked, group, call.batch.lease, endsAt, together)
  }
}

/** Hands out what was freed or came back. */
function takeInLine(d: Dispatcher, call: Gathering): void {
  const w = d.window
  for (let seq = nextReady(d); seq !== Infinity && !call.full; seq = nextReady(d)) {
    if (!put(call, w.messageAt(seq))) return
    takeReady(d, seq)
    handTo(d, call, seq)
    if (d.grouping && takesTogether(d)) takeBehind(d, call, seq)
  }
}

/** Messages of one group go together. */
const takesTogether = ({ sends, settings }: Dispatcher): boolean => sends && (settings.perGroup ?? 1) > 1

/** The messages of a group that wait behind one just handed out go with it, in order. */
function takeBehind(d: Dispatcher, call: Gathering, head: number): void {
  const w = d.window
  for (let seq = behind(d, head); seq >= 0 && !call.full; seq = behind(d, seq)) {
    const state = w.states[seq & w.mask]
    if (state === STATE.finished) continue
    if (state !== STATE.waiting || !put(call, w.messageAt(seq))) return
    handTo(d, call, seq)
  }
}

/** Hands out what no take has looked at. */
function takeFresh(d: Dispatcher, call: Gathering): void {
  const { window: w, heads, grouping } = d
  const { mask, states } = w
  const together = takesTogether(d)
  while (w.cursor < w.end && !call.full) {
    const pack = w.packOf(w.cursor)
    const { firstSeq, offset, view } = pack
    if (!view) {
      w.cursor = firstSeq + pack.count
      continue
    }
    const promised = endOfPromise(d, pack)
    for (let seq = w.cursor; seq < promised; w.cursor = ++seq) {
      if (states[seq & mask] !== STATE.fresh) continue
      if (d.pending.full || call.full) return
      const place = seq - firstSeq
      if (grouping) {
        const group = view.group(place)
        const head = heads.get(group)
        if (head !== undefined || isParked(d, group)) {
          const mayJoin = together && head !== undefined && isLastInHand(d, head, call.batch.lease)
          if (mayJoin && !put(call, { view, place, offset, index: place })) return
          joinGroup(d, group, seq)
          if (mayJoin) handTo(d, call, seq)
          else states[seq & mask] = STATE.waiting
          continue
        }
        if (!put(call, { view, place, offset, index: place })) return
        beginGroup(d, group, seq)
      } else if (!put(call, { view, place, offset, index: place })) return
      handTo(d, call, seq)
    }
    if (promised < firstSeq + pack.count) return
  }
}

/** Whether the last message of a group was handed out under this lease, and so all of them. */
function isLastInHand({ window: { tails, mask, states, leases } }: Dispatcher, head: number, lease: number): boolean {
  const slot = (tails[head & mask] ?? head) & mask
  return states[slot] === STATE.inFlight && leases[slot] === lease
}

function handTo(d: Dispatcher, { batch, seqs }: Gathering, seq: number): void {
  hand(d, seq, batch.lease)
  seqs.push(seq)
}

/** Adds a message if it fits. @returns false: it doesn't, and the call is full */
function put(call: Gathering, message: Message, origin?: Origin): boolean {
  const { count } = call
  const { view, place } = message
  const size = view.bodyEnd(place) - view.bodyStart(place)
  const must = count === 0 && call.bytes.first
  if (count >= call.max || (!must && call.taken + size + (count + 1) * call.bytes.overhead > call.bytes.max)) {
    call.full = true
    return false
  }
  const batch = origin ? batchOf(call.batch, origin) : call.batch
  batch.messages.push(message)
  batch.bytes += size
  call.taken += size
  call.count = count + 1
  if (count + 1 === call.max) call.full = true
  return true
}

/** The last of the others when it has this origin: what comes lowest first stays so. */
function batchOf({ others, lease }: TakenBatch, { generation, partition }: Origin): TakenBatch {
  const last = others.at(-1)
  if (last?.generation === generation && last.partition === partition) return last
  const batch = emptyBatch(generation, partition, lease)
  others.push(batch)
  return batch
}
