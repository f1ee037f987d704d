/**
 * Keeps in memory what a partition needs to know of its parked messages: one entry per group, never the messages themselves. The
 * body of a group's first message is fetched when it may be delivered and let go of when it was. Plain data, changed by
 * functions, each for one event; what an event means for the window is their answer.
 *
 *   idle ─chosen─▶ loading ─body came─▶ ready ─taken─▶ inFlight ─lapse, nack─▶ idle
 *   inFlight ─failed─▶ backingOff ─its time has come─▶ idle · inFlight ─delivered too often─▶ discarding ─not recorded─▶ idle
 *   first message finished: idle again for the next one · none left: the group goes back to the log
 *   blocked: a message that was given up is open again while later ones of its group are under way ─those ended─▶ idle
 *
 * An owner that sends takes several of a group at once, the first and those behind it: the group is in flight until it is
 * told how each of them ended.
 */
import { EngineError } from '../../errors.ts'
import type { MessageView } from '../../log/pack.ts'
import type { RefList } from '../ack-id.ts'

/**
 * Says where a message was parked whose generation has ended; with offset and index it is the message's name. Absent: it is of this
 * partition.
 */
export type Origin = Readonly<{ generation: number; partition: number }>
/** Names a parked message. */
export type ParkedName = Readonly<{ offset: number; index: number; origin?: Origin | undefined }>
/** A parked message, and the key of its group. */
export type ParkedRef = ParkedName & Readonly<{ key: number }>
/** Describes one open group as the store knows it: its first message, and how many it holds. */
export type ParkedGroupFacts = ParkedRef &
  Readonly<{
    open: number
    deliveries: number
    /** of its first message, µs since the epoch */
    commitTimeUs: number
    /** of messages taken over from an ended generation: how long the first one, and any later one, may still be with a client */
    hiddenMs?: number
    laterHiddenMs?: number
  }>
/** Tells how a message was held when it was parked. @property isBackOff it failed, and waits for its next try until `endsAt` */
export type Held = Readonly<{ endsAt: number; lease: number; deliveries: number; pending: boolean; isBackOff?: boolean }>
/**
 * Tells under which circumstances a message comes back. @property lease it does only while held under it. @property isUnseen no
 * client has had it, so that this was no delivery
 */
export type Release = Readonly<{ lease?: number | undefined; isUnseen?: boolean | undefined }>
/** A message whose body was fetched. @property attempts how often it has failed; pull: how often it was handed out before it was parked */
export type LoadedMessage = ParkedName & Readonly<{ view: MessageView; attempts?: number; formerAttempts?: readonly unknown[] }>

/** The parked messages of one group, as far as they are kept in memory. */
export type ParkedGroup = {
  readonly key: number
  /** open rows in the store */
  open: number
  state: 'idle' | 'loading' | 'ready' | 'inFlight' | 'backingOff' | 'discarding' | 'blocked' | 'gone'
  /** the first message; offset -1: not known until it is fetched */
  offset: number
  index: number
  origin: Origin | undefined
  /** of the first message, or of one before it while the first isn't known */
  commitTimeUs: number
  /** pull: how often it was handed out; push: how often it failed */
  deliveries: number
  /** counts as delivered and unacknowledged */
  pending: boolean
  lease: number
  /** monotonic ms */
  endsAt: number
  /** a later message of the group may be with a client until then: after a crash only */
  notBefore: number
  /** while it is ready: the first message, the next ones, taken together in order, and what is on record of the first */
  view: MessageView | undefined
  behind: readonly LoadedMessage[]
  formerAttempts: readonly unknown[]
  /** of what was taken behind the first, those whose end isn't told */
  readonly taken: Set<number | string>
}

/** All parked groups of a partition. Which list a group stands in follows from its state (`become`). */
export type ParkedGroups = {
  /** the owner sends, and knows the end of every delivery: nothing lapses but back-offs */
  readonly sends: boolean
  readonly byKey: Map<number, ParkedGroup>
  /** by the names of first messages, and of those taken behind them */
  readonly byName: Map<number | string, ParkedGroup>
  /** idle: the first message may be delivered and has no body yet */
  readonly toLoad: Set<ParkedGroup>
  /** ready, lowest message first; those that have failed before stand apart, where the owner sends */
  readonly ready: ParkedGroup[]
  readonly failed: ParkedGroup[]
  /** in flight or backing off, by the end of that */
  readonly held: ParkedGroup[]
  inFlight: number
  blocked: number
  /** messages in the store that are open */
  openRows: number
  /** messages that are loaded */
  readyCount: number
  readyBytes: number
}

