/**
 * The messages of a sink as bytes: what a function made of one, or the default message, spliced from the body in the log and
 * the end that is the same for all of them.
 */
import { ENRICHMENT, metadataEnd } from './pull.ts'
import type { Load } from './push.ts'
import type { Database, Sink } from '../engine/state/resources.ts'

const OPEN = 0x7b // {

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

  size({ views, places, payloads, enrichments }: Load, i: number): number {
    const payload = payloads?.[i]
    if (payload) return payload.length
    const view = views[i] as Load['views'][number]
    const place = places[i] as number
    const row = enrichments?.[i]
    const end = row ? ENRICHMENT.length + row.length + this.#endOfRow.length : this.#end.length
    return 1 + view.bodyEnd(place) - view.bodyStart(place) + end
  }

  /** Writes message i. @returns the place after it */
  write({ views, places, payloads, enrichments }: Load, i: number, target: Buffer, at: number): number {
    const payload = payloads?.[i]
    if (payload) {
      target.set(payload, at)
      return at + payload.length
    }
    const view = views[i] as Load['views'][number]
    const place = places[i] as number
    target[at] = OPEN
    let end = at + 1
    end += view.buffer.copy(target, end, view.bodyStart(place), view.bodyEnd(place))
    const row = enrichments?.[i]
    for (const part of row ? [ENRICHMENT, row, this.#endOfRow] : [this.#end]) {
      target.set(part, end)
      end += part.length
    }
    return end
  }
}
