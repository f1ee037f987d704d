/**
 * The newest messages of a sink that were delivered here, so that what went out an hour ago can still be looked at. In memory
 * alone, and bounded twice: in number and in bytes. What was sent together shares what is known of it.
 *
 * A message costs some array entries: what it brings stays where it was read, in its pack. When the packs that are held so
 * weigh more than the bound the messages are copied out of them, and the oldest let go of: after a second, for where much is
 * delivered others have taken their place by then (copying each at once was a tenth of the work of a busy sink).
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

type Keeper = (view: MessageView, place: number, offset: number, tries: number) => void

const MAX_MESSAGES = 1_000
const MAX_BYTES = 4 * 1024 * 1024
/** until they are copied */
const MAX_HELD_BYTES = 16 * 1024 * 1024
const COMPACT_AFTER_MS = 1_000
/** of one message: a longer one is kept without its content */
const MAX_BODY_BYTES = 256 * 1024

export class DeliveredMessages {
  readonly #sinkId: string
  /** how the state of such a message is called */
  readonly #state: MessageRecord['state']
  readonly #views: (MessageView | undefined)[] = []
  readonly #together: DeliveredTogether[] = []
  readonly #places: number[] = []
  readonly #offsets: number[] = []
  readonly #indexes: number[] = []
  /** where the next one goes */
  #next = 0
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
    return this.#count
  }
  get bytes(): number {
    return this.#bytes
  }

  add(view: MessageView, place: number, offset: number, index: number, together: DeliveredTogether): void {
    const i = this.#next
    this.#next = i + 1 === MAX_MESSAGES ? 0 : i + 1
    if (this.#count < MAX_MESSAGES) this.#count++
    this.#views[i] = view
    this.#places[i] = place
    this.#offsets[i] = offset
    this.#indexes[i] = index
    this.#together[i] = together
    if (view === this.#lastView && together === this.#lastTogether && !this.#isSensitive) return
    if (view !== this.#lastView) this.#bytes += view.buffer.length
    if (together !== this.#lastTogether) this.#bytes += together.bytes
    this.#lastView = view
    this.#lastTogether = together
    if (this.#isSensitive) this.#own(i)
    if (this.#bytes > MAX_HELD_BYTES && this.#held() > MAX_HELD_BYTES / 2) this.#compact()
    else if (this.#bytes > MAX_BYTES && !this.#compacting) this.#compacting = setTimeout(() => this.#compactNow(), COMPACT_AFTER_MS).unref()
  }

  /** What keeps the messages of one acknowledgement. @param key whose they are */
  acknowledged({ generation, partition }: Pick<DeliveredTogether, 'generation' | 'partition'>): Keeper {
    const at = Date.now()
    const attempt = () => ({ at: new Date(at).toISOString(), counts: true })
    let together: DeliveredTogether | undefined
    return (view, place, offset, tries) => {
      if (together?.tries !== tries) together = { generation, partition, at, tries, attempt, formerAttempts: [], bytes: 256 }
      this.add(view, place, offset, place, together)
    }
  }

  /** The newest first. */
  list(limit: number): readonly MessageRecord[] {
    const records: MessageRecord[] = []
    for (let n = 0; n < Math.min(limit, this.#count); n++) records.push(this.#shown(this.#at(n)).record)
    return records
  }

  find(id: string): RecordedMessage | undefined {
    for (let n = 0; n < this.#count; n++) {
      const i = this.#at(n)
      if (this.#id(i) === id) return this.#shown(i)
    }
    return undefined
  }

  /** Where the nth newest is. */
  #at(n: number): number {
    return (this.#next - 1 - n + MAX_MESSAGES) % MAX_MESSAGES
  }

  #id(i: number): string {
    const { generation, partition } = this.#together[i] as DeliveredTogether
    return messageId(this.#sinkId, { generation, partition, offset: this.#offsets[i] as number, index: this.#indexes[i] as number })
  }

  #shown(i: number): RecordedMessage {
    const view = this.#views[i] as MessageView
    const place = this.#places[i] as number
    const together = this.#together[i] as DeliveredTogether
    const { at, tries, formerAttempts } = together
    const { lsn, idx } = view.position(place)
    const body = view.buffer.subarray(view.bodyStart(place), view.bodyEnd(place))
    return {
      record: {
        id: this.#id(i),
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

  /** Counts anew what is held: what was overwritten is not, and a pack that several requests share is held once. */
  #held(): number {
    const views = new Set<MessageView>()
    const togethers = new Set<DeliveredTogether>()
    for (let n = 0; n < this.#count; n++) {
      const i = this.#at(n)
      views.add(this.#views[i] as MessageView)
      togethers.add(this.#together[i] as DeliveredTogether)
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
    const count = this.#count
    let bytes = 0
    let kept = 0
    let last: DeliveredTogether | undefined
    for (; kept < count; kept++) {
      const i = this.#at(kept)
      this.#own(i)
      const together = this.#together[i] as DeliveredTogether
      bytes += (this.#views[i] as MessageView).buffer.length + (together === last ? 0 : together.bytes)
      last = together
      if (bytes > MAX_BYTES / 2 && kept > 0) break
    }
    for (let n = kept; n < count; n++) {
      this.#views[this.#at(n)] = undefined
      this.#together[this.#at(n)] = NOTHING
    }
    this.#count = kept
    this.#bytes = bytes
    this.#lastView = undefined
  }

  /** Takes a message out of its pack. */
  #own(i: number): void {
    const view = this.#views[i] as MessageView
    if (view instanceof ParkedMessage && view.buffer.length <= MAX_BODY_BYTES && !this.#isSensitive) return // it has a pack of its own
    const place = this.#places[i] as number
    const start = view.bodyStart(place)
    const end = view.bodyEnd(place)
    const isLeftOut = this.#isSensitive || end - start > MAX_BODY_BYTES
    this.#views[i] = new ParkedMessage({
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
    this.#places[i] = 0
  }

  #clear(): void {
    for (const list of [this.#views, this.#together, this.#places, this.#offsets, this.#indexes]) list.length = 0
    this.#next = 0
    this.#count = 0
    this.#bytes = 0
    this.#lastView = undefined
    this.#lastTogether = undefined
  }
}

const EMPTY = Buffer.alloc(0)
const NOTHING: DeliveredTogether = {
  ...{ generation: 0, partition: 0, at: 0, tries: 0, attempt: () => ({}), formerAttempts: [], bytes: 0 },
}

/** @param body with its metadata left open */
function tableOf(body: Buffer): string | null {
  const { metadata } = JSON.parse(`{${body.toString('utf8')}}}`) as { metadata: { table_schema?: string; table_name?: string } }
  return metadata.table_name === undefined ? null : `${metadata.table_schema}.${metadata.table_name}`
}