/** Names a message by one number; also the key of a message that is its own group. A record holds fewer than 2^20. */
export const refKey = (offset: number, index: number): number => offset * 1_048_576 + index

/** Gives the name of any parked message: a number for those of this partition, a text for the others. */
export const nameOf = ({ offset, index, origin }: ParkedName): number | string =>
  origin ? `${origin.generation}.${origin.partition}.${offset}.${index}` : refKey(offset, index)

/** Names parked messages by references of the partition that had them. @param origin absent: they are its own */
export const parkedNames = ({ offsets, indexes }: RefList, origin: Origin | undefined): ParkedName[] =>
  offsets.map((offset, i) => ({ offset, index: indexes[i] as number, origin }))

/** Makes the memory of parked groups, with no group in it. */
export const newParkedGroups = (sends: boolean): ParkedGroups => ({
  sends,
  byKey: new Map(),
  byName: new Map(),
  toLoad: new Set(),
  ready: [],
  failed: [],
  held: [],
  inFlight: 0,
  blocked: 0,
  openRows: 0,
  readyCount: 0,
  readyBytes: 0,
})

// ── what is known ─────────────────────────────────────────────────────────────────────────────────

/** The group that a message is the first of, or was taken of. */
export const groupAt = ({ byName }: ParkedGroups, name: ParkedName): ParkedGroup | undefined => byName.get(nameOf(name))

/** Counts the groups whose first message has failed, where the owner sends. */
export function countFailing({ byKey }: ParkedGroups): number {
  let count = 0
  for (const { deliveries } of byKey.values()) if (deliveries > 0) count++
  return count
}

/** Gives the commit time of the oldest parked message, in µs since the epoch; Infinity: none is parked. */
export function oldestParkedUs({ byKey }: ParkedGroups): number {
  let oldest = Infinity
  for (const { commitTimeUs } of byKey.values()) if (commitTimeUs < oldest) oldest = commitTimeUs
  return oldest
}

/** Tells when the next group is held no more (monotonic ms), or Infinity. */
export const nextHeldEnd = ({ held }: ParkedGroups): number => held[0]?.endsAt ?? Infinity

/** The lowest message that can be delivered, if its body is here. @param failed of those that have failed before */
export const nextGroup = ({ ready, failed }: ParkedGroups, isFailed = false): ParkedGroup | undefined => (isFailed ? failed : ready)[0]

// ── rows come ─────────────────────────────────────────────────────────────────────────────────────

/** A message is now in the store; messages of a group come lowest first. @returns whether it is its group's first */
export function rowParked(p: ParkedGroups, ref: ParkedRef & Readonly<{ commitTimeUs: number }>, held: Held): boolean {
  p.openRows++
  const known = p.byKey.get(ref.key)
  if (known) {
    known.open++
    if (!p.sends) known.notBefore = Math.max(known.notBefore, held.endsAt)
    else if (held.endsAt > 0 && !held.isBackOff && known.state === 'inFlight') takeBehind(p, known, ref) // both are being sent
    return false
  }
  const group = add(p, { ...ref, open: 1, deliveries: held.deliveries })
  group.pending = held.pending
  if (held.endsAt > 0) become(p, group, held.isBackOff ? 'backingOff' : 'inFlight', held.endsAt)
  else become(p, group, 'idle')
  group.lease = held.lease
  return true
}

/**
 * Takes in a group that was found in the store at the take-over.
 * @param invisibleUntil of its first message (monotonic ms; 0: visible)
 * @param laterUntil of those after it, which may be with a client as well
 */
export function groupFound(p: ParkedGroups, facts: ParkedGroupFacts, invisibleUntil: number, laterUntil: number): void {
  p.openRows += facts.open
  const group = add(p, facts)
  if (facts.open > 1) group.notBefore = laterUntil
  if (invisibleUntil > 0) become(p, group, p.sends ? 'backingOff' : 'inFlight', invisibleUntil)
  else become(p, group, 'idle')
}

