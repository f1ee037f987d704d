/**
 * The newest messages of a sink that were delivered here, so that what went out an hour ago can still be looked at. In memory
 * alone, and bounded twice: in number and in bytes. What was sent together shares what is known of it.
 *
 * A message costs nothing of its own: the list of its delivery is kept, and what it brings stays where it was read, in its pack.
 * When the packs that are held so weigh more than the bound the messages are copied out of them, and the oldest let go of: after a
 * second, for where much is delivered others have taken their place by then (copying each at once was a tenth of the work of a busy sink).
 * Large packs are not held at all: of their large messages nothing but the key is kept, and there is little else in them.
 */
import type { MessageView } from '../log/pack.ts'
import { messageId } from './ack-id.ts'
import type { Message } from './batch.ts'
import { actionName, type MessageRecord, type RecordedMessage } from './parked/message-records.ts'
import { ParkedMessage } from './parked/parked-message.ts'
import { keyOf } from './parked/parked-row.ts'

/** Holds what is the same for all messages of one delivery. */
export type DeliveredTogether = Readonly<{
  generation: number
  partition: number
  /** ms since the epoch */
  at: number
  /** how often each was tried, this time included */
  tries: number
  /** this attempt: plain JSON, made when it is asked for */
  attempt: () => Readonly<Record<string, unknown>>
  /** of the one before, newest first */
  formerAttempts: readonly unknown[]
  /** what it holds beside the messages, about */
  bytes: number
}>

/** Messages in the order of their delivery, and what they have in common. */
type Delivery = Readonly<{ messages: readonly Message[]; together: DeliveredTogether }>

const MAX_MESSAGES = 1_000
const MAX_BYTES = 4 * 1024 * 1024
/** until they are copied */
const MAX_HELD_BYTES = 16 * 1024 * 1024
const COMPACT_AFTER_MS = 1_000
/** A message longer than this is kept without its content. */
const MAX_BODY_BYTES = 256 * 1024
/** A larger pack has a message that is longer than that: packs close at about as much. */
const LARGE_PACK_BYTES = 2 * MAX_BODY_BYTES
/** About so many bytes hold what is known of an acknowledgement. */
const ACKNOWLEDGED_BYTES = 256

/** The newest messages of a sink that were delivered by this process. */
export class DeliveredMessages {
  readonly #sinkId: string
  /** how the state of such a message is called */
  readonly #state: MessageRecord['state']
  /** oldest first */
  #deliveries: Delivery[] = []
  /** of messages */
  #count = 0
  /** of what is held; of what came since that was counted last packs that are held twice twice */
  #bytes = 0
  #lastView: MessageView | undefined
  #lastTogether: DeliveredTogether | undefined
  #isSensitive: boolean
  #compacting: NodeJS.Timeout | undefined

  /** @param isSensitive nothing of their content is kept */
  constructor(sinkId: string, state: MessageRecord['state'], isSensitive: boolean) {
    this.#sinkId = sinkId
    this.#state = state
    this.#isSensitive = isSensitive
  }

