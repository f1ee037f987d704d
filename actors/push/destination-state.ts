/**
 * Knows how the destination of a sink is, as far as its answers tell, and decides by that what may be sent. One for all
 * partitions of a sink in a process. It decides and does no I/O; times are the monotonic clock's milliseconds.
 *
 *   up ─several requests in a row failed─▶ probing ─failures of several groups, or no connection─▶ down
 *    ▲                                     │  ▲                                                     │
 *    └────────────any success──────────────┘  └──────────────────its pause is over──────────────────┘
 *
 *  D1. Down needs evidence from several groups, or no connection at all (docs/rules.md, rule 34). One message's failure, whatever
 *      it is, never makes it so while others are delivered.
 *  D2. A message's failure counts only when a success shows that the destination works, or when nothing else is there to
 *      ask and the answer speaks of the message. Until then the message is a suspect, and held.
 *  D3. While down nothing is sent but probes, one message each, of groups that differ; nothing is parked and no attempt
 *      counts. The pause between probes is never longer than a few seconds, unless the destination asks for more.
 *  D4. After an outage one request is under way at a time, and each success allows twice as many, up to the limit.
 *  D5. A destination that says it gets too much gets half as many requests at once, and one more for every round of successes.
 */
import { Bag, NOWHERE, type Member } from '../../engine/bag.ts'
import type { Failure } from '../../sinks/push.ts'
import { backOff, jittered } from '../../engine/back-off.ts'

type Phase = 'up' | 'probing' | 'down'
/**
 * Names what a request has: fresh messages, which never failed; failed ones, which are tried again apart; or one message as a
 * probe, to see how the destination is.
 */
export type SendLane = 'fresh' | 'failed' | 'probe'
/** Stands for one request while it is under way. */
export type Ticket = Member & { readonly lane: SendLane; readonly startedAt: number; counts: boolean }

/**
 * Says what becomes of the messages of a failed request.
 *
 *  park      it is the message: an attempt counts, unless it was throttled, and it waits for its next try
 *  putOff    the same, but the attempt doesn't count
 *  split     sent again in two halves
 *  again     sent again as it was
 *  suspect   one message, held until more is known
 *  release   nothing of it counts: it is deliverable as before
 */
type Ruling = 'park' | 'putOff' | 'split' | 'again' | 'suspect' | 'release'

type Failed = Readonly<{
  ticket: Ticket
  failure: Failure
  /** messages of the request */
  messages: number
  /** of its first message: names the group among all partitions */
  group: string
  /** how many groups were refused, each on its own; 1: the request as a whole */
  groups: number
  /** when this, or what it was part of, failed first */
  doubtedSince: number | undefined
  /** how often it was throttled before, sent as it is now */
  throttles: number
  /** its messages have failed before */
  isRetry: boolean
}>

/** So many failures in a row may be bad luck of what was sent; more, and the rest waits for probes. */
const TRUSTED_FAILURES = 8
/** A destination that gets one request at a time and still says so often that it is too much counts as failing. */
const TRUSTED_THROTTLES = 2
/** A message alone in its request that is answered so often with "too much", while others were taken, is parked. */
const THROTTLES_OF_ONE = 5
/** The destination is down when so many groups have suspects, by what they were answered. */
const OUTAGE_GROUPS = 3
const REJECTING_GROUPS = 64
/** In each later round of probes it is down again when so many groups have suspects; a round goes on where the one before ended. */
const REJECTING_AGAIN = 16
const MAX_PROBES = 3
/** While probes hang, at most so many more are sent. */
const MAX_HANGING = 12
const STALL_MS = 2_500
const PAUSE = { firstMs: 250, maxMs: 3_000 }
const LONGEST_ASKED_PAUSE_MS = 600_000
const THROTTLE = { firstMs: 100, maxMs: 5_000 }

/** Asked for each request. */
const LANES = {
  none: [],
  fresh: ['fresh'],
  failed: ['failed'],
  probe: ['probe'],
  freshAndFailed: ['fresh', 'failed'],
  probeAndFailed: ['probe', 'failed'],
} as const satisfies Record<string, readonly SendLane[]>

