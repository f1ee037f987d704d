/**
 * Order within message groups: of each group that has something unfinished and looked at, its messages form a chain in
 * the window's rings, and only the first of a chain may be handed out. No object per group, nothing is scanned twice:
 * a message is linked when the cursor passes it and comes up when its predecessor ends.
 */
import { GroupHeads } from './group-heads.ts'
import { STATE, type Window } from './window.ts'

export class Groups {
  readonly #heads = new GroupHeads()
  readonly #window: Window

  constructor(window: Window) {
    this.#window = window
  }

  get size(): number {
    return this.#heads.size
  }

  /** The lowest unfinished message of the group that was looked at. */
  headOf(group: number): number | undefined {
    return this.#heads.get(group)
  }

  /** The message is the first of a group that has nothing open. */
  begin(group: number, seq: number): void {
    this.#heads.set(group, seq)
    this.#window.tails[seq & this.#window.mask] = seq
  }

  /** Adds a message behind those of its group. @returns true when it is the first */
  join(group: number, seq: number): boolean {
    const { mask, tails, links } = this.#window
    const head = this.#heads.get(group)
    if (head === undefined) {
      this.begin(group, seq)
      return true
    }
    const tail = tails[head & mask] as number
    links[tail & mask] = seq - tail
    tails[head & mask] = seq
    return false
  }

  /** The next message of the group that was looked at, finished or not, or -1. */
  behind(seq: number): number {
    const { mask, links } = this.#window
    const link = links[seq & mask] as number
    return link === 0 ? -1 : seq + link
  }

  /** Takes the first message of a group out. @returns the next unfinished one, or -1 */
  leave(group: number, head: number): number {
    const { mask, tails, links, states } = this.#window
    let at = head
    do {
      const link = links[at & mask] as number
      if (link === 0) {
        this.#heads.delete(group)
        return -1
      }
      at += link
    } while (states[at & mask] === STATE.finished) // an ack from before a crash may end a later one first
    tails[at & mask] = tails[head & mask] as number
    this.#heads.set(group, at)
    return at
  }
}
