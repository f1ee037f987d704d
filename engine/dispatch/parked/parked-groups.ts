/**
 * What a partition keeps in memory of its parked messages: one entry per group, never the messages themselves. The
 * body of a group's first message is fetched when it may be delivered and let go of when it was.
 *
 *   idle ─chosen─▶ loading ─body came─▶ ready ─taken─▶ inFlight ─lapse, nack─▶ idle
 *   inFlight ─failed─▶ backingOff ─its time has come─▶ idle
 *   first message finished: idle again for the next one · none left: the group goes back to the log
 *   blocked: a message that was given up is open again while later ones of its group are under way ─those ended─▶ idle
 *
 * An owner that sends takes several of a group at once, the first and those behind it: the group is in flight until it is
 * told how each of them ended.
 */
import type { MessageView } from '../../log/message-view.ts'
import {
  compareAge,
  nameOf,
  newGroup,
  type Held,
  type LoadedBehind,
  type LoadedWith,
  type Origin,
  type ParkedGroup,
  type ParkedGroupFacts,
  type ParkedPlace,
  type ParkedRef,
} from './parked-group.ts'

export class ParkedGroups {
  readonly #byKey = new Map<number, ParkedGroup>()
  readonly #byName = new Map<number | string, ParkedGroup>()
  /** groups whose first message may be delivered and has no body yet */
  readonly #toLoad = new Set<ParkedGroup>()
  /** loaded, lowest message first; those that have failed before stand apart, where the owner sends */
  readonly #ready: ParkedGroup[] = []
  readonly #failed: ParkedGroup[] = []
  /** held by clients or backing off, by the end of that */
  readonly #held: ParkedGroup[] = []
  readonly #sends: boolean
  #inFlight = 0
  #blocked = 0
  openRows = 0
  readyBytes = 0
  /** messages that are loaded */
  readyCount = 0

  /** @param sends the owner sends, and knows the end of every delivery: nothing lapses but back-offs */
  constructor(sends: boolean) {
    this.#sends = sends
  }

