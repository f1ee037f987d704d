/**
 * The packs between the lowest unfinished message and the read head. Every message gets a sequence number as it is
 * read; what is known of it stands in rings of typed arrays under that number, so a message costs 21 bytes and no object.
 */
import { EngineError } from '../errors.ts'
import type { MessageRef } from '../log/log.ts'
import type { Message } from './batch.ts'
import type { MessageView } from '../log/pack.ts'
import type { Position } from '../position.ts'
import { ReadMemory } from './read-memory.ts'

/** Gives the dispatcher the messages of a pack. */
export interface PackView extends MessageView {
  readonly count: number
  compare(i: number, position: Position): number
}

/** The states of a message in the window. */
export const STATE = {
  /** read, not yet looked at by a take */
  fresh: 0,
  /** looked at: an earlier message of its group is unfinished */
  waiting: 1,
  /** deliverable, in a heap: returned, lapsed, or freed by the end of its predecessor */
  ready: 2,
  /** with a client until its lease ends */
  inFlight: 3,
  /** on its way to the parked store: neither handed out nor finished until the store answers */
  moving: 4,
  finished: 5,
  /** nothing to deliver: not above the accepted position, or a tombstone for a sink without keys. Never recorded: a restart finds it void again */
  void: 6,
} as const

/** A record of the log that has messages in the window. */
export type WindowPack = {
  readonly offset: number
  readonly firstSeq: number
  readonly count: number
  readonly bytes: number
  /** the greatest position accepted before this pack */
  readonly acceptedBefore: Position
  /** unfinished messages */
  open: number
  /** let go of when the last message is finished, although the pack still counts in the span */
  view: PackView | undefined
}

/** Gives the messages of a pack that has unfinished ones. @throws EngineError INTERNAL: it has none */
export function openView({ view, offset }: WindowPack): PackView {
  if (!view) throw new EngineError('INTERNAL', `record ${offset} has no unfinished messages`, { offset })
  return view
}

type Ring = Uint8Array | Uint16Array | Uint32Array | Float64Array

/** A message's share of the rings and a pack's of the rest, so that tiny packs count for what they cost. */
const BYTES_PER_MESSAGE = 24
const BYTES_PER_PACK = 256

/** The messages of a partition that are read and not finished, by their sequence numbers. */
export class Window {
  /** the lowest unfinished message, or `end` */
  base = 0
  /** the sequence number that the next message read gets */
  end = 0
  /** the first message no take has looked at */
  cursor = 0
  /** messages between base and end that are neither finished nor void */
  open = 0
  /** what the span from base to end costs */
  bytes = 0
  /** the offset after the last pack */
  nextOffset: number

  mask: number
  states: Uint8Array
  /** deliveries so far, up to 65535 */
  deliveries: Uint16Array
  /** number of the lease that holds the message */
  leases: Uint32Array
  /** distance to the next message of the group that was looked at; 0: none */
  links: Uint32Array
  /** of a group's first message: the sequence number of its last one */
  tails: Float64Array

  #packs: WindowPack[] = []
  #first = 0
  #hint = 0
  /** counts what is held here, until it is void */
  #memory: ReadMemory | undefined

  constructor(nextOffset: number, memory = new ReadMemory(), capacity = 1 << 12) {
    this.nextOffset = nextOffset
    this.#memory = memory
    this.mask = capacity - 1
    this.states = new Uint8Array(capacity)
    this.deliveries = new Uint16Array(capacity)
    this.leases = new Uint32Array(capacity)
    this.links = new Uint32Array(capacity)
    this.tails = new Float64Array(capacity)
  }

  /** Adds a pack, all its messages fresh and counted open. */
  append(offset: number, view: PackView, acceptedBefore: Position): WindowPack {
    const count = view.count
    if (this.end + count - this.base > this.mask + 1) this.#grow(this.end + count - this.base)
    const bytes = view.buffer.length + count * BYTES_PER_MESSAGE + BYTES_PER_PACK
    const pack: WindowPack = { offset, firstSeq: this.end, count, bytes, acceptedBefore, open: count, view }
    for (let seq = this.end, until = this.end + count; seq < until; seq++) {
      const slot = seq & this.mask
      this.states[slot] = STATE.fresh
      this.deliveries[slot] = 0
      this.links[slot] = 0
    }
    this.#packs.push(pack)
    this.end += count
    this.open += count
    this.bytes += bytes
    this.#memory?.add(bytes)
    this.nextOffset = offset + 1
    return pack
  }

  /** A record that has nothing for this reader stands next: it leaves a gap in the numbers. */
  pass(offset: number): void {
    this.nextOffset = offset + 1
  }

