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
import type { RefList } from '../../engine/dispatch/ack-id.ts'
import type { Dispatcher } from '../../engine/dispatch/dispatcher.ts'
import { nameOf, type Origin, type ParkedRef } from '../../engine/dispatch/parked/parked-group.ts'
import type { Chosen, ParkedStore } from '../../engine/dispatch/parked/parked-store.ts'
import { isTooLarge } from '../../engine/dispatch/parked/too-large.ts'
import type { Failed, Move } from '../../engine/dispatch/parked/parking.ts'
import { EngineError, isFenced } from '../../engine/errors.ts'
import type { MessageRef } from '../../engine/log/log.ts'
import { mayBeDone } from '../../engine/postgres/sqlstate.ts'
import { Bell } from '../../engine/bell.ts'
import { endParked, redeliver, redelivery, type Redelivery } from './parked-edits.ts'
import type { MessageEdit } from '../../engine/dispatch/parked/message-records.ts'
import type { DiscardedMessages } from './discarded-messages.ts'
import type { Discarded, SinkObserver } from './sink-observer.ts'

type TendingOptions = Readonly<{
  dispatcher: Dispatcher
  store: ParkedStore
  observer: SinkObserver
  /** monotonic milliseconds */
  clock: () => number
  /** the owner is stopping, or void */
  isClosed: () => boolean
  /** settles when what is finished now is durable */
  commit: () => Promise<void>
  /** the dispatcher changed here: finished messages want a commit, others may be deliverable */
  moved: () => void
  /** the durable commit's lowest unfinished message */
  committed: () => MessageRef
  /** what keeps a closed partition from being drained is parked after this */
  drainAfterMs: number
  /** told of everything that is discarded, and not any more */
  discarded: DiscardedMessages
  /** former owners may have left rows that no restart needs any more */
  hasParked: boolean
  /** once it is recorded another process may raise the terms */
  beforeDrained: () => Promise<void>
  /** recorded: nothing of the generation is left here but parked messages */
  drained: () => void
  /** how long a full window without anything deliverable is left alone before what blocks it is parked */
  parkAfterMs: number
}>

type FailedRef = Readonly<{ offset: number; index: number; origin: Origin | undefined; failed: Failed }>

/** The same when something was parked a moment ago: the jam goes on, and every wait holds up the other groups. */
const PARK_AGAIN_MS = 50
const JAM_MS = 10_000
/** Bodies of parked messages fetched ahead. */
const LOAD_AHEAD = 500
const LOAD_AHEAD_BYTES = 8 * 1024 * 1024
const STORE_RETRY_MS = 1_000
/** failed again, recorded at once */
const MAX_FAILED = 500
const DISCARD_REASON = 'delivered max_retry_count times without an acknowledgement'

export class ParkedTending {
  readonly #options: TendingOptions
  readonly #bell = new Bell()
  #turn: Promise<unknown> = Promise.resolve()
  /** that wait for their turn, or have it */
  #steps = 0
  /** since when the window is full and everything in it was looked at; redeliveries don't change that */
  #fullSince: number | undefined
  #parkedAt = -Infinity
  #mayHaveDone: boolean
  /** parked messages that failed again, until that is recorded */
  #failedAgain: FailedRef[] = []
  /** of which it isn't known whether the store has done it */
  #unheard: Redelivery | undefined
  /** since when only what clients hold, or gave back, keeps a closed partition from being drained */
  #leftSince: number | undefined
  #recorded = false
  #trouble: unknown

  constructor(options: TendingOptions) {
    this.#options = options
    this.#mayHaveDone = options.hasParked
  }

  /** The last failure of the store, until it works again. */
  get trouble(): unknown {
    return this.#trouble
  }
  /** Reading stands because nothing more can be parked. */
  get jammed(): boolean {
    return this.#options.dispatcher.parking.full && this.#fullSince !== undefined
  }