  get size(): number {
    return this.#byKey.size
  }
  /** first messages that are with clients, or may be */
  get heldCount(): number {
    return this.#inFlight
  }
  /** some groups wait for what is under way of them */
  get anyBlocked(): boolean {
    return this.#blocked > 0
  }
  /** of those that have failed before */
  get failedCount(): number {
    return this.#failed.length
  }
  /** Groups whose first message has failed, when it is the owner that sends. */
  failing(): number {
    let count = 0
    for (const { deliveries } of this.#byKey.values()) if (deliveries > 0) count++
    return count
  }
  has(key: number): boolean {
    return this.#byKey.has(key)
  }
  groups(): Iterable<ParkedGroup> {
    return this.#byKey.values()
  }
  /** Commit time of the oldest message, µs since the epoch; Infinity: none is parked. */
  oldestUs(): number {
    let oldest = Infinity
    for (const { commitTimeUs } of this.#byKey.values()) if (commitTimeUs < oldest) oldest = commitTimeUs
    return oldest
  }
  /** The group that a message is the first of, or was taken of. */
  groupAt(offset: number, index: number, origin?: Origin): ParkedGroup | undefined {
    return this.#byName.get(nameOf(offset, index, origin))
  }

  /** A message is now in the store; messages of a group come lowest first. @returns whether it is its group's first */
  park(key: number, { offset, index, commitTimeUs }: ParkedPlace, held: Held): boolean {
    this.openRows++
    const known = this.#byKey.get(key)
    if (known) {
      known.open++
      if (held.endsAt > known.notBefore && !this.#sends) known.notBefore = held.endsAt
      return false
    }
    const group = this.#add({ key, open: 1, offset, index, commitTimeUs })
    group.deliveries = held.deliveries
    group.pending = held.pending
    group.lease = held.lease
    if (held.endsAt > 0) this.#hold(group, held.endsAt, held.isBackOff ? 'backingOff' : 'inFlight')
    else this.#toLoad.add(group)
    return true
  }

  /**
   * A group found in the store at the take-over.
   * @param invisibleUntil of its first message (monotonic ms; 0: visible)
   * @param laterUntil of those after it, which may be with a client as well
   */
  restore(facts: ParkedGroupFacts, invisibleUntil: number, laterUntil: number): void {
    this.openRows += facts.open
    const group = this.#add(facts)
    group.deliveries = facts.deliveries
    if (facts.open > 1) group.notBefore = laterUntil
    if (invisibleUntil > 0) this.#hold(group, invisibleUntil, this.#sends ? 'backingOff' : 'inFlight')
    else this.#toLoad.add(group)
  }

  get wantsLoading(): boolean {
    return this.#toLoad.size > 0
  }

  /** Groups whose first message should be fetched now; each must come back by `loaded` or `notLoaded`. */
  toLoad(max: number): ParkedGroup[] {
    const chosen: ParkedGroup[] = []
    for (const group of this.#toLoad) {
      if (chosen.length >= max) break
      chosen.push(group)
    }
    for (const group of chosen) {
      this.#toLoad.delete(group)
      group.state = 'loading'
    }
    return chosen
  }

  /**
   * @param ref,view its first message, and the ones `behind` it that may go along
   */
  loaded(
    group: ParkedGroup,
    { offset, index, origin }: Omit<ParkedRef, 'key'>,
    view: MessageView,
    { attempts = group.deliveries, formerAttempts = [], behind = [] }: LoadedWith = {},
  ): void {
    if (group.state !== 'loading') return
    this.#setFirst(group, offset, index, origin)
    group.state = 'ready'
    group.commitTimeUs = view.commitTimeUs(0)
    group.view = view
    group.formerAttempts = formerAttempts
    group.behind = behind
    if (this.#sends) group.deliveries = attempts
    this.#countReady(group, 1)
    insert(this.#listOf(group), group, compareAge)
  }

  notLoaded(group: ParkedGroup): void {
    if (group.state === 'loading') this.#idle(group)
  }

  /** The lowest message that can be delivered, if its body is here. @param failed of those that have failed before */
  peek(failed = false): ParkedGroup | undefined {
    return (failed ? this.#failed : this.#ready)[0]
  }

  /** Hands out what `peek` showed. @param behind so many of those behind it as well. @returns its body */
  take(lease: number, endsAt: number, failed = false, behind = 0): MessageView {
    const group = (failed ? this.#failed : this.#ready).shift() as ParkedGroup
    const view = group.view as MessageView
    for (let i = 0; i < behind; i++) {
      const { offset, index, origin } = group.behind[i] as LoadedBehind
      const name = nameOf(offset, index, origin)
      group.taken.add(name)
      this.#byName.set(name, group)
    }
    this.#dropView(group)
    if (!this.#sends) group.deliveries++
    group.pending = true
    group.lease = lease
    this.#hold(group, endsAt, 'inFlight')
    return view
  }

  /** A message that was taken comes back. @returns whether it was under way */
  release(group: ParkedGroup, { offset, index, origin }: Omit<ParkedRef, 'key'> = group): boolean {
    if (group.state !== 'inFlight' && group.taken.size === 0) return false
    if (!this.#isFirst(group, { offset, index, origin })) return this.#told(group, nameOf(offset, index, origin))
    if (group.state !== 'inFlight') return false
    if (group.taken.size > 0) {
      // the rest is under way: what is first now is looked up when that has ended
      this.#setFirst(group, -1, 0)
      return true
    }
    this.#unhold(group)
    this.#idle(group)
    return true
  }

  /** Whatever was taken comes back. @returns of how many groups */
  releaseAll(): number {
    const taken = this.#held.filter(({ state }) => state === 'inFlight')
    for (const group of taken) {
      for (const name of group.taken) this.#byName.delete(name)
      group.taken.clear()
      this.#unhold(group)
      this.#idle(group)
    }
    return taken.length
  }

  /** A message of a group has failed for the `deliveries`-th time, and is tried again at `until` (monotonic ms). */
  backOff(group: ParkedGroup, { offset, index, origin }: Omit<ParkedRef, 'key'>, deliveries: number, until: number): void {
    const name = nameOf(offset, index, origin)
    this.#leave(group)
    if (group.taken.delete(name)) this.#byName.delete(name)
    this.#setFirst(group, offset, index, origin)
    group.deliveries = deliveries
    group.lease = 0
    group.pending = false
    this.#hold(group, until, 'backingOff')
  }

  /** Ends a back-off before its time. @returns whether there was one */
  hurry(group: ParkedGroup): boolean {
    if (group.state !== 'backingOff') return false
    this.#leave(group)
    this.#idle(group)
    return true
  }

  /**
   * A message that was given up is open again, most likely the first of its group.
   * @param isUnderWay something of the group is: nothing else of it goes out before `unblock`
   * @returns whether what was the first until now had been counted as pending
   */
  reopen(key: number, isUnderWay: boolean): boolean {
    this.openRows++
    const known = this.#byKey.get(key)
    const group = known ?? this.#add({ key, open: 0, offset: -1, index: 0, commitTimeUs: Date.now() * 1000 })
    group.open++
    if (known && (!this.#sends || (known.state !== 'ready' && known.state !== 'backingOff' && known.state !== 'idle'))) return false
    const wasPending = group.pending
    this.#leave(group)
    this.#setFirst(group, -1, 0)
    group.deliveries = 0
    group.pending = false
    if (isUnderWay) {
      group.state = 'blocked'
      this.#blocked++
    } else this.#idle(group)
    return wasPending
  }

  /** Nothing of the group is under way any more. */
  unblock(key: number): void {
    const group = this.#byKey.get(key)
    if (group?.state !== 'blocked') return
    this.#leave(group)
    this.#idle(group)
  }

  nextEnd(): number {
    return this.#held.length ? (this.#held[0] as ParkedGroup).endsAt : Infinity
  }

  /** Frees what lapsed by `now`. @returns the groups whose first message has been delivered `maxDeliveries` times: they wait to be discarded */
  lapse(now: number, maxDeliveries: number): ParkedGroup[] {
    const spent: ParkedGroup[] = []
    while (this.#held.length && (this.#held[0] as ParkedGroup).endsAt <= now) {
      const group = this.#held.shift() as ParkedGroup
      const wasBackingOff = group.state === 'backingOff'
      if (!wasBackingOff) this.#inFlight--
      if (!wasBackingOff && group.offset >= 0 && group.deliveries >= maxDeliveries) {
        group.state = 'discarding'
        spent.push(group)
      } else this.#idle(group)
    }
    return spent
  }

  /** The discard didn't happen: the message is deliverable again. */
  notDiscarded(group: ParkedGroup): void {
    if (group.state === 'discarding') this.#idle(group)
  }

  /**
   * A row of a group is finished or discarded.
   * @returns whether it was delivered and counted, and whether the group has nothing in the store any more
   */
  finish({ key, offset, index, origin }: ParkedRef, now: number): { pending: boolean; emptied: boolean } {
    const group = this.#byKey.get(key)
    if (!group) return { pending: false, emptied: false }
    this.openRows--
    group.open--
    const first = this.#isFirst(group, { offset, index, origin })
    const pending = first && group.pending
    if (group.open === 0) {
      this.#leave(group)
      this.#setFirst(group, -1, 0)
      for (const name of group.taken) this.#byName.delete(name)
      this.#byKey.delete(key)
      return { pending: pending || group.pending, emptied: true }
    }
    if (first && group.taken.size > 0) {
      this.#setFirst(group, -1, 0)
      group.pending = false
    } else if (first) {
      this.#leave(group)
      group.pending = false
      this.#next(group, now)
    } else this.#told(group, nameOf(offset, index, origin), now)
    return { pending, emptied: false }
  }

  /** What was the first has ended, or is not known: the next one is looked up. */
  #next(group: ParkedGroup, now: number): void {
    this.#setFirst(group, -1, 0)
    group.deliveries = 0
    if (group.notBefore > now) this.#hold(group, group.notBefore, 'inFlight')
    else this.#idle(group)
  }

  /** One that was taken behind the first has ended, or come back. @returns whether it was one of those */
  #told(group: ParkedGroup, name: number | string, now = -Infinity): boolean {
    if (!group.taken.delete(name)) return false
    this.#byName.delete(name)
    if (group.taken.size === 0 && group.offset < 0 && group.state === 'inFlight') {
      this.#unhold(group)
      this.#next(group, now)
    }
    return true
  }

  #isFirst(group: ParkedGroup, { offset, index, origin }: Omit<ParkedRef, 'key'>): boolean {
    return group.offset >= 0 && nameOf(group.offset, group.index, group.origin) === nameOf(offset, index, origin)
  }

  #add({ key, open, offset, index, origin, commitTimeUs }: Omit<ParkedGroupFacts, 'deliveries'>): ParkedGroup {
    const group = newGroup(key, open, commitTimeUs)
    this.#byKey.set(key, group)
    this.#setFirst(group, offset, index, origin)
    return group
  }

  #setFirst(group: ParkedGroup, offset: number, index: number, origin?: Origin): void {
    if (group.offset >= 0) this.#byName.delete(nameOf(group.offset, group.index, group.origin))
    group.offset = offset
    group.index = index
    group.origin = origin
    if (offset >= 0) this.#byName.set(nameOf(offset, index, origin), group)
  }

  #idle(group: ParkedGroup): void {
    group.state = 'idle'
    group.lease = 0
    this.#toLoad.add(group)
  }

  #listOf(group: ParkedGroup): ParkedGroup[] {
    return this.#sends && group.deliveries > 0 ? this.#failed : this.#ready
  }

  #hold(group: ParkedGroup, endsAt: number, state: 'inFlight' | 'backingOff'): void {
    group.state = state
    if (state === 'inFlight') this.#inFlight++
    group.endsAt = endsAt
    insert(this.#held, group, (a, b) => a.endsAt - b.endsAt)
  }

  #unhold(group: ParkedGroup): void {
    const at = this.#held.lastIndexOf(group) // what ends soonest stands in front, and is the rest
    if (at >= 0) this.#held.splice(at, 1)
    if (group.state === 'inFlight') this.#inFlight--
  }

  #dropView(group: ParkedGroup): void {
    this.#countReady(group, -1)
    group.view = undefined
    group.formerAttempts = []
    group.behind = []
  }

  #countReady({ view, behind }: ParkedGroup, by: 1 | -1): void {
    if (!view) return
    this.readyCount += by * (1 + behind.length)
    this.readyBytes += by * behind.reduce((sum, { view: { buffer } }) => sum + buffer.length, view.buffer.length)
  }

  /** Takes a group out of whatever list its state has it in. */
  #leave(group: ParkedGroup): void {
    this.#toLoad.delete(group)
    if (group.state === 'blocked') this.#blocked--
    if (group.state === 'inFlight' || group.state === 'backingOff') this.#unhold(group)
    if (group.state === 'ready') {
      const list = this.#listOf(group)
      list.splice(list.indexOf(group), 1)
      this.#dropView(group)
    }
    group.state = 'idle'
  }
}

/** Inserts behind what is not greater, looking from the end, where most belong. */
function insert<T>(sorted: T[], item: T, compare: (a: T, b: T) => number): void {
  let low = 0
  let high = sorted.length
  if (high > 0 && compare(sorted[high - 1] as T, item) <= 0) low = high
  while (low < high) {
    const mid = (low + high) >> 1
    if (compare(sorted[mid] as T, item) <= 0) low = mid + 1
    else high = mid
  }
  sorted.splice(low, 0, item)
}