  /** About how many bytes no take has looked at. */
  get freshBytes(): number {
    return this.end === this.base ? 0 : (this.bytes * (this.end - this.cursor)) / (this.end - this.base)
  }

  /** The pack that holds a sequence number of the window. */
  packOf(seq: number): WindowPack {
    const hint = this.#packs[this.#hint]
    if (hint && this.#hint >= this.#first && seq >= hint.firstSeq) {
      if (seq < hint.firstSeq + hint.count) return hint
      const next = this.#packs[this.#hint + 1]
      if (next && seq < next.firstSeq + next.count) {
        this.#hint++
        return next
      }
    }
    let low = this.#first // the last pack that begins at or below seq; of empty ones the one that holds it
    let high = this.#packs.length - 1
    while (low < high) {
      const mid = (low + high + 1) >> 1
      if (this.#at(mid).firstSeq <= seq) low = mid
      else high = mid - 1
    }
    this.#hint = low
    return this.#at(low)
  }

  #at(place: number): WindowPack {
    const pack = this.#packs[place]
    if (!pack) throw new EngineError('INTERNAL', `the window has no record in place ${place}`)
    return pack
  }

  /** The sequence number of a message, or -1 when the window doesn't hold it. */
  seqOf(offset: number, index: number): number {
    const first = this.#packs[this.#first]
    if (!first || offset < first.offset || offset >= this.nextOffset) return -1
    let at = this.#first + (offset - first.offset) // records are numbered without gaps, as a rule
    let pack = this.#packs[at]
    if (pack?.offset !== offset) {
      let low = this.#first
      let high = this.#packs.length - 1
      while (low < high) {
        const mid = (low + high) >> 1
        if (this.#at(mid).offset < offset) low = mid + 1
        else high = mid
      }
      at = low
      pack = this.#packs[at]
      if (pack?.offset !== offset) return -1
    }
    if (index >= pack.count) return -1
    const seq = pack.firstSeq + index
    return seq < this.base ? -1 : seq
  }

  /** Whether a message is in flight under a lease. */
  holds(seq: number, lease: number): boolean {
    return seq >= this.base && this.states[seq & this.mask] === STATE.inFlight && this.leases[seq & this.mask] === lease
  }

  /** The reference of a message, or of the one that will come next. */
  refOf(seq: number): MessageRef {
    if (seq >= this.end) return { offset: this.nextOffset, index: 0 }
    const pack = this.packOf(seq)
    return { offset: pack.offset, index: seq - pack.firstSeq }
  }

  /** An open message as it is handed out. */
  messageAt(seq: number): Message {
    const pack = this.packOf(seq)
    const index = seq - pack.firstSeq
    return { view: openView(pack), place: index, offset: pack.offset, index }
  }

  /** The reference just after a message: the end of a range that it closes. */
  refAfter(seq: number): MessageRef {
    const pack = this.packOf(seq)
    return { offset: pack.offset, index: seq - pack.firstSeq + 1 }
  }

  /** Moves the base and drops the packs that lie wholly below it. */
  advance(base: number): void {
    this.base = base
    if (this.cursor < base) this.cursor = base
    while (this.#first < this.#packs.length) {
      const pack = this.#at(this.#first)
      if (pack.firstSeq + pack.count > base) break
      this.bytes -= pack.bytes
      this.#memory?.add(-pack.bytes)
      this.#first++
    }
    if (this.#first > 64 && this.#first * 2 > this.#packs.length) {
      this.#packs = this.#packs.slice(this.#first)
      this.#hint = 0
      this.#first = 0
    }
  }

  /** Nothing is taken in any more: what is held goes with the owner. */
  leave(): void {
    this.#memory?.add(-this.bytes)
    this.#memory = undefined
  }

  #grow(needed: number): void {
    let capacity = this.mask + 1
    while (capacity < needed) capacity *= 2
    this.states = this.#moved(this.states, new Uint8Array(capacity))
    this.deliveries = this.#moved(this.deliveries, new Uint16Array(capacity))
    this.leases = this.#moved(this.leases, new Uint32Array(capacity))
    this.links = this.#moved(this.links, new Uint32Array(capacity))
    this.tails = this.#moved(this.tails, new Float64Array(capacity))
    this.mask = capacity - 1
  }

  /** Puts what a ring has of the window into a larger one. */
  #moved<R extends Ring>(from: R, to: R): R {
    for (let seq = this.base; seq < this.end; seq++) to[seq & (to.length - 1)] = from[seq & this.mask] ?? 0
    return to
  }
}
