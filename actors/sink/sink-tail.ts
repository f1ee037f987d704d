/**
 * Looks at what comes to a sink, for people: reads the log where the sink does, with its selection, filter and functions, and leaves no
 * trace. It has no commits, takes no lease and holds back nothing: what is trimmed meanwhile it never sees.
 *
 * A look starts at a place, which the look before has named, and tells the newest messages up to the end of the log. Who looks too seldom
 * skips what does not fit, and is told how many; so the memory of a look is bounded, and no reader slows anything.
 */
import { readerIn, type Generations } from '../../engine/dispatch/generations.ts'
import { actionName } from '../../engine/dispatch/parked/message-records.ts'
import { EngineError } from '../../engine/errors.ts'
import type { Log, LogRecord } from '../../engine/log/log.ts'
import { MESSAGE_FLAG, type Pack } from '../../engine/log/pack.ts'
import { comparePositions, type Position } from '../../engine/position.ts'
import type { Query } from '../../engine/postgres/query.ts'
import type { Database, Sink } from '../../engine/state/resources.ts'
import { isKeyed, PUSH_TYPES } from '../../sinks/destination-types.ts'
import { Messages, positionName, tableOf } from '../../sinks/messages.ts'
import { failureText, STATE, type FunctionStage, type StageOutcome } from '../../transforms/stage.ts'
import { OwnMessages, readableGenerations, type ReadableGeneration } from './own-messages.ts'

/** Asks what has come to a sink. @property after where the look before ended; absent: the end of the log */
export type TailAsked = Readonly<{ after: string | undefined; limit: number; waitMs: number; signal: AbortSignal }>

/** The messages that have come to a sink. */
export type TailPage = Readonly<{
  /** JSON of each, in the order of the commits */
  messages: readonly string[]
  /** messages that are older than those and did not fit; how many of them the filter drops is not known */
  skipped: number
  /** messages among the newest that the filter drops */
  dropped: number
  /** records of the log that were gone before they were looked at */
  trimmed: number
  /** the `after` of the next look */
  next: string
}>

type TailOptions = Readonly<{
  sink: Sink
  database: Database
  log: Log
  /** the state database */
  query: Query
  generations: Pick<Generations, 'span'>
  /** runs work on a stage of the sink's functions */
  tried: <T>(work: (stage: FunctionStage) => Promise<T>) => Promise<T>
}>

/** By generation, the next record of each partition; below 0: nothing more of it comes there. */
type Places = Map<number, number[]>
type Seen = Readonly<{ pack: Pack; place: number }>

const ENDED = -1
/** Packs that are held while a look goes on: the newest ones, but one of any size. */
const MAX_HELD_BYTES = 16 * 1024 * 1024
/** A look at a long stretch of the log ends after this, and the next one goes on. */
const MAX_LOOK_MS = 1_000

/** Looks at what has come since a place, and waits for it when nothing has. @throws EngineError REQUEST_INVALID, STATE_UNAVAILABLE, … */
export async function tailOf(options: TailOptions, { after, limit, waitMs, signal }: TailAsked): Promise<TailPage> {
  const { reads: generations } = await readableGenerations(options)
  const given = after === undefined ? undefined : readPlaces(after)
  const places = await begun(options, generations, given)
  const reads = generations.filter(({ generation }) => places.has(generation))
  const look = new Look(options, limit)
  const until = performance.now() + waitMs
  let trimmed = 0
  for (;;) {
    for (const read of reads) trimmed += await look.at(read, places.get(read.generation) ?? [], signal)
    const leftMs = until - performance.now()
    if (look.hasSeen || trimmed > 0 || leftMs <= 0 || signal.aborted || after === undefined) break
    if (!(await newRecord(options.log, reads, places, AbortSignal.any([signal, AbortSignal.timeout(Math.ceil(leftMs))])))) break
  }
  for (const [generation, offsets] of places) if (places.size > 1 && offsets.every((offset) => offset === ENDED)) places.delete(generation)
  const { messages, dropped } = await shown(options, look.newest)
  return { messages, dropped, skipped: look.skipped, trimmed, next: writePlaces(places) }
}

/** Collects the newest messages of a sink, as they are read. */
class Look {
  readonly #options: TailOptions
  readonly #limit: number
  readonly #packs: Held[] = []
  readonly #own: OwnMessages
  #bytes = 0
  #count = 0
  skipped = 0

  constructor(options: TailOptions, limit: number) {
    this.#options = options
    this.#limit = limit
    this.#own = new OwnMessages(options.sink, options.generations)
  }

  get hasSeen(): boolean {
    return this.#count + this.skipped > 0
  }