  set isSensitive(isSensitive: boolean) {
    if (isSensitive === this.#isSensitive) return
    this.#isSensitive = isSensitive
    this.#clear()
  }

  get size(): number {
    return Math.min(this.#count, MAX_MESSAGES)
  }
  get bytes(): number {
    return this.#bytes
  }

  /** @param messages the list is kept as it is: nobody may change it any more */
  add(messages: readonly Message[], together: DeliveredTogether): void {
    if (messages.length === 0) return
    const newest = messages.length > MAX_MESSAGES ? messages.slice(-MAX_MESSAGES) : messages
    const isCopied = this.#isSensitive || hasLargePacks(newest)
    const delivery = { messages: isCopied ? newest.map((message) => ownOf(message, this.#isSensitive)) : withoutMade(newest), together }
    this.#deliveries.push(delivery)
    this.#count += newest.length
    for (let [oldest] = this.#deliveries; oldest && this.#count - oldest.messages.length >= MAX_MESSAGES; [oldest] = this.#deliveries) {
      this.#deliveries.shift()
      this.#count -= oldest.messages.length
    }
    this.#weigh(delivery)
    if (this.#bytes > MAX_HELD_BYTES && this.#held() > MAX_HELD_BYTES / 2) this.#compact()
    else if (this.#bytes > MAX_BYTES && !this.#compacting) this.#compacting = setTimeout(() => this.#compactNow(), COMPACT_AFTER_MS).unref()
  }

  /** Gathers the messages of one acknowledgement. @param key whose they are */
  acknowledged(key: Pick<DeliveredTogether, 'generation' | 'partition'>): Acknowledged {
    return new Acknowledged(this, key)
  }

  /** The newest first. */
  list(limit: number): readonly MessageRecord[] {
    const records: MessageRecord[] = []
    for (const [message, together] of this.#newestFirst()) {
      if (records.length === Math.min(limit, this.size)) break
      records.push(this.#shown(message, together).record)
    }
    return records
  }

  find(id: string): RecordedMessage | undefined {
    for (const [message, together] of this.#newestFirst()) if (this.#id(message, together) === id) return this.#shown(message, together)
    return undefined
  }

  *#newestFirst(): Iterable<readonly [Message, DeliveredTogether]> {
    for (const { messages, together } of this.#deliveries.toReversed())
      for (const message of messages.toReversed()) yield [message, together]
  }

  #id({ offset, index }: Message, { generation, partition }: DeliveredTogether): string {
    return messageId(this.#sinkId, { generation, partition, offset, index })
  }

  #shown(message: Message, together: DeliveredTogether): RecordedMessage {
    const { view, place } = message
    const { at, tries, formerAttempts } = together
    const { lsn, idx } = view.position(place)
    const body = view.buffer.subarray(view.bodyStart(place), view.bodyEnd(place))
    return {
      record: {
        id: this.#id(message, together),
        state: this.#state,
        table: body.length === 0 ? null : tableOf(body),
        action: actionName(view.action(place)),
        record_pks: keyOf(view.buffer.toString('utf8', view.keyStart(place), view.keyEnd(place))),
        commit_lsn: lsn.toString(),
        commit_idx: idx,
        commit_timestamp: new Date(view.commitTimeUs(place) / 1000).toISOString(),
        deliver_count: tries,
        last_delivered_at: new Date(at).toISOString(),
        not_visible_until: null,
        error: null,
        attempts: [together.attempt(), ...formerAttempts],
      },
      content: body.length === 0 ? undefined : { view, place },
    }
  }

  /** Counts what a delivery brings. */
  #weigh({ messages, together }: Delivery): void {
    let last = this.#lastView
    for (const { view } of messages) {
      if (view !== last) this.#bytes += view.buffer.length
      last = view
    }
    this.#lastView = last
    if (together !== this.#lastTogether) this.#bytes += together.bytes
    this.#lastTogether = together
  }

  /** Counts anew what is held: a pack that several requests share is held once. */
  #held(): number {
    const views = new Set<MessageView>()
    const togethers = new Set<DeliveredTogether>()
    let last: MessageView | undefined
    for (const { messages, together } of this.#deliveries) {
      togethers.add(together)
      for (const { view } of messages) {
        if (view !== last) views.add(view)
        last = view
      }
    }
    this.#bytes = 0
    for (const { buffer } of views) this.#bytes += buffer.length
    for (const { bytes } of togethers) this.#bytes += bytes
    return this.#bytes
  }

  #compactNow(): void {
    this.#compacting = undefined
    if (this.#held() > MAX_BYTES / 2) this.#compact()
  }

  /** Each message on its own, as many of the newest as half of the bound takes. */
  #compact(): void {
    const kept: Delivery[] = []
    let [bytes, count] = [0, 0]
    let last: DeliveredTogether | undefined
    for (const { messages, together } of this.#deliveries.toReversed()) {
      if (bytes > MAX_BYTES / 2) break
      const own: Message[] = []
      for (const message of messages.toReversed()) {
        if (bytes > MAX_BYTES / 2) break
        const copy = ownOf(message, this.#isSensitive)
        own.push(copy)
        bytes += copy.view.buffer.length
      }
      kept.push({ messages: own.toReversed(), together })
      count += own.length
      if (together !== last) bytes += together.bytes
      last = together
    }
    this.#deliveries = kept.toReversed()
    this.#count = count
    this.#bytes = bytes
    this.#lastView = undefined
  }

  #clear(): void {
    this.#deliveries = []
    this.#count = 0
    this.#bytes = 0
    this.#lastView = undefined
    this.#lastTogether = undefined
  }
}

/** The messages of one acknowledgement, until all of them are known. */
class Acknowledged {
  readonly #list: DeliveredMessages
  readonly #key: Pick<DeliveredTogether, 'generation' | 'partition'>
  readonly #at = Date.now()
  readonly #attempt = () => ({ at: new Date(this.#at).toISOString(), counts: true })
  #tries = 0
  #messages: Message[] = []

  constructor(list: DeliveredMessages, key: Pick<DeliveredTogether, 'generation' | 'partition'>) {
    this.#list = list
    this.#key = key
  }

  /** @param place of the message in its view, and its index in the record */
  readonly add = (view: MessageView, place: number, offset: number, tries: number): void => {
    if (tries !== this.#tries) this.done()
    this.#tries = tries
    this.#messages.push({ view, place, offset, index: place })
  }

  /** No more will come. */
  done(): void {
    const tries = this.#tries
    const { generation, partition } = this.#key
    const together = { generation, partition, at: this.#at, tries, attempt: this.#attempt, formerAttempts: [], bytes: ACKNOWLEDGED_BYTES }
    this.#list.add(this.#messages, together)
    this.#messages = []
  }
}

/** Messages without what functions made of them, which may be large and is not shown: the list itself where nothing was made. */
const withoutMade = (messages: readonly Message[]): readonly Message[] =>
  messages.some(({ payload, enrichment }) => payload ?? enrichment)
    ? messages.map(({ view, place, offset, index }) => ({ view, place, offset, index }))
    : messages

function hasLargePacks(messages: readonly Message[]): boolean {
  let last: MessageView | undefined
  for (const { view } of messages) {
    if (view !== last && view.buffer.length > LARGE_PACK_BYTES) return true
    last = view
  }
  return false
}

/** A message taken out of its pack: it stands at place 0. @param isSensitive without its content */
function ownOf({ view, place, offset, index }: Message, isSensitive: boolean): Message {
  // it has a pack of its own
  if (view instanceof ParkedMessage && view.buffer.length <= MAX_BODY_BYTES && !isSensitive) return { view, place: 0, offset, index }
  const start = view.bodyStart(place)
  const end = view.bodyEnd(place)
  const isLeftOut = isSensitive || end - start > MAX_BODY_BYTES
  const own = new ParkedMessage({
    position: view.position(place),
    group: view.group(place),
    action: view.action(place),
    flags: view.flags(place),
    relation: view.relation(place),
    xid: 0, // it is looked at, and sent no more
    commitTimeUs: view.commitTimeUs(place),
    key: view.buffer.subarray(view.keyStart(place), view.keyEnd(place)),
    groupKey: EMPTY,
    body: isLeftOut ? EMPTY : view.buffer.subarray(start, end),
  })
  return { view: own, place: 0, offset, index }
}

const EMPTY = Buffer.alloc(0)

/** @param body with its metadata left open */
function tableOf(body: Buffer): string | null {
  const { metadata } = JSON.parse(`{${body.toString('utf8')}}}`) as { metadata: { table_schema?: string; table_name?: string } }
  return metadata.table_name === undefined ? null : `${metadata.table_schema}.${metadata.table_name}`
}