/**
 * Takes in that a message that was given up is open again, most likely the first of its group.
 * @param isUnderWay something of the group is: nothing else of it goes out before `groupUnblocked`
 * @returns whether what was the first until now had been counted as pending
 */
export function rowReopened(p: ParkedGroups, key: number, isUnderWay: boolean): boolean {
  p.openRows++
  const known = p.byKey.get(key)
  const group = known ?? add(p, { key, open: 0, deliveries: 0, offset: -1, index: 0, commitTimeUs: Date.now() * 1000 })
  group.open++
  if (known && (!p.sends || (known.state !== 'ready' && known.state !== 'backingOff' && known.state !== 'idle'))) return false
  const wasPending = group.pending
  become(p, group, isUnderWay ? 'blocked' : 'idle')
  setFirst(p, group, UNKNOWN)
  group.deliveries = 0
  group.pending = false
  return wasPending
}

/** Takes in that nothing of the group is under way any more. */
export function groupUnblocked(p: ParkedGroups, key: number): void {
  const group = p.byKey.get(key)
  if (group?.state === 'blocked') become(p, group, 'idle')
}

// ── bodies come and go ────────────────────────────────────────────────────────────────────────────

/** Chooses groups whose first message should be fetched now; each must come back by `groupLoaded` or `groupLeft`. */
export function chooseToLoad(p: ParkedGroups, max: number): ParkedGroup[] {
  const chosen: ParkedGroup[] = []
  for (const group of p.toLoad) {
    if (chosen.length >= max) break
    chosen.push(group)
  }
  for (const group of chosen) become(p, group, 'loading')
  return chosen
}

/** The body of a group's first message has come, and those of the ones `behind` it that may go along. */
export function groupLoaded(p: ParkedGroups, group: ParkedGroup, first: LoadedMessage, behind: readonly LoadedMessage[] = []): void {
  if (group.state !== 'loading') return
  const { view, attempts, formerAttempts = [] } = first
  setFirst(p, group, first)
  group.commitTimeUs = view.commitTimeUs(0)
  group.view = view
  group.formerAttempts = formerAttempts
  group.behind = behind
  if (p.sends && attempts !== undefined) group.deliveries = attempts
  become(p, group, 'ready')
}

/** Takes in that the store has not done what a group waits for: it fetched no body, or did not record a discard. */
export function groupLeft(p: ParkedGroups, group: ParkedGroup): void {
  if (group.state === 'loading' || group.state === 'discarding') become(p, group, 'idle')
}

/** Hands out what `nextGroup` showed. @param count so many of those behind it as well */
export function groupTaken(p: ParkedGroups, group: ParkedGroup, lease: number, endsAt: number, count: number): void {
  for (const message of group.behind.slice(0, count)) takeBehind(p, group, message)
  become(p, group, 'inFlight', endsAt)
  if (!p.sends) group.deliveries++
  group.pending = true
  group.lease = lease
}

// ── deliveries end ────────────────────────────────────────────────────────────────────────────────

/**
 * Takes back a parked message that was handed out.
 * @returns the end of the visibility time that its group had; undefined: it was not under way, or under another lease
 */
export function rowReleased(p: ParkedGroups, ref: ParkedName, { lease, isUnseen }: Release = {}): number | undefined {
  const group = groupAt(p, ref)
  if (!group || (lease !== undefined && group.lease !== lease) || !comesBack(p, group, ref)) return undefined
  if (isUnseen && group.deliveries > 0) group.deliveries--
  return group.endsAt
}

function comesBack(p: ParkedGroups, group: ParkedGroup, ref: ParkedName): boolean {
  if (group.state !== 'inFlight' && group.taken.size === 0) return false
  if (!isFirst(group, ref)) return endBehind(p, group, ref)
  if (group.state !== 'inFlight') return false
  // while the rest is under way it isn't known what is first now: that is looked up when it has ended
  if (group.taken.size > 0) setFirst(p, group, UNKNOWN)
  else become(p, group, 'idle')
  return true
}

