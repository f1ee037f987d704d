/**
 * Messages of the log as lines for functions: `{…}` and MESSAGE_END for each. Nothing is parsed here; bodies are copied together once.
 *
 * A body stays open inside its metadata (`change-writer.ts`), and the rest of that is the same for all messages of a sink:
 * it travels once a batch. Metadata that no function looks at doesn't travel at all.
 */
import type { MessageView } from '../engine/log/message-view.ts'
import type { LineMemory } from './line-memory.ts'
import { MESSAGE_END } from './sandbox/wire.ts'

export type FunctionMessages = Readonly<{ views: readonly MessageView[]; places: readonly number[] }>
/** @property memory what they lie in, to be given back */
type Lines = Readonly<{ lines: Buffer; lineEnds: Uint32Array; memory: Buffer }>

const ENRICHMENT = Buffer.from(',"enrichment":')
const BRACE = 0x7b
const CLOSE = 0x7d
/** a brace before, two behind, and the end */
const FRAME_BYTES = 4
/** Where metadata begins. In a string its quotes would be escaped; as JSON it may stand in a column, which comes before, or in annotations. */
const METADATA = Buffer.from(',"metadata":{"table_schema":"')
const METADATA_BRACE = METADATA.indexOf(BRACE)
const NO_ANNOTATIONS = Buffer.from('"transaction_annotations":null')

type LineOptions = Readonly<{
  /** which of the messages; absent: all */
  chosen?: readonly number[]
  /** some function reads it */
  metadata: boolean
  /** JSON of the row that enriches a message */
  enrichment?: (i: number) => Uint8Array | undefined
  memory: LineMemory
}>

export function linesOf({ views, places }: FunctionMessages, { chosen, metadata, enrichment, memory }: LineOptions): Lines {
  const count = chosen?.length ?? views.length
  let bytes = 0
  for (let k = 0; k < count; k++) {
    const i = chosen ? (chosen[k] as number) : k
    const view = views[i] as MessageView
    bytes += view.bodyEnd(places[i] as number) - view.bodyStart(places[i] as number) + FRAME_BYTES
    const row = enrichment?.(i)
    if (row) bytes += ENRICHMENT.length + row.length
  }
  const lines = memory.take(bytes)
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
    if (bareEnd < 0) lines[at++] = CLOSE // of the metadata
    lines[at++] = CLOSE
    lines[at++] = MESSAGE_END
    lineEnds[k] = at
  }
  return { lines: lines.subarray(0, at), lineEnds, memory: lines }
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
