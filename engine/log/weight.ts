/**
 * Says how many bytes records of the log take, and how many of them are messages of one action alone: so it is known without
 * reading them what a reader gets that takes few actions. A pack has the shares in its header, in 1023rds and rounded down, and a
 * log adds them up. Of key changes, rows of backfills, markers and packs of former versions nothing is told: they count for every
 * reader. No I/O.
 */

/** Holds how many bytes records take, and how many of them are of messages of one action. */
export type Weight = Readonly<{ bytes: number; insert: number; update: number; delete: number }>

/** The weight of no records. */
export const NO_WEIGHT: Weight = { bytes: 0, insert: 0, update: 0, delete: 0 }

/** A share is a number of 1023 parts, in 10 bits. */
const WHOLE = 1023
const SHARE_BITS = 10
/** Where they stand in the header of a pack. */
const SHARES_AT = 16

/** Makes the shares that the header of a pack says of its actions. @param bytes of the messages of each action, and of all */
export function sharesOf({ bytes, insert, update, delete: deleted }: Weight): number {
  if (bytes === 0) return 0
  const share = (part: number) => Math.floor((part * WHOLE) / bytes)
  return share(insert) | (share(update) << SHARE_BITS) | (share(deleted) << (2 * SHARE_BITS))
}

/** Writes shares into the header of a pack. */
export const writeShares = (pack: Buffer, shares: number): number => pack.writeUInt32LE(shares, SHARES_AT)
/** Reads shares from the header of a pack. @param pack a record of the log, be it a part of a pack */
export const readShares = (pack: Buffer): number => pack.readUInt32LE(SHARES_AT)

/** Makes a weight of the size of a record and the shares in its header. */
export function weightOf(size: number, shares: number): Weight {
  const part = (nth: number) => Math.floor((size * ((shares >>> (nth * SHARE_BITS)) & WHOLE)) / WHOLE)
  return { bytes: size, insert: part(0), update: part(1), delete: part(2) }
}

/** The sum of two weights. */
export const plus = (a: Weight, b: Weight): Weight => combined(a, b, (x, y) => x + y)
/** Subtracts a weight. Sums of a version that told nothing of actions stand still, so no difference is taken to be less than nothing. */
export const minus = (a: Weight, b: Weight): Weight => combined(a, b, (x, y) => Math.max(0, x - y))

const combined = (a: Weight, b: Weight, of: (x: number, y: number) => number): Weight => ({
  bytes: of(a.bytes, b.bytes),
  insert: of(a.insert, b.insert),
  update: of(a.update, b.update),
  delete: of(a.delete, b.delete),
})

/** Sums are remembered at this distance. */
const EVERY_RECORDS = 1024
/** Offsets that were asked for are asked for again, while their reader stands still: of each its committed one and its line. */
const ASKED = 4_096

type Point = Readonly<{ offset: number; weight: Weight }>

/**
 * Remembers what the records of a partition weigh up to an offset, counted from any beginning: only differences count. Every so
 * many records the sum is remembered, so that asking for any offset adds up few of them. No I/O: who asks brings the sizes.
 */
export class Weights {
  /** where the records that are kept begin */
  #first: Point
  /** above it, ascending */
  #points: Point[] = []
  readonly #asked = new Map<number, Weight>()

  constructor(first: number) {
    this.#first = { offset: first, weight: NO_WEIGHT }
  }

  /** @returns the last point at or below the offset, from which its weight can be added up */
  below(offset: number): Point {
    const weight = this.#asked.get(offset)
    if (weight) return { offset, weight }
    let below = this.#first
    for (let low = 0, high = this.#points.length; low < high;) {
      const middle = (low + high) >> 1
      const point = this.#points[middle]
      if (point && point.offset <= offset) {
        below = point
        low = middle + 1
      } else high = middle
    }
    return below
  }

  /** The weight at an offset was added up, from the point below it. */
  add(point: Point): void {
    const last = this.#points.at(-1) ?? this.#first
    if (point.offset >= last.offset + EVERY_RECORDS) this.#points.push(point)
    this.#asked.delete(point.offset)
    this.#asked.set(point.offset, point.weight)
    for (const oldest of this.#asked.keys()) {
      if (this.#asked.size <= ASKED) break
      this.#asked.delete(oldest)
    }
  }

  /** Records were removed up to an offset. @param removed those that were */
  trim(offset: number, removed: Weight): void {
    this.#first = { offset, weight: plus(this.#first.weight, removed) }
    this.#points = this.#points.filter((point) => point.offset > offset)
    for (const asked of this.#asked.keys()) if (asked < offset) this.#asked.delete(asked)
  }
}
