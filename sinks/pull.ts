/**
 * The pull (stream) sink: its transport is the client that asks. An answer is `{"data":[…]}`, spliced from the bytes of
 * the log: a body is stored without what belongs to one sink, and with its metadata left open; what follows it is the
 * same for all messages of a sink and computed once.
 */
import { Type } from 'typebox'
import {
  ackIdPrefix,
  digitCount,
  readAckIds,
  readOlderAckIds,
  sinkTag,
  tokenOf,
  TOKENS_JOIN,
  writeDigits,
  type OlderRefs,
} from '../engine/dispatch/ack-id.ts'
import type { Batch } from '../engine/dispatch/batch.ts'
import type { Database, Sink } from '../engine/state/resources.ts'
import { bodyMemory } from './body-memory.ts'

/** The pull (stream) sink has no settings of its own: its transport is the client. */
export const PullDestination = Type.Object({ type: Type.Literal('sequin_stream') }, { additionalProperties: false })

const HEAD = Buffer.from('{"data":[')
const TAIL = Buffer.from(']}')
const COMMA = Buffer.from(',')
export const EMPTY_ANSWER = Buffer.from('{"data":[]}')
/** the longest ack id and the punctuation around it */
const ID_BYTES = 80

/** What stands around the bodies of one shape. */
type Frame = Readonly<{
  /** between the ack id and the body */
  beforeBody: Buffer
  /** after the body of a message that no row enriches, up to the end of the element */
  afterBody: Buffer
  /** after the row that does */
  afterRow: Buffer
}>

/** How one element of an answer looks: record, changes, … beside `ack_id`, or under `data`. */
export type Shape = 'flat' | 'nested'

/** What of the metadata is the same for every message of a sink. */
export function sinkMetadata(sink: Sink, { id, name, annotations, connection }: Database): Record<string, unknown> {
  return {
    database_name: name,
    consumer: { id: sink.id, name: sink.name, annotations: sink.annotations },
    database: { id, name, annotations, database: connection.database, hostname: connection.hostname },
  }
}

/** What stands in front of the row that enriches a message. */
export const ENRICHMENT = Buffer.from(',"enrichment":')

/** The end of every message of a sink, behind the row that enriches it: the rest of its metadata. */
export const metadataEnd = (sink: Sink, database: Database): string => `,${JSON.stringify(sinkMetadata(sink, database)).slice(1)}}`

/** Writes the answers of one sink and reads the ids that they gave. Cheap: it is made anew when the sink or its database is edited. */
export class PullAnswers {
  /** what an answer has beside the body of each message: batches are bounded by bytes */
  readonly overheadBytes: number
  readonly #tag: string
  readonly #frames: Readonly<Record<Shape, Frame>>
  /** around what a function has made: the same in both shapes, for it may be anything */
  readonly #payloadFrame: Frame = { beforeBody: Buffer.from('","data":'), afterBody: Buffer.from('}'), afterRow: Buffer.from('}') }

  constructor(sink: Sink, database: Database) {
    const end = metadataEnd(sink, database)
    this.#tag = sinkTag(sink.id)
    this.#frames = {
      flat: frame('",', end),
      nested: frame('","data":{', `${end}}`),
    }
    this.overheadBytes = ID_BYTES + this.#frames.nested.afterBody.length
  }

  /** The bytes of an answer. @param hasToken whether it ends with one token for all of its messages */
  encode(batches: readonly Batch[], shape: Shape, hasToken = false): Buffer {
    const frames = batches.map(({ payloads }) => (payloads ? this.#payloadFrame : this.#frames[shape]))
    const prefixes = batches.map(({ generation, partition }) => ackIdPrefix(this.#tag, generation, partition))
    const opens = prefixes.map((prefix) => Buffer.from(`{"ack_id":"${prefix}`))
    const token = hasToken ? batches.map((batch, b) => tokenOf(prefixes[b] as string, batch)).join(TOKENS_JOIN) : undefined
    const tail = token === undefined ? TAIL : Buffer.from(`],"ack_token":"${token}"}`)
    const answer = bodyMemory.take(answerBytes(batches, opens, frames) + tail.length)
    let at = HEAD.copy(answer, 0)
    let before: Buffer | undefined // the end of the message before
    for (const [b, { views, places, offsets, indexes, payloads, enrichments }] of batches.entries()) {
      const open = opens[b] as Buffer
      const { beforeBody, afterBody, afterRow } = frames[b] as Frame
      const joint = Buffer.concat([afterBody, COMMA, open]) // one copy between two messages
      for (let i = 0; i < views.length; i++) {
        const between = before === undefined ? open : before === afterBody ? joint : Buffer.concat([before, COMMA, open])
        answer.set(between, at)
        at = writeDigits(answer, at + between.length, offsets[i] as number)
        answer[at] = 46 // "."
        at = writeDigits(answer, at + 1, indexes[i] as number)
        answer.set(beforeBody, at)
        at += beforeBody.length
        const row = payloads ? undefined : enrichments?.[i]
        if (payloads) {
          at += (payloads.texts[i] as Buffer).copy(answer, at, payloads.starts[i], payloads.ends[i])
        } else {
          const view = views[i] as Batch['views'][number]
          const place = places[i] as number
          at += view.buffer.copy(answer, at, view.bodyStart(place), view.bodyEnd(place))
        }
        if (row) {
          at += ENRICHMENT.copy(answer, at)
          answer.set(row, at)
          at += row.length
        }
        before = row ? afterRow : afterBody
      }
    }
    if (before) at += before.copy(answer, at)
    tail.copy(answer, at)
    return answer
  }

  /** Nobody reads an answer any more: its memory is used again. */
  reuse(answer: Buffer): void {
    bodyMemory.give(answer)
  }

  /** Which messages the ids of a later answer mean, by partition; ids that aren't of this sink and generation are told apart. */
  named(ids: readonly string[], generation: number): ReturnType<typeof readAckIds> {
    return readAckIds(ids, this.#tag, generation)
  }

  /** Which messages the ids mean that an earlier generation gave. */
  namedBefore(ids: readonly string[], generation: number): OlderRefs {
    return readOlderAckIds(ids, this.#tag, generation)
  }
}

const frame = (before: string, end: string): Frame => ({
  beforeBody: Buffer.from(before),
  afterBody: Buffer.from(`${ENRICHMENT.toString()}null${end}`),
  afterRow: Buffer.from(end),
})

/** Without its end. */
function answerBytes(batches: readonly Batch[], opens: readonly Buffer[], frames: readonly Frame[]): number {
  let bytes = HEAD.length
  let count = 0
  for (const [b, { bytes: bodies, offsets, indexes, payloads, enrichments = [] }] of batches.entries()) {
    const { beforeBody, afterBody, afterRow } = frames[b] as Frame
    if (!payloads) for (const row of enrichments) if (row) bytes += ENRICHMENT.length + row.length + afterRow.length - afterBody.length
    bytes += bodies + offsets.length * ((opens[b] as Buffer).length + 1 + beforeBody.length + afterBody.length)
    for (let i = 0; i < offsets.length; i++) bytes += digitCount(offsets[i] as number) + digitCount(indexes[i] as number)
    count += offsets.length
  }
  return bytes + Math.max(0, count - 1) // commas
}