/** Takes back all parked messages that were handed out. @returns of how many groups */
export function groupsReleased(p: ParkedGroups): number {
  const taken = p.held.filter(({ state }) => state === 'inFlight')
  for (const group of taken) {
    forgetTaken(p, group)
    become(p, group, 'idle')
  }
  return taken.length
}

/**
 * A message of a group has failed for the `deliveries`-th time, and is tried again at `until` (monotonic ms). @returns whether its
 * group was counted as pending
 */
export function rowFailed(p: ParkedGroups, ref: ParkedName, deliveries: number, until: number): boolean {
  const group = groupAt(p, ref)
  if (!group) return false
  const wasPending = group.pending
  const name = nameOf(ref)
  if (group.taken.delete(name)) p.byName.delete(name)
  become(p, group, 'backingOff', until)
  setFirst(p, group, ref)
  group.deliveries = deliveries
  group.lease = 0
  group.pending = false
  return wasPending
}

/** Ends a back-off before its time. */
export function groupHurried(p: ParkedGroups, group: ParkedGroup): void {
  if (group.state === 'backingOff') become(p, group, 'idle')
}

/**
 * Frees what lapsed by `now`. @returns the groups whose first message has been delivered `maxDeliveries` times: they wait to be
 * discarded
 */
export function groupsLapsed(p: ParkedGroups, now: number, maxDeliveries: number): ParkedGroup[] {
  const spent: ParkedGroup[] = []
  for (let group = p.held[0]; group && group.endsAt <= now; group = p.held[0]) {
    const isSpent = group.state === 'inFlight' && group.offset >= 0 && group.deliveries >= maxDeliveries
    become(p, group, isSpent ? 'discarding' : 'idle')
    if (isSpent) spent.push(group)
  }
  return spent
}

/**
 * Takes in that a row of a group is finished or discarded.
 * @returns whether it was delivered and counted, and whether the group has nothing in the store any more
 */
export function rowEnded(p: ParkedGroups, ref: ParkedRef, now: number): Readonly<{ pending: boolean; emptied: boolean }> {
  const group = p.byKey.get(ref.key)
  if (!group) return { pending: false, emptied: false }
  p.openRows--
  group.open--
  const wasFirst = isFirst(group, ref)
  const { pending } = group
  if (group.open === 0) {
    become(p, group, 'gone')
    setFirst(p, group, UNKNOWN)
    forgetTaken(p, group)
    p.byKey.delete(group.key)
    return { pending, emptied: true }
  }
  if (!wasFirst) {
    endBehind(p, group, ref, now)
    return { pending: false, emptied: false }
  }
  group.pending = false
  if (group.taken.size > 0) setFirst(p, group, UNKNOWN)
  else comeToNext(p, group, now)
  return { pending, emptied: false }
}

/** Looks up the next message of a group whose first one has ended, or is not known. */
function comeToNext(p: ParkedGroups, group: ParkedGroup, now: number): void {
  if (group.notBefore > now) become(p, group, 'inFlight', group.notBefore)
  else become(p, group, 'idle')
  setFirst(p, group, UNKNOWN)
  group.deliveries = 0
}

/**
 * Takes in that a message that was handed out behind the first one of its group has ended, or come back. @returns whether it was
 * one of those
 */
function endBehind(p: ParkedGroups, group: ParkedGroup, ref: ParkedName, now = -Infinity): boolean {
  const name = nameOf(ref)
  if (!group.taken.delete(name)) return false
  p.byName.delete(name)
  if (group.taken.size === 0 && group.offset < 0 && group.state === 'inFlight') comeToNext(p, group, now)
  return true
}

// ── inside ────────────────────────────────────────────────────────────────────────────────────────

const UNKNOWN: ParkedName = { offset: -1, index: 0 }

const isFirst = (group: ParkedGroup, ref: ParkedName): boolean => group.offset >= 0 && nameOf(group) === nameOf(ref)

function takeBehind({ byName }: ParkedGroups, group: ParkedGroup, message: ParkedName): void {
  const name = nameOf(message)
  group.taken.add(name)
  byName.set(name, group)
}

function forgetTaken({ byName }: ParkedGroups, { taken }: ParkedGroup): void {
  for (const name of taken) byName.delete(name)
  taken.clear()
}

