/**
 * Reads the log of a partition into its window for as long as there is room. While the filter of the sink is asked about a
 * pack the next ones are read; they are taken in in their order all the same. The stream is shared with other sinks: what is
 * not this one's own is passed by, a record that has nothing of it by its header alone.
 */
import { once } from 'node:events'
import { setImmediate as nextTurn, setTimeout as delay } from 'node:timers/promises'
import { hasRoom, isAsked } from '../../engine/dispatch/dispatcher.ts'
import { offer as takeIn } from '../../engine/dispatch/intake.ts'
import { EngineError } from '../../engine/errors.ts'
import { notOwn, ownCount, type Span } from '../../engine/dispatch/span.ts'
import type { LogRecord } from '../../engine/log/log.ts'
import { Pack, type PackHeader } from '../../engine/log/pack.ts'
import { comparePositions } from '../../engine/position.ts'
import { Bell } from '../../engine/bell.ts'
import type { OwnedPartition } from './owned-partition.ts'
import { splitKeyChanges } from './split-key-changes.ts'

/** @property own how many of its messages are the generation's */
type ReadPack = Readonly<{ offset: number; decoded: Pack; bytes: number; own: number }>

/** A backlog is read without a pause of the event loop longer than this. */
const READ_SLICE_MS = 5
/** Packs read while the filter of the sink is asked about the first of them: many, for those that wait go out in one call. */
const MAX_FILTERING = 32
const MAX_FILTERING_BYTES = 8 * 1024 * 1024
/** A state database that is away is asked again after this. */
const LOOK_AGAIN_MS = 500

/** Reads the log of one partition into its window. */
export class PartitionReading {
  readonly #owned: OwnedPartition
  /** the window may have room again */
  readonly room = new Bell()
  #span: Span | undefined

  constructor(owned: OwnedPartition) {
    this.#owned = owned
  }

  /** Until its signal is aborted. @throws EngineError LOG_TOPIC_UNKNOWN, and what the log or the filter throws */
  run(signal: AbortSignal): Promise<void> {
    const failed = Promise.withResolvers<never>()
    failed.promise.catch(() => undefined)
    return Promise.race([this.#readOn(signal, failed.reject), failed.promise])
  }

  async #readOn(signal: AbortSignal, failed: (error: unknown) => void): Promise<void> {
    const owned = this.#owned
    const { dispatcher, sink, served, commits, trimming } = owned
    const { splitsKeyChanges = false } = served.shape
    /** packs whose filter is asked: they are taken in in their order */
    const filtering: Promise<void>[] = []
    let filteringBytes = 0
    let announcing: NodeJS.Immediate | undefined
    const accept = ({ offset, decoded, bytes, own }: ReadPack, drops?: Uint8Array) => {
      if (signal.aborted) return
      takeIn(dispatcher, offset, decoded, drops)
      trimming.read({ offset, messages: own, bytes, latestUs: decoded.header.maxCommitTimeUs })
      owned.changed()
    }
    const acceptFiltered = async (
      read: ReadPack,
      drops: Promise<Uint8Array | undefined> | undefined,
      before: Promise<void> | undefined,
    ) => {
      const found = await drops
      await before
      accept(read, found)
      filtering.shift()
      filteringBytes -= read.bytes
      // packs that were asked about together are offered together: few of a filter's messages are left of each
      announcing ??= setImmediate(() => {
        announcing = undefined
        sink.deliverable()
      })
    }
    let sliceStart = performance.now()
    for await (const { offset, pack } of this.#records(signal)) {
      const header = Pack.header(pack)
      const span = this.#span && knows(this.#span, header) ? this.#span : await this.#look(header.routing, signal)
      if (!span) return // aborted
      if (this.#isEnd(header, span)) {
        await filtering.at(-1)
        return this.#close(signal)
      }
      if (header.count === 0 || (filtering.length === 0 && comparePositions(header.last, dispatcher.accepted) <= 0)) {
        await filtering.at(-1)
        if (signal.aborted) return
        dispatcher.window.pass(offset)
        commits.passed()
      } else {
        const decoded = splitsKeyChanges ? splitKeyChanges(Pack.shared(pack)) : Pack.shared(pack)
        const others = notOwn(span, decoded)
        const read = { offset, decoded, bytes: pack.length, own: ownCount(decoded.count, others) }
        sink.surroundings.recent?.note(sink.sink, decoded)
        const drops = sink.stage.isFiltering ? sink.stage.drops(decoded) : undefined
        if (!drops && filtering.length === 0) {
          accept(read, others)
          sink.deliverable()
        } else {
          const turn = acceptFiltered(read, others ? both(others, drops) : drops, filtering.at(-1))
          turn.catch(failed)
          filtering.push(turn)
          filteringBytes += read.bytes
          if (filtering.length >= MAX_FILTERING || filteringBytes > MAX_FILTERING_BYTES) await filtering[0]
        }
      }
      if (signal.aborted) return
      if (performance.now() - sliceStart > READ_SLICE_MS) {
        await nextTurn()
        sliceStart = performance.now()
      }
    }
    const { topic } = served
    const { partition } = owned.key
    if (!signal.aborted) throw new EngineError('LOG_TOPIC_UNKNOWN', `the log ended for ${topic}/${partition}`, { topic, partition })
  }

  /**
   * The records of the log, as there is room for them. A reader whose window is full and that no client asks leaves the log until
   * one does: no append wakes it meanwhile, and nothing is kept in memory for it.
   */
  async *#records(signal: AbortSignal): AsyncIterable<LogRecord> {
    const { dispatcher, sink, served, key } = this.#owned
    const { log } = sink.surroundings
    let from = dispatcher.restored.next.offset
    for (;;) {
      let isFull = false
      for await (const record of log.read(served.topic, key.partition, from, signal)) {
        yield record
        from = record.offset + 1
        if (sink.transport.sends || isAsked(dispatcher)) await this.#untilRoom(signal)
        isFull = !hasRoom(dispatcher)
        if (isFull) break
      }
      if (!isFull) return // the log has ended
      await this.#untilRoom(signal)
    }
  }

  /** Settles when the window has room, or the signal is aborted. */
  async #untilRoom(signal: AbortSignal): Promise<void> {
    while (!hasRoom(this.#owned.dispatcher) && !signal.aborted) await this.room.wait(signal)
  }

  /** A record was written under a routing version that was not looked at yet: what follows waits until it can be. */
  async #look(version: number, signal: AbortSignal): Promise<Span | undefined> {
    const { sink, key } = this.#owned
    while (!signal.aborted) {
      try {
        const span = await sink.surroundings.generations.span(key.generation)
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
    const { topic, reader } = this.#owned.served
    if (isMarker && topic === reader) return true // the topic is this generation's alone
    return endsAt !== undefined && comparePositions(first, endsAt) >= 0
  }

  /** The generation ends here; nothing is read any more. */
  async #close(signal: AbortSignal): Promise<void> {
    this.#owned.dispatcher.closed = true
    this.#owned.changed()
    if (!signal.aborted) await once(signal, 'abort')
  }
}

/**
 * Tells whether it is known what the version of a pack says; a marker may be of a version whose number was given before, by a state
 * database that was put back since.
 */
const knows = (span: Span, { routing, isMarker }: PackHeader): boolean => routing <= span.version && !(isMarker && !span.endsAt)

/** Joins two filters: a message that either of them drops is dropped. */
async function both(others: Uint8Array, drops: Promise<Uint8Array | undefined> | undefined): Promise<Uint8Array> {
  const found = await drops
  return found ? others.map((mark, i) => mark | (found[i] ?? 0)) : others
}
