/** Seeded random numbers: the same seed gives the same choices on every machine. Nothing here is for secrets. */

/** mulberry32: 32 bits of state, passes what a test generator needs, one line to check by eye */
export class Random {
  #state: number

  constructor(seed: number) {
    this.#state = seed >>> 0
  }

  /** from 0 up to before 1 */
  next(): number {
    this.#state = (this.#state + 0x6d2b79f5) >>> 0
    let mixed = this.#state
    mixed = Math.imul(mixed ^ (mixed >>> 15), mixed | 1)
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296
  }

  /** a whole number from `low` to `high`, both included */
  int(low: number, high: number): number {
    return low + Math.floor(this.next() * (high - low + 1))
  }

  chance(probability: number): boolean {
    return this.next() < probability
  }

  pick<T>(items: readonly T[]): T {
    if (items.length === 0) throw new RangeError('nothing to pick from')
    return items[this.int(0, items.length - 1)] as T
  }

  /** the same items in another order */
  shuffled<T>(items: readonly T[]): T[] {
    return items
      .map((item) => ({ item, at: this.next() }))
      .sort((a, b) => a.at - b.at)
      .map(({ item }) => item)
  }

  /** @param weights by name; a name comes as often as its share of the sum */
  weighted<Name extends string>(weights: Readonly<Record<Name, number>>): Name {
    const entries = Object.entries(weights) as [Name, number][]
    let left = this.next() * entries.reduce((sum, [, weight]) => sum + weight, 0)
    for (const [name, weight] of entries) if ((left -= weight) < 0) return name
    return entries.at(-1)![0]
  }

  /** letters and digits that no compression makes much smaller */
  text(length: number): string {
    let text = ''
    while (text.length < length)
      text += Math.floor(this.next() * 36 ** 8)
        .toString(36)
        .padStart(8, '0')
    return text.slice(0, length)
  }

  /** A generator of its own for a part of the run, so that one part's choices do not shift another's. */
  fork(): Random {
    return new Random(Math.floor(this.next() * 4_294_967_296))
  }
}