function add(p: ParkedGroups, { key, open, deliveries, commitTimeUs, ...first }: ParkedGroupFacts): ParkedGroup {
  const group: ParkedGroup = {
    key,
    open,
    state: 'idle',
    offset: -1,
    index: 0,
    origin: undefined,
    commitTimeUs,
    deliveries,
    pending: false,
    lease: 0,
    endsAt: 0,
    notBefore: 0,
    view: undefined,
    behind: [],
    formerAttempts: [],
    taken: new Set(),
  }
  p.byKey.set(key, group)
  setFirst(p, group, first)
  return group
}

function setFirst({ byName }: ParkedGroups, group: ParkedGroup, first: ParkedName): void {
  if (group.offset >= 0) byName.delete(nameOf(group))
  group.offset = first.offset
  group.index = first.index
  group.origin = first.origin
  if (first.offset >= 0) byName.set(nameOf(first), group)
}

/**
 * Takes a group out of the list that its state has it in, and puts it into that of the next one. @param endsAt of what is held
 * (monotonic ms)
 */
function become(p: ParkedGroups, group: ParkedGroup, state: ParkedGroup['state'], endsAt = 0): void {
  switch (group.state) {
    case 'idle':
      p.toLoad.delete(group)
      break
    case 'ready':
      remove(listOf(p, group), group)
      countReady(p, group, -1)
      group.view = undefined
      group.formerAttempts = []
      group.behind = []
      break
    case 'inFlight':
      p.inFlight--
      remove(p.held, group)
      break
    case 'backingOff':
      remove(p.held, group)
      break
    case 'blocked':
      p.blocked--
      break
  }
  group.state = state
  switch (state) {
    case 'idle':
      group.lease = 0
      p.toLoad.add(group)
      break
    case 'ready':
      countReady(p, group, 1)
      insert(listOf(p, group), group, compareAge)
      break
    case 'inFlight':
      p.inFlight++
      hold(p, group, endsAt)
      break
    case 'backingOff':
      hold(p, group, endsAt)
      break
    case 'blocked':
      p.blocked++
      break
  }
}

function hold({ held }: ParkedGroups, group: ParkedGroup, endsAt: number): void {
  group.endsAt = endsAt
  insert(held, group, (a, b) => a.endsAt - b.endsAt)
}

const listOf = ({ sends, ready, failed }: ParkedGroups, { deliveries }: ParkedGroup): ParkedGroup[] =>
  sends && deliveries > 0 ? failed : ready

function countReady(p: ParkedGroups, { view, behind }: ParkedGroup, by: 1 | -1): void {
  if (!view) return
  p.readyCount += by * (1 + behind.length)
  p.readyBytes += by * behind.reduce((sum, { view: { buffer } }) => sum + buffer.length, view.buffer.length)
}

/** Orders groups: those with messages of earlier generations come first. */
function compareAge(a: ParkedGroup, b: ParkedGroup): number {
  const generations =
    a.origin && b.origin ? a.origin.generation - b.origin.generation : Number(b.origin !== undefined) - Number(a.origin !== undefined)
  return generations || a.offset - b.offset || a.index - b.index
}

/** Takes a group out of the list that it is in; what is taken out most often stands in front. */
function remove(list: ParkedGroup[], group: ParkedGroup): void {
  const at = list[0] === group ? 0 : list.lastIndexOf(group)
  if (at < 0) throw new EngineError('INTERNAL', `a parked group that is ${group.state} stands in no list`)
  list.splice(at, 1)
}

/** Inserts behind what is not greater, looking from the end, where most belong. */
function insert(sorted: ParkedGroup[], group: ParkedGroup, compare: (a: ParkedGroup, b: ParkedGroup) => number): void {
  const last = sorted.at(-1)
  if (!last || compare(last, group) <= 0) return void sorted.push(group)
  let low = 0
  let high = sorted.length - 1 // the first that is greater is at or below it
  while (low < high) {
    const mid = (low + high) >> 1
    const it = sorted[mid]
    if (it && compare(it, group) <= 0) low = mid + 1
    else high = mid
  }
  sorted.splice(low, 0, group)
}
