/**
 * The messages of a sink as bytes: what a function made of one, or the default message, spliced from the body in the log and
 * the end that is the same for all of them. And what of a message a wire may need beside its bytes: its table, its name.
 */
import type { Message } from '../engine/dispatch/batch.ts'
import { formatLsn } from '../engine/lsn.ts'
import { ENRICHMENT as ENRICHMENT_TEXT, metadataEnd } from '../engine/message-metadata.ts'
import type { Database, Sink } from '../engine/state/resources.ts'
import { JsonMembers } from './json-members.ts'

const OPEN = 0x7b // {
const ENRICHMENT = Buffer.from(ENRICHMENT_TEXT)

/** Writes the messages of one sink. */
export class Messages {
  /** behind the body of a message that no row enriches */
  readonly #end: Buffer
  readonly #endOfRow: Buffer

  constructor(sink: Sink, database: Database) {
    this.#endOfRow = Buffer.from(metadataEnd(sink, database))
    this.#end = Buffer.concat([ENRICHMENT, Buffer.from('null'), this.#endOfRow])
  }

  /** what a message has beside its body */
  get overheadBytes(): number {
    return 1 + this.#end.length
  }

  size({ view, place, payload, enrichment: row }: Message): number {
    if (payload) return payload.end - payload.start
    const end = row ? ENRICHMENT.length + row.length + this.#endOfRow.length : this.#end.length
    return 1 + view.bodyEnd(place) - view.bodyStart(place) + end
  }

  /** Writes a message. @returns the place after it */
  write({ view, place, payload, enrichment: row }: Message, target: Buffer, at: number): number {
    if (payload) return at + payload.text.copy(target, at, payload.start, payload.end)
    target[at] = OPEN
    let end = at + 1
    end += view.buffer.copy(target, end, view.bodyStart(place), view.bodyEnd(place))
    for (const part of row ? [ENRICHMENT, row, this.#endOfRow] : [this.#end]) {
      target.set(part, end)
      end += part.length
    }
    return end
  }
}

/** Frees what functions made of messages, once each, when nobody reads it any more. */
export function dropPayloads(messages: readonly Message[]): void {
  for (const { payload } of messages) payload?.done?.()
}

/** Finds the table of a message in its metadata. */
export function tableOf({ view, place }: Pick<Message, 'view' | 'place'>): Readonly<{ schema: string; table: string }> {
  const { buffer } = view
  const message = new JsonMembers(buffer, view.bodyStart(place))
  for (let name = message.name(); name && !message.is(name, 'metadata'); name = message.name()) message.value()
  const metadata = JsonMembers.of(buffer, message.at)
  const text = (): string => {
    metadata?.name()
    const { start, end } = metadata?.value() ?? { start: 0, end: 0 }
    return JSON.parse(buffer.toString('utf8', start, end)) // a text of JSON, as the log has it
  }
  return { schema: text(), table: text() } // the first two
}

/** Names a message by its position: the same whenever it is sent, and of no other message of the source. */
export function positionName({ view, place }: Message): string {
  const { history, lsn, idx, part } = view.position(place)
  return `${history}:${formatLsn(lsn)}:${idx}:${part}`
}
