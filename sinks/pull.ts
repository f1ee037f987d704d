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
import { refsOf, type TakenBatch } from '../engine/dispatch/batch.ts'
import { ENRICHMENT as ENRICHMENT_TEXT, metadataEnd } from '../engine/message-metadata.ts'
import type { Database, Sink } from '../engine/state/resources.ts'
import { bodyMemory } from '../engine/body-memory.ts'

/** The pull (stream) sink has no settings of its own: its transport is the client. */
export const PullDestination = Type.Object({ type: Type.Literal('sequin_stream') }, { additionalProperties: false })

const ENRICHMENT = Buffer.from(ENRICHMENT_TEXT)
const HEAD = Buffer.from('{"data":[')
const TAIL = Buffer.from(']}')
const COMMA = Buffer.from(',')
/** The body of an answer when nothing is deliverable. */
export const EMPTY_ANSWER = Buffer.from('{"data":[]}')
/** the longest ack id and the punctuation around it */
const ID_BYTES = 80

/** The bytes around the messages of an answer, by its shape. */
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
  encode(batches: readonly TakenBatch[], shape: Shape, hasToken = false): Buffer {
    const plain = this.#frames[shape]
    const parts = batches.map(({ generation, partition, messages, bytes }) => {
      const prefix = ackIdPrefix(this.#tag, generation, partition)
      return { prefix, messages, bytes, open: Buffer.from(`{"ack_id":"${prefix}`) }
    })
    const tail = hasToken
      ? Buffer.from(`],"ack_token":"${parts.map(({ prefix, messages }) => tokenOf(prefix, refsOf(messages))).join(TOKENS_JOIN)}"}`)
      : TAIL
    const answer = bodyMemory.take(answerBytes(parts, { plain, made: this.#payloadFrame }) + tail.length)
    let at = HEAD.copy(answer, 0)
    let before: Buffer | undefined // the end of the message before
    for (const { messages, open } of parts) {
      let between = before ? Buffer.concat([before, COMMA, open]) : open // one copy between two messages
      for (const { view, place, offset, index, payload, enrichment } of messages) {
        const { beforeBody, afterBody, afterRow } = payload ? this.#payloadFrame : plain
        answer.set(between, at)
        at = writeDigits(answer, at + between.length, offset)
        answer[at] = 46 // "."
        at = writeDigits(answer, at + 1, index)
        answer.set(beforeBody, at)
        at += beforeBody.length
        const row = payload ? undefined : enrichment
        at += payload
          ? payload.text.copy(answer, at, payload.start, payload.end)
          : view.buffer.copy(answer, at, view.bodyStart(place), view.bodyEnd(place))
        if (row) {
          at += ENRICHMENT.copy(answer, at)
          answer.set(row, at)
          at += row.length
        }
        const after = row ? afterRow : afterBody
        if (after !== before || between === open) between = Buffer.concat([after, COMMA, open])
        before = after
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
  afterBody: Buffer.from(`${ENRICHMENT_TEXT}null${end}`),
  afterRow: Buffer.from(end),
})

/** The messages of one batch, and what each of their elements begins with. */
type AnswerPart = Readonly<{ messages: TakenBatch['messages']; bytes: number; open: Buffer }>

/** How long an answer is, without its end. */
function answerBytes(parts: readonly AnswerPart[], frames: Readonly<Record<'plain' | 'made', Frame>>): number {
  let bytes = HEAD.length
  let count = 0
  for (const { bytes: bodies, messages, open } of parts) {
    bytes += bodies + messages.length * (open.length + 1)
    for (const { offset, index, payload, enrichment: row } of messages) {
      const { beforeBody, afterBody, afterRow } = payload ? frames.made : frames.plain
      bytes += digitCount(offset) + digitCount(index) + beforeBody.length
      bytes += row && !payload ? ENRICHMENT.length + row.length + afterRow.length : afterBody.length
    }
    count += messages.length
  }
  return bytes + Math.max(0, count - 1) // commas
}
