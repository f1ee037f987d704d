/**
 * The newest messages of a sink that were delivered here, so that what went out an hour ago can still be looked at. In memory
 * alone, and bounded twice: in number and in bytes. What was sent together shares what is known of it.
 *
 * A message costs nothing of its own: the lists of its delivery are kept, and what it brings stays where it was read, in its pack.
 * When the packs that are held so weigh more than the bound the messages are copied out of them, and the oldest let go of: after a
 * second, for where much is delivered others have taken their place by then (copying each at once was a tenth of the work of a busy sink).
 */
import type { MessageView } from '../log/message-view.ts'
import { messageId } from './ack-id.ts'
import { actionName, type MessageRecord, type RecordedMessage } from './parked/message-records.ts'
import { ParkedMessage } from './parked/parked-message.ts'

/** What is the same for all messages of one delivery. */
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

/** Parallel lists, an entry for each message, in the order of delivery. */
type DeliveredLists = Readonly<{
  views: readonly MessageView[]
  places: readonly number[]
  offsets: readonly number[]
  indexes: readonly number[]
}>
type Delivery = DeliveredLists & Readonly<{ together: DeliveredTogether }>

const MAX_MESSAGES = 1_000
const MAX_BYTES = 4 * 1024 * 1024
/** until they are copied */
const MAX_HELD_BYTES = 16 * 1024 * 1024
const COMPACT_AFTER_MS = 1_000
/** of one message: a longer one is kept without its content */
const MAX_BODY_BYTES = 256 * 1024
/** what is known of an acknowledgement holds so many, about */
const ACKNOWLEDGED_BYTES = 256

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

  /** @param lists kept as they are: nobody may change them any more */
  add(lists: DeliveredLists, together: DeliveredTogether): void {
    const count = Math.min(lists.views.length, MAX_MESSAGES)
    if (count === 0) return
    const { views, places, offsets, indexes } = count === lists.views.length ? lists : lastOf(lists, count)
    const delivery = { views, places, offsets, indexes, together }
    this.#deliveries.push(this.#isSensitive ? hushed(delivery) : delivery)
    this.#count += count
    while (this.#count - (this.#deliveries[0] as Delivery).views.length >= MAX_MESSAGES)
      this.#count -= (this.#deliveries.shift() as Delivery).views.length
    this.#weigh()
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
    for (const [delivery, i] of this.#newestFirst()) {
      if (records.length === Math.min(limit, this.size)) break
      records.push(this.#shown(delivery, i).record)
    }
    return records
  }

  find(id: string): RecordedMessage | undefined {
    for (const [delivery, i] of this.#newestFirst()) if (this.#id(delivery, i) === id) return this.#shown(delivery, i)
    return undefined
  }

  *#newestFirst(): Iterable<readonly [Delivery, number]> {
    for (const delivery of this.#deliveries.toReversed()) for (let i = delivery.views.length - 1; i >= 0; i--) yield [delivery, i]
  }

  #id({ offsets, indexes, together: { generation, partition } }: Delivery, i: number): string {
    return messageId(this.#sinkId, { generation, partition, offset: offsets[i] as number, index: indexes[i] as number })
  }

  #shown(delivery: Delivery, i: number): RecordedMessage {
    const { together } = delivery
    const view = delivery.views[i] as MessageView
    const place = delivery.places[i] as number
    const { at, tries, formerAttempts } = together
    const { lsn, idx } = view.position(place)
    const body = view.buffer.subarray(view.bodyStart(place), view.bodyEnd(place))
    return {
      record: {
        id: this.#id(delivery, i),
        state: this.#state,
        table: body.length === 0 ? null : tableOf(body),
        action: actionName(view.action(place)),
        record_pks: JSON.parse(view.buffer.toString('utf8', view.keyStart(place), view.keyEnd(place))) as (string | null)[],
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

  /** Counts what the last delivery brought. */
  #weigh(): void {
    const { views, together } = this.#deliveries.at(-1) as Delivery
    let last = this.#lastView
    for (const view of views) {
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
    for (const delivery of this.#deliveries) {
      togethers.add(delivery.together)
      for (const view of delivery.views) {
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
    for (const { views, places, offsets, indexes, together } of this.#deliveries.toReversed()) {
      if (bytes > MAX_BYTES / 2) break
      const own: MessageView[] = []
      let from = views.length
      while (from > 0 && bytes <= MAX_BYTES / 2) {
        from--
        const view = ownOf(views[from] as MessageView, places[from] as number, this.#isSensitive)
        own.push(view)
        bytes += view.buffer.length
      }
      const lists = { views: own.toReversed(), places: own.map(() => 0), offsets: offsets.slice(from), indexes: indexes.slice(from) }
      kept.push({ ...lists, together })
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
  #views: MessageView[] = []
  #places: number[] = []
  #offsets: number[] = []

  constructor(list: DeliveredMessages, key: Pick<DeliveredTogether, 'generation' | 'partition'>) {
    this.#list = list
    this.#key = key
  }

  /** @param place of the message in its view, and its index in the record */
  readonly add = (view: MessageView, place: number, offset: number, tries: number): void => {
    if (tries !== this.#tries) this.done()
    this.#tries = tries
    this.#views.push(view)
    this.#places.push(place)
    this.#offsets.push(offset)
  }

  /** No more will come. */
  done(): void {
    const [views, places, offsets, tries] = [this.#views, this.#places, this.#offsets, this.#tries]
    const { generation, partition } = this.#key
    const together = { generation, partition, at: this.#at, tries, attempt: this.#attempt, formerAttempts: [], bytes: ACKNOWLEDGED_BYTES }
    this.#list.add({ views, places, offsets, indexes: places }, together)
    this.#views = []
    this.#places = []
    this.#offsets = []
  }
}

const lastOf = ({ views, places, offsets, indexes }: DeliveredLists, count: number): DeliveredLists => ({
  views: views.slice(-count),
  places: places.slice(-count),
  offsets: offsets.slice(-count),
  indexes: indexes.slice(-count),
})

/** The same messages without their content. */
const hushed = (delivery: Delivery): Delivery => ({
  ...delivery,
  views: delivery.views.map((view, i) => ownOf(view, delivery.places[i] as number, true)),
  places: delivery.places.map(() => 0),
})

/** A message taken out of its pack: it stands at place 0. @param isSensitive without its content */
function ownOf(view: MessageView, place: number, isSensitive: boolean): MessageView {
  if (view instanceof ParkedMessage && view.buffer.length <= MAX_BODY_BYTES && !isSensitive) return view // it has a pack of its own
  const start = view.bodyStart(place)
  const end = view.bodyEnd(place)
  const isLeftOut = isSensitive || end - start > MAX_BODY_BYTES
  return new ParkedMessage({
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
}

const EMPTY = Buffer.alloc(0)

/** @param body with its metadata left open */
function tableOf(body: Buffer): string | null {
  const { metadata } = JSON.parse(`{${body.toString('utf8')}}}`) as { metadata: { table_schema?: string; table_name?: string } }
  return metadata.table_name === undefined ? null : `${metadata.table_schema}.${metadata.table_name}`
}