type DestinationOptions = Readonly<{
  clock: () => number
  /** from 0 up to before 1 */
  random: () => number
  /** something may be sent, or held no longer */
  changed: () => void
}>

/** Decides what may be sent to a destination, by what it has answered. */
export class DestinationState {
  readonly #options: DestinationOptions
  readonly #open = new Bag<Ticket>()
  readonly #suspects = new Set<string>()
  #phase: Phase = 'up'
  #max: number
  #limit: number
  /** successes since the limit grew */
  #round = 0
  #isSlowStart = false
  #counted = 0
  #failures = 0
  #lastAnswerAt: number
  #lastSuccessAt = -Infinity
  #lastExtraAt = -Infinity
  /** nothing is sent before: down, or throttled */
  #notBefore = -Infinity
  #pauses = 0
  #throttles = 0
  /** bodies were too large beyond this */
  #maxBytes = Infinity
  #failure: Failure | undefined
  #downs = 0
  #changes = 0

  constructor(max: number, options: DestinationOptions) {
    this.#options = options
    this.#max = max
    this.#limit = max
    this.#lastAnswerAt = options.clock()
  }

  get phase(): Phase {
    return this.#phase
  }
  /** requests under way */
  get inFlight(): number {
    return this.#open.size
  }
  /** requests that may be under way at once */
  get limit(): number {
    return this.#limit
  }
  get maxBytes(): number {
    return this.#maxBytes
  }
  /** why it is not up, or was throttled just now */
  get failure(): Failure | undefined {
    return this.#phase === 'up' && this.#throttles === 0 ? undefined : this.#failure
  }
  get isThrottled(): boolean {
    return this.#throttles > 0
  }
  /** times it went down: messages that were held before are released */
  get downs(): number {
    return this.#downs
  }
  /** It was down, and no success has come since. */
  get isRecovering(): boolean {
    return this.#pauses > 0
  }
  /** times its settings were changed: messages that were held before are released */
  get changes(): number {
    return this.#changes
  }
  get lastSuccessAt(): number {
    return this.#lastSuccessAt
  }