  /** in the order of the commits */
  get newest(): readonly Seen[] {
    const all = this.#packs.flatMap(({ pack, places }) => places.map((place) => ({ pack, place })))
    return all.toSorted((a, b) => comparePositions(a.pack.position(a.place), b.pack.position(b.place))).slice(-this.#limit)
  }

  /** Reads a generation up to the end of the log, and moves its places there. @returns records that are gone */
  async at(read: ReadableGeneration, offsets: number[], signal: AbortSignal): Promise<number> {
    const { log, sink } = this.#options
    const reader = readerIn(read.topic, { sinkId: sink.id, generation: read.generation })
    const started = performance.now()
    let trimmed = 0
    for (const [partition, from] of offsets.entries()) {
      if (from === ENDED) continue
      const { first, next } = await log.stats(reader, partition)
      trimmed += Math.max(0, Math.min(first, next) - from)
      offsets[partition] = Math.max(from, Math.min(first, next))
      for await (const record of log.read(read.topic, partition, offsets[partition], signal, next)) {
        offsets[partition] = record.offset + 1
        if (!(await this.#take(read, record))) {
          offsets[partition] = ENDED
          break
        }
        if (performance.now() - started > MAX_LOOK_MS) break
      }
    }
    return trimmed
  }

  /** @returns false: the generation has ended here */
  async #take(read: ReadableGeneration, record: LogRecord): Promise<boolean> {
    const own = await this.#own.of(read, record)
    if (!own) return false
    const { pack } = own
    const isTold = (place: number) => isKeyed(this.#options.sink.destination) || (pack.flags(place) & MESSAGE_FLAG.tombstone) === 0
    const places = own.places.filter(isTold)
    if (places.length > 0) this.#keep(pack, places)
    return true
  }

  #keep(pack: Pack, places: number[]): void {
    const kept = places.slice(-this.#limit)
    this.skipped += places.length - kept.length
    this.#packs.push({ pack, places: kept, bytes: pack.buffer.length })
    this.#bytes += pack.buffer.length
    this.#count += kept.length
    // partitions are read one after another, so the oldest message may be in any of the packs
    for (let over = this.#count - this.#limit; over > 0 || this.#isTooHeavy; over = this.#count - this.#limit) {
      const oldest = this.#packs.reduce((a, b) => (comparePositions(firstOf(a), firstOf(b)) <= 0 ? a : b))
      const dropped = oldest.places.splice(0, this.#isTooHeavy ? oldest.places.length : 1).length
      this.#count -= dropped
      this.skipped += dropped
      if (oldest.places.length > 0) continue
      this.#packs.splice(this.#packs.indexOf(oldest), 1)
      this.#bytes -= oldest.bytes
    }
  }

  get #isTooHeavy(): boolean {
    return this.#bytes > MAX_HELD_BYTES && this.#packs.length > 1
  }
}

type Held = Readonly<{ pack: Pack; places: number[]; bytes: number }>
const firstOf = ({ pack, places }: Held): Position => pack.position(places[0] ?? 0)

/** Runs the functions of the sink on messages, apart from those at work. */
async function shown(options: TailOptions, seen: readonly Seen[]): Promise<Pick<TailPage, 'messages' | 'dropped'>> {
  const { sink, database, tried } = options
  if (seen.length === 0) return { messages: [], dropped: 0 }
  const kept = seen.filter(({ pack, place }) => (pack.flags(place) & MESSAGE_FLAG.discarded) === 0)
  const given = kept.map(({ pack, place }) => ({ view: pack, place }))
  return tried(async (stage) => {
    const outcome = stage.isIdle || kept.length === 0 ? undefined : await stage.run(given)
    const writer = new Messages(sink, database)
    const messages: string[] = []
    let dropped = 0
    for (const one of seen) {
      const i = kept.indexOf(one)
      if (outcome && i >= 0 && outcome.stateOf(i) === STATE.dropped) dropped++
      else messages.push(oneShown(one, { sink, database, writer, outcome, i }))
    }
    return { messages, dropped }
  })
}

type Showing = Readonly<{ sink: Sink; database: Database; writer: Messages; outcome: StageOutcome | undefined; i: number }>

function oneShown({ pack, place }: Seen, { sink, database, writer, outcome, i }: Showing): string {
  const message = { view: pack, place, offset: 0, index: place }
  const { lsn, idx } = pack.position(place)
  const { schema, table } = tableOf(message)
  const about = {
    position: positionName(message),
    table: `${schema}.${table}`,
    action: actionName(pack.action(place)),
    commit_lsn: String(lsn),
    commit_idx: idx,
    commit_timestamp: new Date(Math.floor(pack.commitTimeUs(place) / 1_000)).toISOString(),
  }
  const fields: string[] = []
  const isKept = i >= 0 && (!outcome || outcome.stateOf(i) === STATE.kept)
  if (isKept && !sink.sensitive) {
    const delivered = { ...message, payload: outcome?.payloadAt(i), enrichment: outcome?.enrichmentOf(i) }
    const text = Buffer.alloc(writer.size(delivered))
    writer.write(delivered, text, 0)
    fields.push(`"message":${text.toString()}`)
  } else fields.push('"message":null')
  const route = isKept && !sink.sensitive ? outcome?.routeOf(i) : undefined
  const { routing } = PUSH_TYPES.get(sink.destination.type) ?? {}
  if (route && routing)
    fields.push(
      `"routing":${JSON.stringify(routing.effective(route, sink.destination, { action: about.action, database: database.name, schema, table }))}`,
    )
  const error =
    i < 0
      ? { code: 'MESSAGE_TOO_LARGE', message: 'it is larger than MAX_MESSAGE_MB, and was discarded' }
      : outcome && !isKept
        ? troubleOf(outcome, i)
        : undefined
  if (error) fields.push(`"error":${JSON.stringify(error)}`)
  return `${JSON.stringify(about).slice(0, -1)},${fields.join()}}`
}

function troubleOf(outcome: StageOutcome, i: number): Readonly<{ code: string; message: string }> {
  if (outcome.stateOf(i) !== STATE.failed) return { code: 'SANDBOX_UNAVAILABLE', message: 'its functions did not come to it' }
  const failure = outcome.failureOf(i)
  return { code: failure.code, message: failureText(failure) }
}

/** Settles when a record has come behind one of the places. @returns false: none has, before the signal was aborted */
async function newRecord(log: Log, reads: readonly ReadableGeneration[], places: Places, signal: AbortSignal): Promise<boolean> {
  const enough = new AbortController()
  const either = AbortSignal.any([signal, enough.signal])
  const waits = reads.flatMap(({ generation, topic }) =>
    (places.get(generation) ?? []).flatMap((offset, partition) => {
      if (offset === ENDED) return []
      const records = log.read(topic, partition, offset, either)[Symbol.asyncIterator]()
      return [records.next().then(async ({ done }) => (await records.return?.(), done !== true))]
    }),
  )
  try {
    return await Promise.race([...waits, ended(either)])
  } finally {
    enough.abort()
    await Promise.allSettled(waits)
  }
}

const ended = (signal: AbortSignal): Promise<false> =>
  new Promise((resolve) => {
    if (signal.aborted) resolve(false)
    else signal.addEventListener('abort', () => resolve(false), { once: true })
  })

/** Finds the places to begin at: those that were given, those of generations that are newer, and otherwise the end of the newest one. */
async function begun({ log, sink }: TailOptions, generations: readonly ReadableGeneration[], given: Places | undefined): Promise<Places> {
  const newest = generations.at(-1)
  if (!newest) return given ?? new Map()
  const places: Places = new Map([...(given ?? [])].filter(([generation]) => generations.some((one) => one.generation === generation)))
  const lowest = given && given.size > 0 ? Math.max(...given.keys()) : newest.generation - 1
  for (const read of generations) {
    if (read.generation <= lowest || (!given && read !== newest)) continue
    const reader = readerIn(read.topic, { sinkId: sink.id, generation: read.generation })
    const offsets: number[] = []
    for (let partition = 0; partition < read.shape.partitions; partition++) {
      // what a stream had before the sink came to it is not the sink's; the first record of its own is found by its place
      const { next } = await log.stats(reader, partition)
      offsets.push(given && read.opensAt ? await log.offsetFor(read.topic, partition, { position: read.opensAt }) : next)
    }
    places.set(read.generation, offsets)
  }
  return places
}

const writePlaces = (places: Places): string => Buffer.from(JSON.stringify([...places])).toString('base64url')

/** @throws EngineError REQUEST_INVALID */
function readPlaces(text: string): Places {
  const isOffsets = (value: unknown): value is number[] =>
    Array.isArray(value) && value.every((one) => Number.isSafeInteger(one) && one >= ENDED)
  try {
    const given: unknown = JSON.parse(Buffer.from(text, 'base64url').toString())
    const pairs: readonly unknown[] = Array.isArray(given) ? given : []
    const places: Places = new Map()
    for (const pair of pairs) {
      const [generation, offsets]: readonly unknown[] = Array.isArray(pair) ? pair : []
      if (!Number.isSafeInteger(generation) || !isOffsets(offsets)) throw new TypeError('no place')
      places.set(Number(generation), offsets)
    }
    if (Array.isArray(given)) return places
  } catch {}
  throw new EngineError('REQUEST_INVALID', 'after must be the `next` of an answer.')
}
