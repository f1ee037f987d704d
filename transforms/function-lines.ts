/**
 * Messages of the log as lines for functions: `{…}` and MESSAGE_END for each. Nothing is parsed here; bodies are copied together once.
 *
 * A body stays open inside its metadata (`change-writer.ts`), and the rest of that is the same for all messages of a sink:
 * it travels once a batch. Metadata that no function looks at doesn't travel at all.
 */
import type { Message } from '../engine/dispatch/batch.ts'
import { bodyMemory } from '../engine/body-memory.ts'
import { ENRICHMENT as ENRICHMENT_TEXT } from '../engine/message-metadata.ts'
import { MESSAGE_END } from './sandbox/wire.ts'

/** A message that functions are run on: where it stands in the log. */
export type FunctionMessage = Pick<Message, 'view' | 'place'>
type Lines = Readonly<{ lines: Buffer; lineEnds: Uint32Array }>

const ENRICHMENT = Buffer.from(ENRICHMENT_TEXT)
const BRACE = 0x7b
const CLOSE = 0x7d
/** a brace before, two behind, and the end */
const FRAME_BYTES = 4
/** Where metadata begins. In a string its quotes would be escaped; as JSON it may stand in a column, which comes before, or in annotations. */
const METADATA = Buffer.from(',"metadata":{"table_schema":"')
const METADATA_BRACE = METADATA.indexOf(BRACE)
const NO_ANNOTATIONS = Buffer.from('"transaction_annotations":null')

type LineOptions = Readonly<{
  /** some function reads it */
  metadata: boolean
  /** JSON of the row that enriches a message */
  enrichment?: (i: number) => Uint8Array | undefined
}>

/** Writes messages as functions read them, into memory of `bodyMemory`. */
export function linesOf(messages: readonly FunctionMessage[], { metadata, enrichment }: LineOptions): Lines {
  let bytes = 0
  for (const [i, { view, place }] of messages.entries()) {
    bytes += view.bodyEnd(place) - view.bodyStart(place) + FRAME_BYTES
    const row = enrichment?.(i)
    if (row) bytes += ENRICHMENT.length + row.length
  }
  const lines = bodyMemory.take(bytes)
  const lineEnds = new Uint32Array(messages.length)
  let at = 0
  for (const [i, { view, place }] of messages.entries()) {
    const start = view.bodyStart(place)
    const end = view.bodyEnd(place)
    lines[at++] = BRACE
    const bareEnd = metadata ? -1 : metadataAt(view.buffer, start, end)
    at += view.buffer.copy(lines, at, start, bareEnd < 0 ? end : bareEnd)
    const row = bareEnd < 0 ? enrichment?.(i) : undefined
    if (row) {
      lines.set(ENRICHMENT, at)
      lines.set(row, at + ENRICHMENT.length)
      at += ENRICHMENT.length + row.length
    }
    if (bareEnd < 0) lines[at++] = CLOSE // of the metadata
    lines[at++] = CLOSE
    lines[at++] = MESSAGE_END
    lineEnds[i] = at
  }
  return { lines: lines.subarray(0, at), lineEnds }
}

/** @returns where the metadata of a body begins, or -1 when that can't be told without parsing */
function metadataAt(buffer: Buffer, start: number, end: number): number {
  if (!stands(NO_ANNOTATIONS, buffer, end - NO_ANNOTATIONS.length)) return -1
  // a brace is looked for, not the whole: one byte is found many times faster, and metadata seldom has one in its texts
  for (let brace = end; (brace = buffer.lastIndexOf(BRACE, brace - 1)) >= start + METADATA_BRACE;) {
    const at = brace - METADATA_BRACE
    if (stands(METADATA, buffer, at)) return at
  }
  return -1
}

/** Whether bytes stand at a place. A loop: for so few of them a call out of the language costs more. */
function stands(wanted: Buffer, buffer: Buffer, at: number): boolean {
  if (at < 0) return false
  for (let i = 0; i < wanted.length; i++) if (buffer[at + i] !== wanted[i]) return false
  return true
}