  set max(max: number) {
    if (max === this.#max) return
    this.#limit = this.#limit === this.#max ? max : Math.min(this.#limit, max)
    this.#max = max
    this.#options.changed()
  }

  /** The settings have changed: what was learnt of the destination holds no more. */
  forget(): void {
    this.#phase = 'up'
    this.#limit = this.#max
    this.#isSlowStart = false
    this.#failures = 0
    this.#notBefore = -Infinity
    this.#pauses = 0
    this.#throttles = 0
    this.#maxBytes = Infinity
    this.#failure = undefined
    this.#suspects.clear()
    this.#changes++
    this.#options.changed()
  }

  // ── may something be sent ───────────────────────────────────────────────────────────────────────

  /** Tells which lanes are open now, the most wanted first. A pause that is over ends with the asking. */
  lanes(): readonly SendLane[] {
    const now = this.#options.clock()
    if (now < this.#notBefore) return LANES.none
    if (this.#phase === 'down') this.#phase = 'probing'
    if (this.#phase === 'probing') return this.#mayProbe(now) ? LANES.probe : LANES.none
    // what failed before may hang: it never takes the place of what didn't
    const mayRetry = this.#count('failed') < Math.max(1, Math.floor(this.#limit / 4))
    if (this.#counted < this.#limit) return mayRetry ? LANES.freshAndFailed : LANES.fresh
    if (this.#isStalled(now)) return mayRetry ? LANES.probeAndFailed : LANES.probe
    return mayRetry ? LANES.failed : LANES.none
  }

  /**
   * When a lane may open by the passing of time alone; Infinity: only by an answer.
   * @param lookedAt when the caller last asked for lanes: a pause that has ended since is due now
   */
  nextAt(lookedAt: number): number {
    const now = this.#options.clock()
    if (lookedAt < this.#notBefore) return this.#notBefore
    if (this.#open.size === 0) return Infinity
    const stalledAt = Math.max(this.#lastAnswerAt, this.#lastExtraAt) + STALL_MS
    return stalledAt > now ? stalledAt : now + STALL_MS
  }

  #mayProbe(now: number): boolean {
    const probes = this.#count('probe')
    return probes < MAX_PROBES || (probes < MAX_HANGING && this.#isStalled(now))
  }

  /** Requests are under way, and none was answered for a while: perhaps their connections are dead. */
  #isStalled(now: number): boolean {
    return this.#open.size > 0 && this.#count('probe') < MAX_HANGING && now >= Math.max(this.#lastAnswerAt, this.#lastExtraAt) + STALL_MS
  }

  #count(lane: SendLane): number {
    let count = 0
    for (const ticket of this.#open) if (ticket.lane === lane) count++
    return count
  }

  // ── what happened ───────────────────────────────────────────────────────────────────────────────

  started(lane: SendLane): Ticket {
    const now = this.#options.clock()
    if (this.#open.size === 0) this.#lastAnswerAt = now // no request has waited for an answer before
    if (lane === 'probe') this.#lastExtraAt = now
    const ticket = { lane, startedAt: now, counts: lane === 'fresh', place: NOWHERE }
    if (ticket.counts) this.#counted++
    this.#open.add(ticket)
    return ticket
  }

  /** A request was given up: how it ended isn't known, or it wasn't sent. */
  aborted(ticket: Ticket): void {
    this.#close(ticket)
    this.#options.changed()
  }

  /** The destination works on what it got, although no request has ended. */
  heard(): void {
    this.#lastAnswerAt = this.#options.clock()
  }

  /** At least one message of the request is delivered. */
  succeeded(ticket: Ticket): void {
    const now = this.#options.clock()
    const wasStalled = now - this.#lastAnswerAt >= STALL_MS
    this.#close(ticket)
    this.#lastAnswerAt = now
    this.#lastSuccessAt = now
    this.#failures = 0
    this.#throttles = 0
    if (this.#suspects.size > 0) this.#suspects.clear() // it makes a new table each time
    if (wasStalled) this.#discount(ticket)
    if (this.#phase === 'up') this.#grow()
    else this.#rise()
    this.#options.changed()
  }

  /** Every message of the request was judged, and refused for its own sake: it works, but that clears nothing that others failed at. */
  judged(ticket: Ticket): void {
    this.#close(ticket)
    this.#lastAnswerAt = this.#options.clock()
    this.#failures = 0
    this.#throttles = 0
    if (this.#phase === 'up') this.#grow()
    else this.#rise()
    this.#options.changed()
  }

  /** The whole request failed, or what the answer says of each of its messages comes to that. */
  failed({ ticket, failure, messages, group, groups, doubtedSince, isRetry, throttles }: Failed): Ruling {
    const now = this.#options.clock()
    const wasSuccessful = this.#lastSuccessAt > ticket.startedAt || (doubtedSince !== undefined && this.#lastSuccessAt > doubtedSince)
    this.#close(ticket)
    if (failure.blame !== 'unavailable' || failure.answer.status !== undefined) this.#lastAnswerAt = now
    const ruling = this.#rule(failure, { isRetry, throttles, messages, group, groups, wasSuccessful })
    this.#options.changed()
    return ruling
  }

  #rule(failure: Failure, request: Omit<Failed, 'ticket' | 'failure' | 'doubtedSince'> & Readonly<{ wasSuccessful: boolean }>): Ruling {
    const { isRetry, throttles, messages, group, groups, wasSuccessful } = request
    const { blame } = failure
    switch (blame) {
      case 'message':
        return 'park'
      case 'tooLarge':
        return messages > 1 ? 'split' : 'park'
      case 'throttled':
        // most likely it is throttled for its own sake
        if (messages === 1 && (isRetry || (wasSuccessful && throttles >= THROTTLES_OF_ONE))) return 'park'
        this.#throttle(failure)
        if (this.#limit > 1 || this.#throttles <= TRUSTED_THROTTLES) return 'again'
        return messages > 1 ? 'split' : 'suspect' // alone, and still too much: perhaps others aren't
      case 'unreachable':
        this.#goDown(failure)
        return 'release'
    }
    if (isRetry) {
      if (messages === 1) return wasSuccessful || blame === 'rejected' ? 'park' : 'putOff'
      this.#failure = failure
      if (blame === 'rejected' || ++this.#failures <= TRUSTED_FAILURES) return 'split'
      this.#goDown(failure)
      return 'release'
    }
    if (wasSuccessful && messages === 1) return 'park'
    this.#failures++
    this.#failure = failure
    if (groups >= OUTAGE_GROUPS) {
      this.#goDown(failure)
      return 'release'
    }
    if (messages > 1) {
      if (this.#phase === 'up' && this.#failures > TRUSTED_FAILURES) this.#phase = 'probing'
      return this.#phase === 'up' ? 'split' : 'again' // as it is, but probes are taken out of it
    }
    this.#suspects.add(group)
    const enough = blame !== 'rejected' ? OUTAGE_GROUPS : this.isRecovering ? REJECTING_AGAIN : REJECTING_GROUPS
    if (this.#suspects.size >= enough) {
      this.#goDown(failure)
      return 'suspect' // held, so that the next probes are of other groups
    }
    if (this.#phase === 'up' && this.#failures > TRUSTED_FAILURES) this.#phase = 'probing'
    return 'suspect'
  }

  /**
   * There is nothing left to send but suspects, and nothing under way.
   * @returns what becomes of them: their own fault if the answer speaks of the message, else the destination's
   */
  exhausted(): 'park' | 'release' {
    const speaksOfMessage = this.#failure?.blame === 'rejected' && !this.isRecovering && this.#suspects.size < OUTAGE_GROUPS
    if (speaksOfMessage) {
      // they stay evidence: when others fail like them, and nothing succeeds, it is down
      this.#phase = 'up'
      return 'park'
    }
    if (this.#failure) this.#goDown(this.#failure)
    this.#options.changed()
    return 'release'
  }

  /** A body of so many bytes was more than it takes. */
  tooLarge(bytes: number): void {
    this.#maxBytes = Math.min(this.#maxBytes, Math.max(1, Math.floor(bytes / 2)))
  }

  #goDown(failure: Failure): void {
    const now = this.#options.clock()
    const pause = backOff(PAUSE, ++this.#pauses)
    const asked = Math.min(failure.retryAfterMs ?? 0, LONGEST_ASKED_PAUSE_MS)
    this.#notBefore = now + Math.max(jittered(pause, this.#options.random()), asked)
    this.#phase = 'down'
    this.#failure = failure
    this.#failures = 0
    this.#suspects.clear()
    this.#downs++
  }

  #throttle(failure: Failure): void {
    const now = this.#options.clock()
    this.#failure = failure
    this.#limit = Math.max(1, Math.floor(this.#limit / 2))
    this.#isSlowStart = false
    this.#round = 0
    const pause = backOff(THROTTLE, ++this.#throttles)
    const asked = Math.min(failure.retryAfterMs ?? 0, LONGEST_ASKED_PAUSE_MS)
    this.#notBefore = Math.max(this.#notBefore, now + Math.max(jittered(pause, this.#options.random()), asked))
  }

  #grow(): void {
    if (this.#limit >= this.#max) return
    if (this.#isSlowStart) this.#limit = Math.min(this.#max, this.#limit * 2)
    else if (++this.#round >= this.#limit) {
      this.#limit++
      this.#round = 0
    }
  }

  #rise(): void {
    const wasDown = this.#pauses > 0
    this.#phase = 'up'
    this.#pauses = 0
    this.#notBefore = -Infinity
    this.#failure = undefined
    if (!wasDown) return
    this.#limit = 1
    this.#isSlowStart = true
  }

  /**
   * Leaves out of the count a request that was sent long ago and has no answer while a later one has: its connection is most likely
   * dead.
   */
  #discount(answered: Ticket): void {
    for (const ticket of this.#open) {
      if (!ticket.counts || ticket.startedAt + STALL_MS > answered.startedAt) continue
      ticket.counts = false
      this.#counted--
    }
  }

  #close(ticket: Ticket): void {
    if (!this.#open.delete(ticket) || !ticket.counts) return
    ticket.counts = false
    this.#counted--
  }
}
