/**
 * A pack that is larger than a record of the log may be, as several records in a row. Every part begins with the header of
 * the whole, so that whoever looks at headers alone (positions, times, terms) sees the same in each, then says which part it
 * is, then has its share of the payload:
 *
 *   header of the pack (its version says "part") · index u32 · count u32 · bytes
 *
 * A pack in parts stands where its last part stands, and has that offset: the parts before it are only its bytes. So what a
 * reader gets of one run of the source is still a gapless prefix of what it wrote (docs/rules.md, rule 4), whatever another run, of
 * another term, has written between the parts, and everything that follows from that needs no further rule:
 *  - a run that dies within a pack has not written it; the next one writes it anew, from its first part;
 *  - of runs that overlap each one's parts are put together, those of the other being passed over. Only one set is kept in
 *    memory; the parts of another are fetched again when its last one comes, as they are when reading begins within a set.
 * What must be kept for that is the first part for as long as the last one is not finished, and, for as long as a run may write
 * on that has been given up, that of a set without its last part.
 */
import { EngineError } from '../errors.ts'
import type { LogRecord } from './log.ts'
import { HEADER_BYTES, Pack, PACK_VERSION, PART_VERSION } from './pack.ts'

const PART_BYTES = HEADER_BYTES + 8
const VERSION_AT = 2
/** A run that has lost its source writes no longer than this: the time limit of an append is a part of it. */
const MAY_BE_LATE_MS = 120_000

/**
 * Splits a pack that is larger than a record may be. @param record an encoded pack, compressed or not @param maxBytes of a part,
 * its header included
 */
export function splitPack(record: Buffer, maxBytes: number): Buffer[] {
  const share = maxBytes - PART_BYTES
  if (share <= 0) throw new EngineError('INTERNAL', `a record can't be cut into parts of ${maxBytes} bytes`)
  const count = Math.ceil((record.length - HEADER_BYTES) / share)
  return Array.from({ length: count }, (_, index) => {
    const start = HEADER_BYTES + index * share
    const head = Buffer.allocUnsafe(PART_BYTES)
    record.copy(head, 0, 0, HEADER_BYTES)
    head.writeUInt8(PART_VERSION, VERSION_AT)
    head.writeUInt32LE(index, HEADER_BYTES)
    head.writeUInt32LE(count, HEADER_BYTES + 4)
    return Buffer.concat([head, record.subarray(start, Math.min(start + share, record.length))])
  })
}

/** Tells whether a record is a part, and not the first one: it needs those before it. */
export const isLaterPart = (record: Buffer): boolean => {
  const part = partOf(record)
  return part !== undefined && part.index > 0
}

/** Tells whether a pack stands where a record is: the record is a pack, or the last part of one. */
export const isWholeWith = (record: Buffer): boolean => {
  const part = partOf(record)
  return part === undefined || part.index === part.count - 1
}

type Part = Readonly<{ term: number; index: number; count: number }>

/** @throws EngineError PACK_MALFORMED */
function partOf(record: Buffer): Part | undefined {
  const { term } = Pack.header(record)
  if (record.readUInt8(VERSION_AT) !== PART_VERSION) return undefined
  if (record.length < PART_BYTES)
    throw new EngineError('PACK_MALFORMED', `a record of the log can't be read: a part of a pack has only ${record.length} bytes`)
  return { term, index: record.readUInt32LE(HEADER_BYTES), count: record.readUInt32LE(HEADER_BYTES + 4) }
}

/**
 * Remembers where packs in parts stand in one partition, as whoever reads it in this process has met them. That is a fact of the log, so
 * readers at different places share it: what each still needs follows from where it stands.
 */
export class PartPlaces {
  readonly #clock: () => number
  /** first offsets of sets that are complete, by the last one */
  readonly #complete = new Map<number, number>()
  /** first offsets of sets whose last part has not come, and when they were met */
  readonly #begun = new Map<number, number>()
  /** ranges that have been read without a gap, up to before `to` */
  #read: { from: number; to: number }[] = []

  /** @param clock monotonic milliseconds */
  constructor(clock: () => number) {
    this.#clock = clock
  }

  begins(first: number): void {
    this.#begun.set(first, this.#clock())
  }

  /** A run writes a set anew: the one that began there will not be complete. */
  abandons(first: number): void {
    this.#begun.delete(first)
  }

