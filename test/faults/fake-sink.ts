/**
 * A pull sink in memory that does what docs/pull-api.md says, or one chosen thing wrong: what the oracle is tested against,
 * for a check that has never caught anything proves nothing. It knows a crash too: after one, what was handed out stays
 * invisible for the visibility time, and the memory of acks is what it was.
 */
import { groupOf, PLACEHOLDER, type Transaction } from './journal.ts'
import type { Message } from './oracle.ts'
import { now } from './consumer.ts'
import type { Random } from './random.ts'
import { Passing, type SinkClient } from './sink-client.ts'
import { pass } from '../waiting.ts'

export const FAULTS = {
  none: 'none',
  losesChange: 'one change is lost',
  losesLastChange: 'the last change is lost',
  losesTransaction: 'one transaction is lost whole',
  reorders: 'two changes of one row change places',
  resurrects: 'an old change comes again after the row was deleted',
  forgetsAcks: 'a crash forgets answered acks',
  handsOutTwice: 'a crash hands out again at once what clients have',
  ignoresVisibility: 'messages are handed to any client that asks',
  overtakes: 'the next change of a row is handed out before the ack',
  renamesAckIds: 'a message gets another ack_id when it comes again',
  sendsRolledBack: 'a change that was rolled back is sent',
  blursValue: 'one value is wrong',
  dropsPlaceholder: 'an unchanged value outside the line becomes null',
  shiftsIndex: 'one commit_idx is wrong',
  wrongCommit: 'one transaction has the position of no commit',
  dropsAnnotations: 'annotations are lost',
} as const
export type Fault = keyof typeof FAULTS

/** An ack that is not sent after so long is late or forgotten. */
const HELD_FOR_MS = 10

type Entry = { message: Message; group: string; acked: boolean; deliveries: number; invisibleUntil: number }

export class FakeSink implements SinkClient {
  readonly #entries: Entry[] = []
  readonly #ackWaitMs: number
  readonly #fault: Fault
  readonly #random: Random
  #away = false

  constructor(options: { transactions: readonly Transaction[]; ackWaitMs: number; fault: Fault; random: Random }) {
    this.#ackWaitMs = options.ackWaitMs
    this.#fault = options.fault
    this.#random = options.random
    const messages = spoil(options.transactions.flatMap(messagesOf), options.fault, options.random)
    for (const message of messages)
      this.#entries.push({ message, group: groupOf(message.table, message.key), acked: false, deliveries: 0, invisibleUntil: 0 })
  }