  /** After every change of the dispatcher. */
  changed(): void {
    const { dispatcher, clock } = this.#options
    const { parking, window } = dispatcher
    if (dispatcher.room() || window.cursor < window.end) this.#fullSince = undefined
    else this.#fullSince ??= clock()
    if (dispatcher.closed && window.cursor === window.end && this.#leftSince === undefined) {
      this.#leftSince = clock()
      this.#bell.ring()
    }
    if (dispatcher.drained && !this.#recorded) this.#bell.ring()
    if (parking.hasDiscards || parking.hasFailures || this.#wantsLoading() || (!parking.full && parking.stuck(dispatcher.windowBytes)))
      this.#bell.ring()
  }

  /** A commit is durable: rows below it that are done can go. */
  committed(): void {
    if (this.#mayHaveDone) this.#bell.ring()
  }

  async run(signal: AbortSignal): Promise<void> {
    const { clock } = this.#options
    while (!signal.aborted) {
      try {
        await this.inTurn(() => this.#tend())
        this.#trouble = undefined
      } catch (error) {
        if (isFenced(error)) throw error
        this.#trouble = error // the rest goes on without parking; health says so
        await delay(STORE_RETRY_MS, undefined, { signal }).catch(() => undefined)
        continue
      }
      await this.#bell.wait(signal, Math.max(1, Math.min(this.#parkAt(), this.#leaveAt()) - clock()))
    }
  }

  /** Parked messages have failed again: recorded in turn. @param origin of those that another generation has named */
  failedAgain({ offsets, indexes }: RefList, failures: readonly Failed[], origin?: Origin): void {
    for (const [i, failed] of failures.entries())
      this.#failedAgain.push({ offset: offsets[i] as number, index: indexes[i] as number, origin, failed })
    this.#bell.ring()
  }

  /** What somebody decided of messages that wait, or were given up. @returns how many it held for. @throws EngineError STATE_UNAVAILABLE */
  edit(edit: MessageEdit, chosen: Chosen | 'discarded'): Promise<number> {
    return this.inTurn(async () => {
      if (this.#options.isClosed()) return 0
      await this.#askAgain()
      const count = edit === 'redeliver' ? await this.#redeliver(redelivery(chosen)) : await endParked(this.#edited(), edit, chosen)
      if (count > 0) this.#reconsider()
      return count
    })
  }

  #redeliver(asked: Redelivery): Promise<number> {
    return redeliver(this.#edited(), asked, false).catch((error: Error) => {
      if (mayBeDone(error.cause)) this.#unheard = asked
      this.#bell.ring()
      throw error
    })
  }

  async #askAgain(): Promise<void> {
    if (!this.#unheard || this.#options.isClosed()) return
    await redeliver(this.#edited(), this.#unheard, true)
    this.#unheard = undefined
    this.#reconsider()
  }

  #edited() {
    return { ...this.#options, gaveUp: (messages: number) => this.#gaveUp(messages, 'hand') }
  }

  #reconsider(): void {
    this.#mayHaveDone = true
    this.#options.moved()
    this.#bell.ring()
  }

  /** Runs a step with the store when those before it have ended. */
  inTurn<T>(step: () => Promise<T>): Promise<T> {
    this.#steps++
    const turn = this.#turn.then(step, step)
    const ended = () => void this.#steps--
    this.#turn = turn.then(ended, ended)
    return turn
  }

  /** Nothing is on its way to the store, and nothing waits for it. */
  get isIdle(): boolean {
    return this.#steps === 0 && this.#failedAgain.length === 0 && !this.#options.dispatcher.parking.hasFailures
  }

  /** Ends parked messages, durably; unknown ones are ignored. To be called in turn. @param origin of those that another generation has named */
  async finish(list: RefList, origin?: Origin): Promise<void> {
    const { dispatcher, store, observer, moved, isClosed } = this.#options
    await this.#askAgain()
    if (!origin && dispatcher.parking.isMoving(list)) {
      await this.#recordFailures() // what has no row yet can't be ended
      if (isClosed()) throw new EngineError('STOPPING', 'the partition is stopping or moving')
    }
    const { offsets, indexes } = list
    const refs = offsets.map((offset, i) => ({ offset, index: indexes[i] as number, origin }))
    const rows = this.#withUnheard(refs, await store.end(refs, 'done'))
    if (rows.length === 0 || isClosed()) return
    dispatcher.parking.parkedEnded(rows)
    this.#mayHaveDone = true
    observer.acked({ messages: rows.length, heldMs: 0 })
    moved()
  }

  /**
   * Adds those that the store has not as open although they are taken here: it ended them before, and its answer was lost.
   * @param rows what it has ended now
   */
  #withUnheard(refs: readonly Omit<ParkedRef, 'key'>[], rows: readonly ParkedRef[]): readonly ParkedRef[] {
    if (rows.length === refs.length) return rows
    const known = new Set(rows.map(({ offset, index, origin }) => nameOf(offset, index, origin)))
    const unheard = refs.flatMap(({ offset, index, origin }) => {
      const group = this.#options.dispatcher.parked.groupAt(offset, index, origin)
      return group && !known.has(nameOf(offset, index, origin)) ? [{ key: group.key, offset, index, origin }] : []
    })
    return [...rows, ...unheard]
  }

  async #tend(): Promise<void> {
    await this.#askAgain()
    await this.#recordFailures()
    await this.#recordFailedAgain()
    await this.#discard()
    await this.#park()
    await this.#recordDrained()
    await this.#load()
    if (!this.#mayHaveDone) return
    this.#mayHaveDone = false
    await this.#options.store.removeDone(this.#options.committed()).catch((error: unknown) => {
      this.#mayHaveDone = true
      throw error
    })
  }

