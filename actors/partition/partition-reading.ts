/**
 * Reads the log of a partition into its window for as long as there is room. While the filter of the sink is asked about a
 * pack the next ones are read; they are taken in in their order all the same. The stream is shared with other sinks: what is
 * not this one's own is passed by, a record that has nothing of it by its header alone.
 */
import { once } from 'node:events'
import { setImmediate as nextTurn, setTimeout as delay } from 'node:timers/promises'
import type { Dispatcher } from '../../engine/dispatch/dispatcher.ts'
import { EngineError } from '../../engine/errors.ts'
import { notOwn, ownCount, type Span } from '../../engine/dispatch/span.ts'
import type { Log, LogRecord, TopicName } from '../../engine/log/log.ts'
import { Pack, type PackHeader } from '../../engine/log/pack.ts'
import { comparePositions } from '../../engine/position.ts'
import { Bell } from '../../engine/bell.ts'
import type { PartitionOptions } from './partition-options.ts'
import { splitKeyChanges } from './split-key-changes.ts'
import type { Trimming } from './trimming.ts'

type PartitionReadingOptions = Readonly<{
  log: Pick<Log, 'read'>
  topic: TopicName
  partition: number
  dispatcher: Dispatcher
  trimming: Pick<Trimming, 'read'>
  /** the topic is this generation's alone */
  isAlone: boolean
  span: PartitionOptions['span']
  drops: PartitionOptions['drops']
  /** changes of the primary key are delivered as a delete and an insert */
  splitsKeyChanges: boolean
  /** the owner sends: it asks by itself, as soon as it can */
  sends: boolean
  /** the dispatcher has taken something in */
  changed: () => void
  /** something may be deliverable that wasn't */
  deliverable: () => void
  /** records were passed by that have nothing of this generation */
  passed: () => void
}>

/** @property own how many of its messages are the generation's */
type ReadPack = Readonly<{ offset: number; decoded: Pack; bytes: number; own: number }>

/** A backlog is read without a pause of the event loop longer than this. */
const READ_SLICE_MS = 5
/** Packs read while the filter of the sink is asked about the first of them: many, for those that wait go out in one call. */
const MAX_ASKED = 32
const MAX_ASKED_BYTES = 8 * 1024 * 1024
/** A state database that is away is asked again after this. */
const LOOK_AGAIN_MS = 500

export class PartitionReading {
  readonly #options: PartitionReadingOptions
  readonly #room = new Bell()
  #span: Span | undefined

  constructor(options: PartitionReadingOptions) {
    this.#options = options
  }

  /** The window may have room again. */
  ring(): void {
    this.#room.ring()
  }

