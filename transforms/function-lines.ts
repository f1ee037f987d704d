/**
 * Messages of the log as lines for functions: `{…},\n` for each. Nothing is parsed here; bodies are copied together once.
 *
 * A body stays open inside its metadata (`change-writer.ts`), and the rest of that is the same for all messages of a sink:
 * it travels once a batch. Metadata that no function looks at doesn't travel at all.
 */
import type { MessageView } from '../engine/log/message-view.ts'

export type Messages = Readonly<{ views: readonly MessageView[]; places: readonly number[] }>
export type Lines = Readonly<{ lines: Buffer; lineEnds: Uint32Array }>

const END = Buffer.from('}},\n')
const END_BARE = Buffer.from('},\n')
const ENRICHMENT = Buffer.from(',"enrichment":')
const BRACE = 0x7b
const NEWLINE = 0x0a
const SPACE = 0x20
/** Where metadata begins. In a string its quotes would be escaped; as JSON it may stand in a column, which comes before, or in annotations. */
const METADATA = Buffer.from(',"metadata":{"table_schema":"')
const NO_ANNOTATIONS = Buffer.from('"transaction_annotations":null')

export type LineOptions = Readonly<{
  /** which of the messages; absent: all */
  chosen?: readonly number[]
  /** some function reads it */
  metadata: boolean
  /** JSON of the row that enriches a message */
  enrichment?: (i: number) => Uint8Array | undefined
}>

export function linesOf({ views, places }: Messages, { chosen, metadata, enrichment }: LineOptions): Lines {
  const count = chosen?.length ?? views.length
  let bytes = 0
  for (let k = 0; k < count; k++) {
    const i = chosen ? (chosen[k] as number) : k
    const view = views[i] as MessageView
    bytes += view.bodyEnd(places[i] as number) - view.bodyStart(places[i] as number) + 1 + END.length
    const row = enrichment?.(i)
    if (row) bytes += ENRICHMENT.length + row.length
  }
  const lines = Buffer.from(new ArrayBuffer(bytes))
  const lineEnds = new Uint32Array(count)
  let at = 0
  for (let k = 0; k < count; k++) {
    const i = chosen ? (chosen[k] as number) : k
    const view = views[i] as MessageView
    const start = view.bodyStart(places[i] as number)
    const end = view.bodyEnd(places[i] as number)
    lines[at++] = BRACE
    const bareEnd = metadata ? -1 : metadataAt(view.buffer, start, end)
    at += view.buffer.copy(lines, at, start, bareEnd < 0 ? end : bareEnd)
    const row = bareEnd < 0 ? enrichment?.(i) : undefined
    if (row) {
      lines.set(ENRICHMENT, at)
      lines.set(row, at + ENRICHMENT.length)
      at += ENRICHMENT.length + row.length
    }
    const tail = bareEnd < 0 ? END : END_BARE
    lines.set(tail, at)
    at += tail.length
    lineEnds[k] = at
  }
  unbroken(lines, at, lineEnds)
  return { lines: lines.subarray(0, at), lineEnds }
}

/** @returns where the metadata of a body begins, or -1 when that can't be told without parsing */
function metadataAt(buffer: Buffer, start: number, end: number): number {
  const tail = end - NO_ANNOTATIONS.length
  if (tail < start || buffer.compare(NO_ANNOTATIONS, 0, NO_ANNOTATIONS.length, tail, end) !== 0) return -1
  const at = buffer.lastIndexOf(METADATA, end)
  return at >= start ? at : -1
}

/** A column of type json keeps its line breaks, which stand between values only: here they would end a line. */
function unbroken(lines: Buffer, length: number, lineEnds: Uint32Array): void {
  for (let k = 0, at = lines.indexOf(NEWLINE); at >= 0 && at < length; at = lines.indexOf(NEWLINE, at + 1)) {
    if (at + 1 === lineEnds[k]) k++
    else lines[at] = SPACE
  }
}
