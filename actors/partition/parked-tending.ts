/**
 * The work of a partition with its parked store: parks what blocks the window and what failed, records what is discarded,
 * fetches bodies that may be delivered, ends parked messages that are acked, and removes rows that no restart needs any more.
 *
 *  I1. One step with the store at a time, so that its answers are told to the dispatcher in the order of its decisions.
 *  I2. Row durable, then finished in the log, then committed. Before the row is written, what is finished below it is
 *      durable: after a crash it would come back behind it.
 *  I3. A partition is recorded as drained only after the commit of everything before its last pack is durable; what keeps it
 *      from that for too long is parked.
 *  I4. A store that fails changes nothing: what should have moved is as it was, and everything else goes on. What failed to be
 *      delivered waits until it can be recorded: it is not sent again and again meanwhile.
 *  I5. A store that may have done what it did not answer is asked again, before any other step, until it does: a row that
 *      nobody knows of would be delivered to nobody, or once more by the next owner, behind later ones of its group.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { Bell } from '../../engine/bell.ts'
import type { RefList } from '../../engine/dispatch/ack-id.ts'
import { isDrained } from '../../engine/dispatch/dispatcher.ts'
import type { MessageEdit } from '../../engine/dispatch/parked/message-records.ts'
import {
  chooseToLoad,
  groupAt,
  groupHurried,
  groupLeft,
  groupLoaded,
  nameOf,
  parkedNames,
  type Origin,
  type ParkedName,
  type ParkedRef,
} from '../../engine/dispatch/parked/parked-groups.ts'
import { DELIVERED_TOO_OFTEN } from '../../engine/dispatch/parked/parked-row.ts'
import { MAX_ENDED, type Chosen } from '../../engine/dispatch/parked/parked-store.ts'
import {
  isMoving,
  isParkingFull,
  isStuck,
  isTooLarge,
  moved,
  nextOf,
  notMoved,
  parkedEnded,
  parkedFailed,
  parkedGone,
  parkedReopened,
  toPark,
  type Failed,
  type FailedMessage,
  type Move,
} from '../../engine/dispatch/parked/parking.ts'
import type { Wants } from '../../engine/dispatch/wants.ts'
import { EngineError, isFenced } from '../../engine/errors.ts'
import { mayBeDone } from '../../engine/postgres/sqlstate.ts'
import type { OwnedPartition } from './owned-partition.ts'
import type { Discarded } from './sink-observer.ts'

/** Messages that keep an ended generation from being drained are parked after this. */
const DRAIN_AFTER_MS = 30_000
/** A full window is left to clients, and to requests under way, for so long before what blocks it is parked. */
const PARK_AFTER_MS = 1_000
const PARK_SENT_AFTER_MS = 5_000
/** It is left to them for this time when something was parked a moment ago: the jam goes on, and every wait holds up the other groups. */
const PARK_AGAIN_MS = 50
const JAM_MS = 10_000
/** So many bodies of parked messages are fetched ahead. */
const LOAD_AHEAD = 500
const LOAD_AHEAD_BYTES = 8 * 1024 * 1024
const STORE_RETRY_MS = 1_000
/** At most so many messages that failed again are recorded in one step. */
const MAX_FAILED = 500

/** Messages to be delivered again by hand. @property entry what stands among the attempts of each that it opens: no other has the same */
type Redelivery = Readonly<{ chosen: Chosen | 'discarded'; entry: Failed['record'] }>

/** Does the work of one partition with its parked store. */
export class ParkedTending {
  readonly #owned: OwnedPartition
  readonly #bell = new Bell()
  #turn: Promise<unknown> = Promise.resolve()
  /** that wait for their turn, or have it */
  #steps = 0
  /** since when the window is full and everything in it was looked at; redeliveries don't change that */
  #fullSince: number | undefined
  #parkedAt = -Infinity
  #mayHaveDone: boolean
  /** parked messages that failed again, until that is recorded */
  #failedAgain: FailedMessage[] = []
  /** of which it isn't known whether the store has done it */
  #unheard: Redelivery | undefined
  /** since when only what clients hold, or gave back, keeps a closed partition from being drained */
  #leftSince: number | undefined
  #isRecorded = false
  /** the last failure of the store, until it works again */
  trouble: unknown

  /** @param hasParked former owners may have left rows that no restart needs any more */
  constructor(owned: OwnedPartition, hasParked: boolean) {
    this.#owned = owned
    this.#mayHaveDone = hasParked
  }

