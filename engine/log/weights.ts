/**
 * What the records of a partition weigh up to an offset, counted from any beginning: differences tell. Every so many records
 * the sum is remembered, so that asking for any offset adds up few of them. No I/O: who asks brings the sizes.
 */

import { NO_WEIGHT, plus, type Weight } from './weight.ts'

/** Sums are remembered at this distance. */
const EVERY_RECORDS = 1024
/** Offsets that were asked for are asked for again, while their reader stands still: of each its committed one and its line. */
const ASKED = 4_096

type Point = Readonly<{ offset: number; weight: Weight }>

export class Weights {
  /** ascending; the first one is where the records that are kept begin */
  readonly #points: Point[]
  readonly #asked = new Map<number, Weight>()

  constructor(first: number) {
    this.#points = [{ offset: first, weight: NO_WEIGHT }]
  }

  /** @returns the last point at or below the offset, from which its weight can be added up */
  below(offset: number): Point {
    const weight = this.#asked.get(offset)
    if (weight) return { offset, weight }
    let low = 0
    let high = this.#points.length - 1
    while (low < high) {
      const middle = (low + high + 1) >> 1
      if ((this.#points[middle] as Point).offset <= offset) low = middle
      else high = middle - 1
    }
    return this.#points[low] as Point
  }

  /** The weight at an offset was added up, from the point below it. */
  add(point: Point): void {
    const last = this.#points.at(-1) as Point
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
    const first = this.#points[0] as Point
    const kept = this.#points.findIndex((point) => point.offset > offset)
    this.#points.splice(0, kept < 0 ? this.#points.length : kept, { offset, weight: plus(first.weight, removed) })
    for (const asked of this.#asked.keys()) if (asked < offset) this.#asked.delete(asked)
  }
}
