/**
 * The messages of a sink as bytes: what a function made of one, or the default message, spliced from the body in the log and
 * the end that is the same for all of them.
 */
import { metadataEnd } from './pull.ts'
import type { Load } from './push.ts'
import type { Database, Sink } from '../engine/state/resources.ts'

const OPEN = 0x7b // {

export class Messages {
  readonly #end: Buffer

  constructor(sink: Sink, database: Database) {
    this.#end = Buffer.from(metadataEnd(sink, database))
  }

  /** what a message has beside its body */
  get overheadBytes(): number {
    return 1 + this.#end.length
  }

  size({ views, places, payloads }: Load, i: number): number {
    const payload = payloads?.[i]
    if (payload) return payload.length
    const view = views[i] as Load['views'][number]
    const place = places[i] as number
    return 1 + view.bodyEnd(place) - view.bodyStart(place) + this.#end.length
  }

  /** Writes message i. @returns the place after it */
  write({ views, places, payloads }: Load, i: number, target: Buffer, at: number): number {
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
    target.set(this.#end, end)
    return end + this.#end.length
  }
}
