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
  readonly #fields: ParkedFields

  constructor(fields: ParkedFields) {
    this.#fields = fields
    this.buffer = Buffer.concat([fields.key, fields.groupKey, fields.body])
  }

  position(): Position {
    return this.#fields.position
  }
  part(): Part {
    return this.#fields.position.part
  }
  action(): ActionCode {
    return this.#fields.action
  }
  flags(): number {
    return this.#fields.flags
  }
  relation(): number {
    return this.#fields.relation
  }
  group(): number {
    return this.#fields.group
  }
  xid(): number {
    return this.#fields.xid
  }
  commitTimeUs(): number {
    return this.#fields.commitTimeUs
  }
  keyStart(): number {
    return 0
  }
  keyEnd(): number {
    return this.#fields.key.length
  }
  groupKeyStart(): number {
    return this.#fields.key.length
  }
  groupKeyEnd(): number {
    return this.#fields.key.length + this.#fields.groupKey.length
  }
  bodyStart(): number {
    return this.groupKeyEnd()
  }
  bodyEnd(): number {
    return this.buffer.length
  }
}
