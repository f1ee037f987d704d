/**
 * Says whether what clients of one sink got is right. It is told of every answer and every ack the moment it happens
 * and checks, on the way:
 *  - a message whose ack was answered never comes again;
 *  - in one group first deliveries go up in (commit_lsn, commit_idx) and nothing earlier comes after something later;
 *  - the next message of a group comes only after the one before it was acked, and one answer holds one of a group;
 *  - a message that is with a client comes again only after its visibility time or a nack;
 *  - the same message always has the same ack_id, idempotency key and content.
 * What all messages together say is compared with the committed transactions by verdict.ts.
 *
 * Times are milliseconds of one clock, the clients'. The moment a message was handed out is known only to lie between
 * two others (after its commit, after the request; before the answer), so every rule is applied in the reading that
 * favours the service: what is reported is wrong for certain.
 */
import { canonical, type Json, type Row } from './json.ts'
import { groupOf } from './journal.ts'
import type { CalmClock } from '../services/calm-clock.ts'
import { until } from '../waiting.ts'

export type Message = Readonly<{
  ackId: string
  idempotencyKey: string
  table: string
  action: string
  key: readonly string[]
  lsn: bigint
  idx: number
  committedAt: number
  record: Row
  changes: Row | null
  annotations: Json
}>

export type Answer = Readonly<{ client: string; requestedAt: number; receivedAt: number }>

/** An ack may be answered while an answer that holds the message is still on its way; no answer is on its way longer. */
const ON_ITS_WAY_MS = 10_000
/** commit times come from the server's clock, which is put right now and then */
const CLOCK_TOLERANCE_MS = 100
/** enough to see the pattern; a broken service would report every message */
const REPORTED = 20

type Seen = {
  readonly message: Message
  readonly content: string
  readonly group: Group
  /** of the latest delivery: the earliest moment at which it may have been handed out, and to whom */
  handedOutFrom: number
  client: string
  deliveries: number
  ackSentAt: number | undefined
  ackAnsweredAt: number | undefined
  /** until when the last nack may have taken effect: one that is slow may meet a later delivery */
  nackUntil: number
}

type Group = { highest: Seen | undefined; /** delivered, ack not sent */ readonly open: Set<Seen> }

export class Oracle {
  readonly #ackWaitMs: number
  readonly #seen = new Map<string, Seen>() // by ack_id
  readonly #ackIds = new Map<string, string>() // by idempotency key
  readonly #groups = new Map<string, Group>()
  readonly #waiting = new Set<() => void>()
  readonly violations: string[] = []
  #acked = 0
  #redeliveries = 0

  constructor(options: { ackWaitMs: number }) {
    this.#ackWaitMs = options.ackWaitMs
  }

  /** distinct messages whose ack was answered */
  get acked(): number {
    return this.#acked
  }

  /** distinct messages that came */
  get came(): number {
    return this.#seen.size
  }

  get redeliveries(): number {
    return this.#redeliveries
  }