  async receive(request: { batchSize: number; waitMs: number }): Promise<readonly Message[]> {
    const deadline = now() + request.waitMs
    for (;;) {
      if (this.#away) throw new Passing('away')
      const taken = this.#take(request.batchSize)
      await pass(1, 'the way of the answer')
      if (taken.length > 0 || now() >= deadline) return taken
    }
  }

  async ack(ids: readonly string[]): Promise<void> {
    await pass(1, 'the way of the request')
    if (this.#away && this.#random.chance(0.5)) throw new Passing('away') // before it took effect
    for (const entry of this.#entries) if (ids.includes(entry.message.ackId)) entry.acked = true
    if (this.#away) throw new Passing('away') // after
  }

  async nack(ids: readonly string[]): Promise<void> {
    await pass(1, 'the way of the request')
    if (this.#away) throw new Passing('away')
    for (const entry of this.#entries) if (ids.includes(entry.message.ackId)) entry.invisibleUntil = 0
  }

  /** Comes while a client has a message, if that happens soon: a crash that meets nothing shows nothing. */
  async crash(): Promise<void> {
    const deadline = now() + this.#ackWaitMs
    while (now() < deadline && !this.#entries.some((entry) => this.#isHeld(entry))) await pass(1, 'a client may have a message soon')
    this.#away = true
    await pass(20, 'it is away for a while')
    for (const entry of this.#entries) {
      if (entry.deliveries > 0) entry.invisibleUntil = this.#fault === 'handsOutTwice' ? 0 : now() + this.#ackWaitMs
      if (entry.acked && this.#fault === 'forgetsAcks' && this.#random.chance(0.1))
        Object.assign(entry, { acked: false, invisibleUntil: 0 })
    }
    this.#away = false
  }

  /** With a client that won't ack in a moment, and not for so long that it would come again by itself soon. */
  #isHeld(entry: Entry): boolean {
    const ms = this.#ackWaitMs - (entry.invisibleUntil - now())
    return !entry.acked && ms > HELD_FOR_MS && ms < this.#ackWaitMs / 2
  }

  #take(batchSize: number): Message[] {
    const taken: Message[] = []
    const blocked = new Set<string>()
    for (const entry of this.#entries) {
      if (taken.length === batchSize) break
      if (entry.acked || blocked.has(entry.group)) continue
      if (this.#fault !== 'overtakes') blocked.add(entry.group)
      if (entry.invisibleUntil > now() && this.#fault !== 'ignoresVisibility') continue
      entry.invisibleUntil = now() + this.#ackWaitMs
      if (entry.deliveries++ > 0 && this.#fault === 'renamesAckIds') entry.message = { ...entry.message, ackId: `${entry.message.ackId}'` }
      taken.push(entry.message)
    }
    return taken
  }
}

const messagesOf = (transaction: Transaction): Message[] =>
  transaction.changes.map((change) => ({
    ackId: `ack-${transaction.after}-${change.idx}`,
    idempotencyKey: `${transaction.after}:${change.idx}`,
    table: change.table,
    action: change.action,
    key: change.key,
    lsn: transaction.after,
    idx: change.idx,
    committedAt: 0,
    record: { ...change.record, ...Object.fromEntries(change.unchanged.map((column) => [column, PLACEHOLDER])) },
    changes: change.changes,
    annotations: change.annotations,
  }))

function spoil(messages: Message[], fault: Fault, random: Random): Message[] {
  const at = random.int(5, messages.length - 20)
  const one = messages[at]!
  const replace = (change: Partial<Message>) => messages.with(at, { ...one, ...change })
  switch (fault) {
    case 'losesChange':
      return messages.toSpliced(at, 1)
    case 'losesLastChange':
      return messages.slice(0, -1)
    case 'losesTransaction':
      return messages.filter((message) => message.lsn !== one.lsn)
    case 'reorders': {
      const [first, second] = twoOfOneRow(messages)
      return messages.with(first, messages[second]!).with(second, messages[first]!)
    }
    case 'resurrects': {
      const gone = messages.findIndex((message, index) => index > 3 && message.action === 'delete')
      const old = messages.findIndex(
        (message) => groupOf(message.table, message.key) === groupOf(messages[gone]!.table, messages[gone]!.key),
      )
      return messages.toSpliced(gone + 1, 0, { ...messages[old]!, ackId: `${messages[old]!.ackId}-again` })
    }
    case 'sendsRolledBack':
      return messages.toSpliced(at, 0, {
        ...one,
        ackId: 'x',
        idempotencyKey: 'x',
        lsn: one.lsn + 1n,
        action: 'insert',
        record: { ...one.record, stamp: 999_999 },
      })
    case 'blursValue':
      return replace({ record: { ...one.record, stamp: Number(one.record['stamp'] ?? 0) + 0.5 } })
    case 'dropsPlaceholder':
      return messages.map((message) =>
        message.record['body'] === PLACEHOLDER ? { ...message, record: { ...message.record, body: null } } : message,
      )
    case 'shiftsIndex':
      return replace({ idx: one.idx + 100 })
    case 'wrongCommit':
      return messages.map((message) => (message.lsn === one.lsn ? { ...message, lsn: one.lsn + 1n } : message))
    case 'dropsAnnotations':
      return messages.map((message) => ({ ...message, annotations: null }))
    default:
      return messages
  }
}

/** Neighbours in a group, somewhere in the middle. */
function twoOfOneRow(messages: readonly Message[]): [number, number] {
  for (let first = Math.floor(messages.length / 2); first < messages.length; first++) {
    const group = groupOf(messages[first]!.table, messages[first]!.key)
    const second = messages.findIndex((message, at) => at > first && groupOf(message.table, message.key) === group)
    if (second > 0) return [first, second]
  }
  throw new Error('no row changes twice')
}
