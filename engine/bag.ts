/**
 * What is under way at the moment: few things, which come and go thousands of times a second. Not a Set, because V8 chains
 * the former tables of one: a dead table that has become old keeps all that came after it from being collected young, with
 * whatever hangs on it. For requests that was a third of the time that sending took.
 */
export interface Member {
  /** where it is in the bag; NOWHERE: in none. The bag's own */
  place: number
}

/** The place of what is in no bag. */
export const NOWHERE = -1

/** Things that come and go, in no order. */
export class Bag<T extends Member> {
  readonly #members: T[] = []

  get size(): number {
    return this.#members.length
  }

  add(member: T): void {
    member.place = this.#members.length
    this.#members.push(member)
  }

  /** @returns false: it was not in the bag */
  delete(member: T): boolean {
    const { place } = member
    if (place === NOWHERE) return false
    const last = this.#members.pop()
    if (last && last !== member) {
      this.#members[place] = last
      last.place = place
    }
    member.place = NOWHERE
    return true
  }

  /** In no order. What comes or goes meanwhile may be missed or met twice: copy them first. */
  [Symbol.iterator](): Iterator<T> {
    return this.#members[Symbol.iterator]()
  }
}