  /** Reading stands because nothing more can be parked. */
  get jammed(): boolean {
    return isParkingFull(this.#owned.dispatcher) && this.#fullSince !== undefined
  }

  /** Nothing is on its way to the store, and nothing waits for it. */
  get isIdle(): boolean {
    return this.#steps === 0 && this.#failedAgain.length === 0 && this.#owned.dispatcher.failures.length === 0
  }

  /** After every change of the dispatcher: wakes the loop if there is something to do. */
  changed({ records, isLookedAt, isDrained: drained, store }: Wants): void {
    const { dispatcher, sink } = this.#owned
    if (records || !isLookedAt) this.#fullSince = undefined
    else this.#fullSince ??= sink.clock()
    const isLeft = dispatcher.closed && isLookedAt && this.#leftSince === undefined
    if (isLeft) this.#leftSince = sink.clock()
    if (isLeft || (drained && !this.#isRecorded) || store || this.#wantsLoading()) this.#bell.ring()
  }

  /** A commit is durable: rows below it that are done can go. */
  committed(): void {
    if (this.#mayHaveDone) this.#bell.ring()
  }

  /** Does whatever there is to do, until the signal is aborted. @throws EngineError PARTITION_FENCED */
  async run(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      try {
        await this.inTurn(() => this.#tend())
        this.trouble = undefined
      } catch (error) {
        if (isFenced(error)) throw error
        this.trouble = error // the rest goes on without parking; health says so
        await delay(STORE_RETRY_MS, undefined, { signal }).catch(() => undefined)
        continue
      }
      await this.#bell.wait(signal, Math.max(1, Math.min(this.#parkAt(), this.#leaveAt()) - this.#owned.sink.clock()))
    }
  }

  /** Runs a step with the store when those before it have ended. */
  inTurn<T>(step: () => Promise<T>): Promise<T> {
    this.#steps++
    const turn = this.#turn.then(step, step)
    const ended = () => void this.#steps--
    this.#turn = turn.then(ended, ended)
    return turn
  }

  async #tend(): Promise<void> {
    const { store, commits } = this.#owned
    await this.#askAgain()
    await this.#recordFailures()
    await this.#recordFailedAgain()
    await this.#recordDiscards()
    await this.#park()
    await this.#recordDrained()
    await this.#load()
    if (!this.#mayHaveDone) return
    this.#mayHaveDone = false
    await store.removeDone(commits.committed).catch((error: unknown) => {
      this.#mayHaveDone = true
      throw error
    })
  }

  /** The store has changed: other messages may be deliverable, and rows that are done may go. */
  #stored(): void {
    this.#mayHaveDone = true
    this.#owned.moved()
  }

  // ── ends of parked messages ─────────────────────────────────────────────────────────────────────

  /** Parked messages have failed again: recorded in turn. */
  failedAgain(messages: readonly FailedMessage[]): void {
    this.#failedAgain.push(...messages)
    this.#bell.ring()
  }

  /**
   * Ends parked messages, durably; unknown ones are ignored. To be called in turn. @param origin of those that another generation
   * has named
   */
  async finish(list: RefList, origin?: Origin): Promise<void> {
    const { dispatcher, store, observer } = this.#owned
    await this.#askAgain()
    if (!origin && isMoving(dispatcher, list)) {
      await this.#recordFailures() // what has no row yet can't be ended
      if (this.#owned.isClosed) throw new EngineError('STOPPING', 'the partition is stopping or moving')
    }
    const refs = parkedNames(list, origin)
    const rows = this.#withUnheard(refs, await store.end(refs, 'done'))
    if (rows.length === 0 || this.#owned.isClosed) return
    parkedEnded(dispatcher, rows)
    observer.acked({ messages: rows.length, heldMs: 0 })
    this.#stored()
  }

  async #recordFailedAgain(): Promise<void> {
    const { dispatcher, store, sink } = this.#owned
    while (this.#failedAgain.length > 0 && !this.#owned.isClosed) {
      const some = this.#failedAgain.slice(0, MAX_FAILED)
      const rows = await store.failed(some)
      this.#failedAgain.splice(0, some.length)
      if (this.#owned.isClosed) return
      const failures = new Map(some.map((one) => [nameOf(one), one.failed]))
      for (const row of this.#withUnheard(some, rows)) {
        const { attempts = 0, retryInMs } = failures.get(nameOf(row)) ?? {}
        if (retryInMs !== undefined) parkedFailed(dispatcher, row, attempts, sink.clock() + retryInMs)
        else {
          parkedEnded(dispatcher, [row])
          this.#gaveUp(1, 'attempts')
        }
      }
      this.#stored()
    }
  }

  /**
   * Adds those that the store has not as open although they are taken here: it ended them before, and its answer was lost.
   * @param rows what it has ended now
   */
  #withUnheard(refs: readonly ParkedName[], rows: readonly ParkedRef[]): readonly ParkedRef[] {
    if (rows.length === refs.length) return rows
    const known = new Set(rows.map(nameOf))
    const unheard = refs.flatMap(({ offset, index, origin }) => {
      const group = groupAt(this.#owned.dispatcher.parked, { offset, index, origin })
      return group && !known.has(nameOf({ offset, index, origin })) ? [{ key: group.key, offset, index, origin }] : []
    })
    return [...rows, ...unheard]
  }

  // ── what leaves the window ──────────────────────────────────────────────────────────────────────

  async #recordFailures(): Promise<void> {
    const { failures } = this.#owned.dispatcher
    while (failures.length > 0 && !this.#owned.isClosed) await this.#record(nextOf(failures), true)
  }

  async #recordDiscards(): Promise<void> {
    const { dispatcher, store } = this.#owned
    const { discards, parkedDiscards, parked } = dispatcher
    while (discards.length > 0 && !this.#owned.isClosed) await this.#record(nextOf(discards))
    while (parkedDiscards.length > 0 && !this.#owned.isClosed) {
      const groups = nextOf(parkedDiscards)
      try {
        parkedEnded(dispatcher, await store.end(groups, 'discarded', DELIVERED_TOO_OFTEN))
      } finally {
        for (const group of groups) groupLeft(parked, group) // those that were not ended
      }
      this.#gaveUp(groups.length, 'attempts')
      this.#stored()
    }
  }

  async #park(): Promise<void> {
    const { dispatcher, sink } = this.#owned
    while (!this.#owned.isClosed) {
      const all = this.#leaveAt() <= sink.clock()
      if (!all && this.#parkAt() > sink.clock()) return
      const since = this.#fullSince
      const moves = toPark(dispatcher, all)
      if (moves.length === 0) return
      await this.#record(moves)
      this.#parkedAt = sink.clock()
      if (this.#fullSince !== undefined) this.#fullSince = since // go on at once, it is the same jam
    }
  }

  /** Writes rows of messages that leave the window. @param must they are handed out no more before they are recorded */
  async #record(moves: readonly Move[], must = false): Promise<void> {
    const { dispatcher, store, commits, observer } = this.#owned
    let isAsked = false
    try {
      await commits.next()
      isAsked = true
      await store.insert(moves)
    } catch (error) {
      if (must || (isAsked && error instanceof Error && mayBeDone(error.cause))) dispatcher.failures.unshift(...moves)
      else notMoved(dispatcher, moves)
      throw error
    }
    moved(dispatcher, moves)
    const parked = moves.filter(({ kind }) => kind === 'park').length
    const tooLarge = moves.filter(({ kind, view, index }) => kind === 'discard' && isTooLarge(view, index)).length
    if (parked > 0) observer.parked(parked)
    this.#gaveUp(tooLarge, 'size')
    this.#gaveUp(moves.length - parked - tooLarge, 'attempts')
    this.#stored()
  }

  #gaveUp(messages: number, why: Discarded): void {
    if (messages === 0) return
    this.#owned.observer.discarded(messages, why)
    this.#owned.discarded.add(messages, why)
  }

  async #recordDrained(): Promise<void> {
    const { dispatcher, store, commits, trimming, sink, key } = this.#owned
    if (!isDrained(dispatcher) || this.#isRecorded || this.#owned.isClosed) return
    await commits.next()
    await trimming.noteAll() // once it is recorded another process may raise the terms
    await store.recordDrained()
    this.#isRecorded = true
    sink.drained(key)
  }

  /** When what keeps the partition from being drained is to be parked; Infinity: nothing does, or not yet. */
  #leaveAt(): number {
    const { dispatcher, sink } = this.#owned
    if (this.#leftSince === undefined || isDrained(dispatcher) || isParkingFull(dispatcher)) return Infinity
    return this.#leftSince + (sink.surroundings.drainAfterMs ?? DRAIN_AFTER_MS)
  }

  /** When what blocks the window is to be parked; Infinity: nothing does. */
  #parkAt(): number {
    const { dispatcher } = this.#owned
    if (isParkingFull(dispatcher) || !isStuck(dispatcher)) return Infinity
    if (this.#fullSince === undefined) return -Infinity // too many finished ranges
    const afterMs = dispatcher.sends ? PARK_SENT_AFTER_MS : PARK_AFTER_MS
    return this.#fullSince + (this.#fullSince - this.#parkedAt < JAM_MS ? PARK_AGAIN_MS : afterMs)
  }

  // ── bodies ──────────────────────────────────────────────────────────────────────────────────────

  async #load(): Promise<void> {
    const { dispatcher, store } = this.#owned
    const { parked, settings } = dispatcher
    while (this.#wantsLoading() && !this.#owned.isClosed) {
      const groups = chooseToLoad(parked, LOAD_AHEAD - parked.readyCount)
      const each = Math.max(1, Math.min(settings.perGroup ?? 1, Math.floor(LOAD_AHEAD / groups.length)))
      try {
        const loaded = await store.fetch(groups, LOAD_AHEAD_BYTES, each) // those that are too much at once come next time
        const byKey = Map.groupBy(loaded, ({ key }) => key)
        for (const group of groups) {
          const [first, ...others] = byKey.get(group.key) ?? []
          if (!first) continue
          // what has failed before goes alone
          const end = first.attempts > 0 ? 0 : others.findIndex(({ attempts }) => attempts > 0)
          groupLoaded(parked, group, first, end < 0 ? others : others.slice(0, end))
        }
        if (loaded.length === 0) parkedGone(dispatcher, groups)
      } finally {
        for (const group of groups) groupLeft(parked, group)
      }
      this.#owned.moved()
    }
  }

  #wantsLoading(): boolean {
    const { toLoad, readyCount, readyBytes } = this.#owned.dispatcher.parked
    return toLoad.size > 0 && readyCount < LOAD_AHEAD && readyBytes < LOAD_AHEAD_BYTES
  }

  // ── what people decide ──────────────────────────────────────────────────────────────────────────

  /**
   * Does what somebody decided about messages that wait, or were given up: the row first, durably, then the dispatcher. A message that
   * is being sent at that moment may arrive all the same.
   *
   *  redeliver     tried at once: a back-off ends, and what was discarded is open again, as if it had never failed
   *  acknowledge   done, as if it had been delivered
   *  discard       given up, on record
   *
   * @param chosen `discarded`: all that were given up. @returns how many it held for. @throws EngineError STATE_UNAVAILABLE
   */
  edit(edit: MessageEdit, chosen: Chosen | 'discarded'): Promise<number> {
    return this.inTurn(async () => {
      if (this.#owned.isClosed) return 0
      await this.#askAgain()
      const count = edit === 'redeliver' ? await this.#redeliver(chosen) : chosen === 'discarded' ? 0 : await this.#endByHand(edit, chosen)
      if (count > 0) this.#edited()
      return count
    })
  }

  async #redeliver(chosen: Chosen | 'discarded'): Promise<number> {
    const asked = { chosen, entry: entry('to be delivered again, by hand') }
    try {
      return await this.#reopen(asked)
    } catch (error) {
      if (error instanceof Error && mayBeDone(error.cause)) this.#unheard = asked
      this.#bell.ring()
      throw error
    }
  }

  /** Asks the store again for what it has not answered, before any other step. */
  async #askAgain(): Promise<void> {
    if (!this.#unheard || this.#owned.isClosed) return
    await this.#reopen(this.#unheard, true)
    this.#unheard = undefined
    this.#edited()
  }

  #edited(): void {
    this.#stored()
    this.#bell.ring()
  }

  /**
   * @param isAgain the store has not answered the last time: what it opened then is known only now. @returns how many messages it
   * held for
   */
  async #reopen({ chosen, entry: by }: Redelivery, isAgain = false): Promise<number> {
    const { dispatcher, store, discarded } = this.#owned
    const { parked } = dispatcher
    let count = 0
    if (chosen !== 'discarded') {
      count = (await store.hurry(chosen)).length
      const groups = typeof chosen === 'string' ? parked.byKey.values() : chosen.map((name) => groupAt(parked, name))
      for (const group of groups) if (group && !this.#owned.isClosed) groupHurried(parked, group)
      if (typeof chosen === 'string') return count
    }
    const opened = await store.reopen(chosen === 'discarded' ? undefined : chosen, by)
    const rows = isAgain ? await store.reopenedWith(by) : opened
    if (!this.#owned.isClosed) parkedReopened(dispatcher, rows)
    discarded.reopened(rows.length)
    return count + rows.length
  }

  async #endByHand(edit: 'acknowledge' | 'discard', chosen: Chosen): Promise<number> {
    const { dispatcher, store, observer } = this.#owned
    const isDiscard = edit === 'discard'
    for (let count = 0; ;) {
      const by = entry(isDiscard ? 'discarded by hand' : 'acknowledged by hand')
      const rows = await store.endChosen(chosen, isDiscard ? 'discarded' : 'done', by)
      count += rows.length
      if (rows.length > 0 && !this.#owned.isClosed) {
        parkedEnded(dispatcher, rows)
        if (isDiscard) this.#gaveUp(rows.length, 'hand')
        else observer.acked({ messages: rows.length, heldMs: 0 })
      }
      if (typeof chosen !== 'string' || rows.length < MAX_ENDED || this.#owned.isClosed) return count
    }
  }
}

/** A note among the attempts of a message that does not count as one. */
const entry = (message: string) => ({ at: new Date().toISOString(), counts: false, message })
