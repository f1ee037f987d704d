/**
 * The pull (stream) sink: its transport is the client that asks. An answer is `{"data":[…]}`, spliced from the bytes of
 * the log: a body is stored without what belongs to one sink, and with its metadata left open; what follows it is the
 * same for all messages of a sink and computed once.
 */
import {
  ackIdPrefix,
  digitCount,
  readAckIds,
  readOlderAckIds,
  sinkTag,
  writeDigits,
  type OlderRefs,
  type RefList,
} from '../engine/dispatch/ack-id.ts'
import type { Batch } from '../engine/dispatch/batch.ts'
import { PullDestination } from '../engine/state/destinations.ts'
import type { Database, Sink } from '../engine/state/resources.ts'
import type { DestinationType, PullWire, Shape } from './sink.ts'

const HEAD = Buffer.from('{"data":[')
const TAIL = Buffer.from(']}')
export const EMPTY_ANSWER = Buffer.from('{"data":[]}')
/** the longest ack id and the punctuation around it */
const ID_BYTES = 80

/** What stands around the bodies of one shape. */
type Frame = Readonly<{
  /** between the ack id and the body */
  beforeBody: Buffer
  /** after the body, up to the end of the element */
  afterBody: Buffer
}>

export const pull: DestinationType<PullWire> = {
  type: 'sequin_stream',
  settings: PullDestination,
  keyed: false,
  open: (sink, database) => new PullAnswers(sink, database),
  testConnection: async () => undefined, // there is nothing to connect to: the client does
}

/** The end of every message of a sink: the rest of its metadata. */
export function metadataEnd(sink: Sink, database: Database): string {
  const { name, connection } = database
  const consumer = { id: sink.id, name: sink.name, annotations: sink.annotations }
  const source = { id: database.id, name, annotations: database.annotations, database: connection.database, hostname: connection.hostname }
  return `,"enrichment":null,"database_name":${JSON.stringify(name)},"consumer":${JSON.stringify(consumer)},"database":${JSON.stringify(source)}}}`
}

class PullAnswers implements PullWire {
  readonly overheadBytes: number
  readonly #tag: string
  readonly #frames: Readonly<Record<Shape, Frame>>

  constructor(sink: Sink, database: Database) {
    const end = metadataEnd(sink, database)
    this.#tag = sinkTag(sink.id)
    this.#frames = {
      flat: { beforeBody: Buffer.from('",'), afterBody: Buffer.from(end) },
      nested: { beforeBody: Buffer.from('","data":{'), afterBody: Buffer.from(`${end}}`) },
    }
    this.overheadBytes = ID_BYTES + this.#frames.nested.afterBody.length
  }

  encode(batches: readonly Batch[], shape: Shape): Buffer {
    const frame = this.#frames[shape]
    const opens = batches.map(({ generation, partition }) => Buffer.from(`{"ack_id":"${ackIdPrefix(this.#tag, generation, partition)}`))
    const answer = Buffer.allocUnsafeSlow(answerBytes(batches, opens, frame))
    let at = HEAD.copy(answer, 0)
    let first = true
    for (const [b, batch] of batches.entries()) {
      const open = opens[b] as Buffer
      const joint = Buffer.concat([frame.afterBody, Buffer.from(','), open]) // one copy between two messages
      const { views, places, offsets, indexes } = batch
      for (let i = 0; i < views.length; i++) {
        const between = first ? open : joint
        answer.set(between, at)
        at = writeDigits(answer, at + between.length, offsets[i] as number)
        answer[at] = 46 // "."
        at = writeDigits(answer, at + 1, indexes[i] as number)
        answer.set(frame.beforeBody, at)
        at += frame.beforeBody.length
        const view = views[i] as Batch['views'][number]
        const place = places[i] as number
        at += view.buffer.copy(answer, at, view.bodyStart(place), view.bodyEnd(place))
        first = false
      }
    }
    if (!first) at += frame.afterBody.copy(answer, at)
    TAIL.copy(answer, at)
    return answer
  }

  named(ids: readonly string[], generation: number): Map<number, RefList> {
    return readAckIds(ids, this.#tag, generation)
  }

  namedBefore(ids: readonly string[], generation: number): OlderRefs {
    return readOlderAckIds(ids, this.#tag, generation)
  }
}

function answerBytes(batches: readonly Batch[], opens: readonly Buffer[], frame: Frame): number {
  let bytes = HEAD.length + TAIL.length
  let count = 0
  for (const [b, { bytes: bodies, offsets, indexes }] of batches.entries()) {
    bytes += bodies + offsets.length * ((opens[b] as Buffer).length + 1 + frame.beforeBody.length + frame.afterBody.length)
    for (let i = 0; i < offsets.length; i++) bytes += digitCount(offsets[i] as number) + digitCount(indexes[i] as number)
    count += offsets.length
  }
  return bytes + Math.max(0, count - 1) // commas
}