  /** Until its signal is aborted. @throws EngineError LOG_TOPIC_UNKNOWN, and what the log or the filter throws */
  run(signal: AbortSignal): Promise<void> {
    const failed = Promise.withResolvers<never>()
    failed.promise.catch(() => undefined)
    return Promise.race([this.#readOn(signal, failed.reject), failed.promise])
  }

  async #readOn(signal: AbortSignal, failed: (error: unknown) => void): Promise<void> {
    const { topic, partition, dispatcher, trimming, drops, splitsKeyChanges, changed, deliverable, passed } = this.#options
    /** packs whose filter is asked: they are taken in in their order */
    const asked: Promise<void>[] = []
    let askedBytes = 0
    let announcing: NodeJS.Immediate | undefined
    const offer = ({ offset, decoded, bytes, own }: ReadPack, marks?: Uint8Array) => {
      if (signal.aborted) return
      dispatcher.offer(offset, decoded, marks)
      trimming.read({ offset, messages: own, bytes, latestUs: decoded.header.maxCommitTimeUs })
      changed()
    }
    const ask = async (read: ReadPack, marks: Promise<Uint8Array | undefined> | undefined, before: Promise<void> | undefined) => {
      const found = await marks
      await before
      offer(read, found)
      asked.shift()
      askedBytes -= read.bytes
      // packs that were asked about together are offered together: few of a filter's messages are left of each
      announcing ??= setImmediate(() => {
        announcing = undefined
        deliverable()
      })
    }
    let sliceStart = performance.now()
    for await (const { offset, pack } of this.#records(signal)) {
      const header = Pack.header(pack)
      const span = this.#span && knows(this.#span, header) ? this.#span : await this.#look(header.routing, signal)
      if (!span) return // aborted
      if (this.#isEnd(header, span)) {
        await asked.at(-1)
        return this.#close(signal)
      }
      if (header.count === 0 || (asked.length === 0 && comparePositions(header.last, dispatcher.filter) <= 0)) {
        await asked.at(-1)
        if (signal.aborted) return
        dispatcher.pass(offset)
        passed()
        if (performance.now() - sliceStart > READ_SLICE_MS) {
          await nextTurn()
          sliceStart = performance.now()
        }
        continue
      }
      const decoded = splitsKeyChanges ? splitKeyChanges(Pack.shared(pack)) : Pack.shared(pack)
      const others = notOwn(span, decoded)
      const read = { offset, decoded, bytes: pack.length, own: ownCount(decoded.count, others) }
      const marks = drops(decoded)
      if (!marks && asked.length === 0) {
        offer(read, others)
        deliverable()
      } else {
        const turn = ask(read, others ? both(others, marks) : marks, asked.at(-1))
        turn.catch(failed)
        asked.push(turn)
        askedBytes += read.bytes
        if (asked.length >= MAX_ASKED || askedBytes > MAX_ASKED_BYTES) await asked[0]
      }
      if (signal.aborted) return
      if (performance.now() - sliceStart > READ_SLICE_MS) {
        await nextTurn()
        sliceStart = performance.now()
      }
    }
    if (!signal.aborted) throw new EngineError('LOG_TOPIC_UNKNOWN', `the log ended for ${topic}/${partition}`, { topic, partition })
  }

  /**
   * The records of the log, as there is room for them. A reader whose window is full and that no client asks leaves the log until
   * one does: it is told of no append meanwhile, and nothing is kept in memory for it.
   */
  async *#records(signal: AbortSignal): AsyncIterable<LogRecord> {
    const { log, topic, partition, dispatcher, sends } = this.#options
    let from = dispatcher.readFrom
    for (;;) {
      let isFull = false
      for await (const record of log.read(topic, partition, from, signal)) {
        yield record
        from = record.offset + 1
        if (sends || dispatcher.isAsked) await this.#untilRoom(signal)
        isFull = !dispatcher.room()
        if (isFull) break
      }
      if (!isFull) return // the log has ended
      await this.#untilRoom(signal)
    }
  }

  /** Settles when the window has room, or the signal is aborted. */
  async #untilRoom(signal: AbortSignal): Promise<void> {
    while (!this.#options.dispatcher.room() && !signal.aborted) await this.#room.wait(signal)
  }

  /** A record was written under a routing version that was not looked at yet: what follows waits until it can be. */
  async #look(version: number, signal: AbortSignal): Promise<Span | undefined> {
    while (!signal.aborted) {
      try {
        const span = await this.#options.span()
        // one that the state database has forgotten says nothing; it is not asked for again
        return (this.#span = { ...span, version: Math.max(span.version, version) })
      } catch (error) {
        if (!(error instanceof EngineError) || error.code !== 'STATE_UNAVAILABLE') throw error
        await delay(LOOK_AGAIN_MS, undefined, { signal }).catch(() => undefined)
      }
    }
    return undefined
  }

  /** Whether everything that is this generation's own stands before the record. */
  #isEnd({ isMarker, first }: PackHeader, { endsAt }: Span): boolean {
    if (isMarker && this.#options.isAlone) return true
    return endsAt !== undefined && comparePositions(first, endsAt) >= 0
  }

  /** The generation ends here; nothing is read any more. */
  async #close(signal: AbortSignal): Promise<void> {
    const { dispatcher, changed } = this.#options
    dispatcher.close()
    changed()
    if (!signal.aborted) await once(signal, 'abort')
  }
}

/** A marker may be of a version whose number was given before, by a state database that was put back since. */
const knows = (span: Span, { routing, isMarker }: PackHeader): boolean => routing <= span.version && !(isMarker && !span.endsAt)

/** Joins two filters: a message that either of them drops is dropped. */
async function both(others: Uint8Array, marks: Promise<Uint8Array | undefined> | undefined): Promise<Uint8Array> {
  const found = await marks
  if (found) for (let i = 0; i < others.length; i++) others[i] = (others[i] as number) | (found[i] as number)
  return others
}
