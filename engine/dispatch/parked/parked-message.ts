/** One message as the parked store keeps it: a view of a single message, so that delivery doesn't see where it came from. */
import type { MessageView, ActionCode } from '../../log/pack.ts'
import type { Part, Position } from '../../position.ts'

type ParkedFields = Readonly<{
  position: Position
  group: number
  action: ActionCode
  flags: number
  relation: number
  /** of its transaction; 0: not known */
  xid: number
  commitTimeUs: number
  key: Buffer
  groupKey: Buffer
  body: Buffer
}>

/** A view of one parked message. */
export class ParkedMessage implements MessageView {
  readonly buffer: Buffer
  readonly #facts: Omit<ParkedFields, 'key' | 'groupKey' | 'body'>
  readonly #keyLength: number
  readonly #groupKeyLength: number

  /** What the message is made of may be a part of a pack, and is copied: the message is kept when the pack is not. */
  constructor({ key, groupKey, body, ...facts }: ParkedFields) {
    this.#facts = facts
    this.#keyLength = key.length
    this.#groupKeyLength = groupKey.length
    this.buffer = Buffer.concat([key, groupKey, body])
  }

  position(): Position {
    return this.#facts.position
  }
  idx(): number {
    return this.#facts.position.idx
  }
  part(): Part {
    return this.#facts.position.part
  }
  action(): ActionCode {
    return this.#facts.action
  }
  flags(): number {
    return this.#facts.flags
  }
  relation(): number {
    return this.#facts.relation
  }
  group(): number {
    return this.#facts.group
  }
  xid(): number {
    return this.#facts.xid
  }
  commitTimeUs(): number {
    return this.#facts.commitTimeUs
  }
  keyStart(): number {
    return 0
  }
  keyEnd(): number {
    return this.#keyLength
  }
  groupKeyStart(): number {
    return this.#keyLength
  }
  groupKeyEnd(): number {
    return this.#keyLength + this.#groupKeyLength
  }
  bodyStart(): number {
    return this.groupKeyEnd()
  }
  bodyEnd(): number {
    return this.buffer.length
  }
}