  completes(first: number, last: number): void {
    this.#begun.delete(first)
    this.#complete.set(last, first)
  }

  /** The records from `from` up to before `to` have been met. */
  met(from: number, to: number): void {
    const touching = this.#read.filter((range) => range.from <= to && range.to >= from)
    const joined = { from: Math.min(from, ...touching.map((r) => r.from)), to: Math.max(to, ...touching.map((r) => r.to)) }
    this.#read = [...this.#read.filter((range) => !touching.includes(range)), joined]
  }

  /**
   * The lowest offset that is needed by whoever needs what stands at `offset` and above it.
   * @returns undefined: the record there has not been met
   */
  neededFrom(offset: number): number | undefined {
    const range = this.#read.find(({ from, to }) => from <= offset && offset <= to)
    if (!range) return undefined
    let needed = offset
    for (const [last, first] of this.#complete) if (first < needed && last >= offset) needed = first
    const now = this.#clock()
    for (const [first, at] of this.#begun) {
      if (now - at > MAY_BE_LATE_MS) this.#begun.delete(first)
      else if (first < needed && first >= range.from) needed = first
    }
    return needed
  }

  /** Forgets what lies below a record, which nobody reads any more. */
  forget(before: number): void {
    for (const last of this.#complete.keys()) if (last < before) this.#complete.delete(last)
    this.#read = this.#read.flatMap(({ from, to }) => (to > before ? [{ from: Math.max(from, before), to }] : []))
  }
}

type PartJoinerOptions = Readonly<{
  /** the record of an offset that was passed; undefined: it has been trimmed */
  fetch: (offset: number) => Promise<Buffer | undefined>
  /** of the partition */
  places: PartPlaces
}>

/** Puts together what is met of a partition from one offset on. */
export class PartJoiner {
  readonly #options: PartJoinerOptions
  /** the set that began last */
  #open: { readonly term: number; readonly first: number; readonly parts: Buffer[] } | undefined
  /** first offsets of sets whose last part has not come, by their run */
  readonly #begun = new Map<number, number>()

  constructor(options: PartJoinerOptions) {
    this.#options = options
  }

  /** @returns what to hand on; undefined: nothing now. @throws EngineError PACK_MALFORMED */
  push(record: LogRecord): LogRecord | undefined | Promise<LogRecord | undefined> {
    const { offset, pack } = record
    const { places } = this.#options
    const part = partOf(pack)
    if (!part) return record
    const { term, index, count } = part
    const open = this.#open
    if (index === 0) {
      const former = this.#begun.get(term)
      if (former !== undefined) places.abandons(former)
      this.#open = { term, first: offset, parts: [pack] }
      this.#begun.set(term, offset)
      places.begins(offset)
    } else if (open?.term === term && open.parts.length === index) {
      open.parts.push(pack)
      if (open.parts.length === count) return this.#completed(open.first, offset, term, open.parts)
    } else if (index === count - 1) return this.#gathered(record, part)
    return undefined
  }

  /** Fetches the parts before a last one. */
  async #gathered({ offset, pack }: LogRecord, { term, index }: Part): Promise<LogRecord | undefined> {
    const parts = [pack]
    let at = offset
    while (parts.length <= index) {
      const earlier = await this.#options.fetch(--at)
      if (!earlier) return undefined // below what is kept: it was finished
      const part = partOf(earlier)
      if (part?.term !== term) continue
      if (part.index !== index - parts.length) return undefined
      parts.unshift(earlier)
    }
    return this.#completed(at, offset, term, parts)
  }

  #completed(first: number, last: number, term: number, parts: readonly Buffer[]): LogRecord {
    if (this.#open?.term === term) this.#open = undefined
    this.#begun.delete(term)
    this.#options.places.completes(first, last)
    return { offset: last, pack: joined(parts) }
  }
}

/** In memory of its own, aligned as packs are. */
function joined(parts: readonly Buffer[]): Buffer {
  const bytes = parts.reduce((sum, part) => sum + part.length - PART_BYTES, HEADER_BYTES)
  const whole = Buffer.from(new ArrayBuffer(bytes))
  ;(parts[0] as Buffer).copy(whole, 0, 0, HEADER_BYTES)
  whole.writeUInt8(PACK_VERSION, VERSION_AT)
  let at = HEADER_BYTES
  for (const part of parts) at += part.copy(whole, at, PART_BYTES)
  return whole
}