  get messages(): readonly Message[] {
    return [...this.#seen.values()].map((seen) => seen.message)
  }

  /** acks that were sent and whose answer never came */
  get unanswered(): readonly string[] {
    return [...this.#seen.values()]
      .filter((seen) => seen.ackSentAt !== undefined && seen.ackAnsweredAt === undefined)
      .map((seen) => seen.message.ackId)
  }

  delivered(messages: readonly Message[], answer: Answer): void {
    const groups = new Set<string>()
    for (const message of messages) {
      const name = groupOf(message.table, message.key)
      if (groups.has(name)) this.#report('two messages of one group in one answer', message, answer.client)
      groups.add(name)
      const seen = this.#seen.get(message.ackId)
      if (seen) this.#again(seen, message, answer)
      else this.#first(message, name, answer)
    }
  }

  /** The sink was set back while no client had a request under way: everything from there on comes as if it never had. */
  setBack(lsn: bigint): void {
    for (const [ackId, { message, ackAnsweredAt, group }] of this.#seen) {
      if (message.lsn < lsn) continue
      this.#seen.delete(ackId)
      this.#ackIds.delete(message.idempotencyKey)
      if (ackAnsweredAt !== undefined) this.#acked--
      group.highest = undefined
      for (const open of group.open) if (open.message.lsn >= lsn) group.open.delete(open)
    }
    for (const seen of this.#seen.values()) {
      const { group, message } = seen
      if (!group.highest || comparePlaces(message, group.highest.message) > 0) group.highest = seen
    }
  }

  ackSent(ids: readonly string[], at: number): void {
    for (const seen of this.#known(ids)) {
      seen.ackSentAt ??= at
      seen.group.open.delete(seen)
    }
  }

  ackAnswered(ids: readonly string[], at: number): void {
    for (const seen of this.#known(ids)) {
      if (seen.ackAnsweredAt !== undefined) continue
      seen.ackAnsweredAt = at
      this.#acked++
    }
    this.#wake()
  }

  nackSent(ids: readonly string[]): void {
    for (const seen of this.#known(ids)) seen.nackUntil = Infinity
  }

  /** @param isAnswered false: nobody knows what became of it */
  nackEnded(ids: readonly string[], at: number, isAnswered: boolean): void {
    for (const seen of this.#known(ids)) seen.nackUntil = isAnswered ? at : at + ON_ITS_WAY_MS
  }

  /**
   * Settles when so many messages were delivered and acked with an answer, or when something is already wrong.
   * @param clock measures that time; without it all time counts
   * @throws Error no ack was answered for `idleMs`
   */
  async untilAcked(count: () => number, idleMs: number, clock?: CalmClock): Promise<void> {
    const isOver = () => this.#acked >= count() || this.violations.length > 0
    while (!isOver()) {
      const before = this.#acked
      const { promise, resolve } = Promise.withResolvers<void>()
      this.#waiting.add(resolve)
      const more = () => `more than ${before} of ${count()} messages are acked`
      const progress = until(more, () => this.#acked > before || isOver(), { withinMs: idleMs, ...(clock && { clock }) })
      await Promise.race([promise, progress]).finally(() => this.#waiting.delete(resolve)) // the next one begins at once, not at a look
    }
  }

  #first(message: Message, name: string, answer: Answer): void {
    let group = this.#groups.get(name)
    if (!group) this.#groups.set(name, (group = { highest: undefined, open: new Set() }))
    const known = this.#ackIds.get(message.idempotencyKey)
    if (known !== undefined) this.#report(`the message came before with ack_id ${known}`, message, answer.client)
    this.#ackIds.set(message.idempotencyKey, message.ackId)
    if (group.highest && comparePlaces(message, group.highest.message) <= 0)
      this.#report(`first delivered after the later ${placeOf(group.highest.message)} of its group`, message, answer.client)
    for (const open of group.open)
      this.#report(`delivered while ${placeOf(open.message)} of its group, with ${open.client}, is not acked`, message, answer.client)
    const seen: Seen = {
      message,
      content: contentOf(message),
      group,
      handedOutFrom: this.#handedOutFrom(message, answer),
      client: answer.client,
      deliveries: 1,
      ackSentAt: undefined,
      ackAnsweredAt: undefined,
      nackUntil: -Infinity,
    }
    this.#seen.set(message.ackId, seen)
    group.open.add(seen)
    if (!group.highest || comparePlaces(message, group.highest.message) > 0) group.highest = seen
  }

  #again(seen: Seen, message: Message, answer: Answer): void {
    this.#redeliveries++
    seen.deliveries++
    const { ackAnsweredAt, handedOutFrom, group } = seen
    if (ackAnsweredAt !== undefined && (answer.requestedAt > ackAnsweredAt || answer.receivedAt > ackAnsweredAt + ON_ITS_WAY_MS)) {
      this.#report(`came again ${Math.round(answer.receivedAt - ackAnsweredAt)} ms after its ack was answered`, message, answer.client)
    } else if (answer.receivedAt < handedOutFrom + this.#ackWaitMs - CLOCK_TOLERANCE_MS && seen.nackUntil < handedOutFrom) {
      const ms = Math.round(answer.receivedAt - handedOutFrom)
      this.#report(
        `came again ${ms} ms after it was handed to ${seen.client}, with a visibility time of ${this.#ackWaitMs} ms, ` +
          `at ${new Date(answer.receivedAt).toISOString()} by a receive of ${Math.round(answer.receivedAt - answer.requestedAt)} ms`,
        message,
        answer.client,
      )
    }
    if (contentOf(message) !== seen.content) this.#report(`came with other content than before: ${seen.content}`, message, answer.client)
    if (group.highest !== seen && seen.ackSentAt === undefined)
      this.#report(`came again after the later ${placeOf(group.highest!.message)} of its group`, message, answer.client)
    seen.handedOutFrom = this.#handedOutFrom(message, answer)
    seen.client = answer.client
  }

  #handedOutFrom(message: Message, answer: Answer): number {
    return Math.max(answer.requestedAt, message.committedAt - CLOCK_TOLERANCE_MS)
  }

  #known(ids: readonly string[]): Seen[] {
    return ids.map((id) => this.#seen.get(id)).filter((seen) => seen !== undefined)
  }

  #report(what: string, message: Message, client: string): void {
    if (this.violations.length < REPORTED)
      this.violations.push(`${message.action} of ${groupOf(message.table, message.key)} at ${placeOf(message)}, to ${client}: ${what}`)
    this.#wake()
  }

  #wake(): void {
    for (const wake of this.#waiting) wake()
  }
}

export const comparePlaces = (a: Message, b: Message): number => (a.lsn === b.lsn ? a.idx - b.idx : a.lsn < b.lsn ? -1 : 1)

const placeOf = (message: Message): string => `${message.lsn}:${message.idx}`

const contentOf = ({ idempotencyKey, table, action, key, lsn, idx, record, changes, annotations }: Message): string =>
  canonical({ idempotencyKey, table, action, key, lsn, idx, record, changes, annotations })