  async #recordFailures(): Promise<void> {
    const { dispatcher, store, observer, isClosed, commit, moved } = this.#options
    const { parking } = dispatcher
    while (parking.hasFailures && !isClosed()) {
      const moves = parking.toFail()
      const recorded = new Set<Move>()
      try {
        await commit()
        for (const [kind, state] of [
          ['park', 'open'],
          ['discard', 'discarded'],
        ] as const) {
          const some = moves.filter((move) => move.kind === kind)
          if (some.length === 0) continue
          await store.insert(some, state, kind === 'discard' ? DISCARD_REASON : null)
          for (const move of some) recorded.add(move)
          parking.moved(some)
          if (kind === 'park') observer.parked(some.length)
          else this.#discarded(some)
        }
      } catch (error) {
        parking.notRecorded(moves.filter((move) => !recorded.has(move)))
        throw error
      }
      this.#mayHaveDone = true
      moved()
    }
  }

  #discarded(moves: readonly Move[]): void {
    const tooLarge = moves.filter(({ view, index }) => isTooLarge(view, index)).length
    this.#gaveUp(moves.length - tooLarge, 'attempts')
    this.#gaveUp(tooLarge, 'size')
  }

  #gaveUp(messages: number, why: Discarded): void {
    if (messages === 0) return
    this.#options.observer.discarded(messages, why)
    this.#options.discarded.add(messages, why)
  }

  async #recordFailedAgain(): Promise<void> {
    const { dispatcher, store, isClosed, clock, moved } = this.#options
    while (this.#failedAgain.length > 0 && !isClosed()) {
      const some = this.#failedAgain.slice(0, MAX_FAILED)
      const rows = await store.failed(some, some.map(({ failed }) => failed)) // prettier-ignore
      this.#failedAgain.splice(0, some.length)
      if (isClosed()) return
      const byName = new Map(some.map((one) => [nameOf(one.offset, one.index, one.origin), one.failed]))
      for (const row of this.#withUnheard(some, rows)) {
        const { attempts, retryInMs } = byName.get(nameOf(row.offset, row.index, row.origin)) as Failed
        if (retryInMs === undefined) {
          dispatcher.parking.parkedEnded([row])
          this.#gaveUp(1, 'attempts')
          continue
        }
        const group = dispatcher.parked.groupAt(row.offset, row.index, row.origin)
        if (group) dispatcher.parking.backOff(group, row, attempts, clock() + retryInMs)
      }
      this.#mayHaveDone = true
      moved()
    }
  }

  async #discard(): Promise<void> {
    const { dispatcher, store, isClosed, moved } = this.#options
    const { parking } = dispatcher
    while (parking.hasDiscards && !isClosed()) {
      const moves = parking.toDiscard()
      const groups = parking.toDiscardParked()
      try {
        if (moves.length > 0) await store.insert(moves, 'discarded', DISCARD_REASON)
      } catch (error) {
        this.#notInserted(moves, error)
        parking.notDiscarded(groups)
        throw error
      }
      parking.moved(moves)
      moved()
      try {
        if (groups.length > 0) parking.parkedEnded(await store.end(groups, 'discarded', DISCARD_REASON))
      } finally {
        parking.notDiscarded(groups) // those that were not ended
      }
      this.#gaveUp(moves.length + groups.length, 'attempts')
      this.#mayHaveDone = true // older ones may go
      moved()
    }
  }

  async #park(): Promise<void> {
    const { dispatcher, store, observer, clock, isClosed, commit, moved } = this.#options
    const { parking, settings } = dispatcher
    while (!isClosed()) {
      const all = this.#leaveAt() <= clock()
      if (!all && this.#parkAt() > clock()) return
      const since = this.#fullSince
      const moves = parking.toPark(dispatcher.windowBytes, all)
      if (moves.length === 0) return
      try {
        await commit()
      } catch (error) {
        parking.notMoved(moves, settings.ackWaitMs)
        throw error
      }
      try {
        await store.insert(moves, 'open', null)
      } catch (error) {
        this.#notInserted(moves, error)
        throw error
      }
      parking.moved(moves)
      this.#parkedAt = clock()
      observer.parked(moves.length)
      moved()
      if (this.#fullSince !== undefined) this.#fullSince = since // go on at once, it is the same jam
    }
  }

  #notInserted(moves: readonly Move[], error: unknown): void {
    const { parking, settings } = this.#options.dispatcher
    if (error instanceof Error && mayBeDone(error.cause)) parking.notRecorded(moves)
    else parking.notMoved(moves, settings.ackWaitMs)
  }

  async #recordDrained(): Promise<void> {
    const { dispatcher, store, commit, isClosed, drained, beforeDrained } = this.#options
    if (!dispatcher.drained || this.#recorded || isClosed()) return
    await commit()
    await beforeDrained()
    await store.recordDrained()
    this.#recorded = true
    drained()
  }

  /** When what keeps the partition from being drained is to be parked; Infinity: nothing does, or not yet. */
  #leaveAt(): number {
    const { dispatcher, drainAfterMs } = this.#options
    if (this.#leftSince === undefined || dispatcher.drained || dispatcher.parking.full) return Infinity
    return this.#leftSince + drainAfterMs
  }

  /** When what blocks the window is to be parked; Infinity: nothing does. */
  #parkAt(): number {
    const { parking, windowBytes } = this.#options.dispatcher
    if (parking.full || !parking.stuck(windowBytes)) return Infinity
    if (this.#fullSince === undefined) return -Infinity // too many finished ranges
    return this.#fullSince + (this.#fullSince - this.#parkedAt < JAM_MS ? PARK_AGAIN_MS : this.#options.parkAfterMs)
  }

  async #load(): Promise<void> {
    const { dispatcher, store, isClosed, moved } = this.#options
    const { parked } = dispatcher
    const { perGroup = 1 } = dispatcher.settings
    while (this.#wantsLoading() && !isClosed()) {
      const groups = parked.toLoad(LOAD_AHEAD - parked.readyCount)
      const each = Math.max(1, Math.min(perGroup, Math.floor(LOAD_AHEAD / groups.length)))
      try {
        const byKey = new Map(groups.map((group) => [group.key, group]))
        const loaded = await store.fetch(groups, LOAD_AHEAD_BYTES, each) // those that are too much at once come next time
        for (const [key, [first, ...others]] of Map.groupBy(loaded, ({ key }) => key)) {
          const group = byKey.get(key)
          if (!group || !first) continue
          // what has failed before goes alone
          const end = first.attempts > 0 ? 0 : others.findIndex(({ attempts }) => attempts > 0)
          parked.loaded(group, first, first.view, { ...first, behind: end < 0 ? others : others.slice(0, end) })
        }
        if (loaded.length === 0) dispatcher.parking.parkedGone(groups)
      } finally {
        for (const group of groups) parked.notLoaded(group)
      }
      moved()
    }
  }

  #wantsLoading(): boolean {
    const { parked } = this.#options.dispatcher
    return parked.wantsLoading && parked.readyCount < LOAD_AHEAD && parked.readyBytes < LOAD_AHEAD_BYTES
  }
}
