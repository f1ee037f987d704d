/**
 * The group of a parked message under another shape, or another primary key, than the one it was parked under. The source groups by
 * the texts Postgres prints; a parked message has those of its primary key, and other columns as JSON. Numbers, booleans, texts and
 * what is written as it was printed come back exactly, so that what is parked and what comes later are one group. Timestamps, byte
 * strings, arrays and JSON are written otherwise than they were printed: of a group made of them, what was parked before the change
 * is not ordered against what comes after it.
 */
import { EngineError } from '../../errors.ts'
import { MESSAGE_FLAG } from '../../log/pack.ts'
import type { GenerationShape } from '../../state/generation-shape.ts'
import { keyOf } from './parked-row.ts'
import { hashGroup } from '../../wal/decode/change.ts'

type ParkedBody = Readonly<{
  relation: number
  /** primary key as a JSON array of texts */
  recordKey: string
  flags: number
  /** the message, its metadata left open */
  body: Buffer
}>
type Regrouped = Readonly<{
  hash: number
  /** empty: the primary key */
  groupKey: string
  flags: number
}>

/** Names a table whose changes are grouped by other columns from a generation on. @property key names of its primary key's columns */
export type RegroupedRelation = Readonly<{ relation: number; key: readonly string[] }>

/**
 * Reads the column `regrouped` of a generation; undefined: it began with no such table. @throws EngineError INTERNAL: it is
 * something else
 */
export function readRegrouped(value: unknown): RegroupedRelation | undefined {
  if (value === null) return undefined
  if (!isRegrouped(value)) throw new EngineError('INTERNAL', 'the state database: a generation names a regrouped table in another form')
  return value
}

const isRegrouped = (value: unknown): value is RegroupedRelation =>
  typeof value === 'object' && value !== null && 'relation' in value && 'key' in value && Array.isArray(value.key)

/**
 * Finds the group of a parked message under another shape.
 * @param shape one with groups
 * @param regrouped with which the generation begins: its messages have the key of before
 */
export function regroup(
  { relation, recordKey, flags, body }: ParkedBody,
  shape: GenerationShape,
  regrouped?: RegroupedRelation,
): Regrouped {
  const columns = columnsOf(body, shape) ?? (regrouped?.relation === relation ? regrouped.key : undefined)
  const texts = columns ? columnTexts(body, columns) : keyOf(recordKey)
  const key = texts.map((text) => text ?? '').join(':')
  return {
    hash: hashGroup(relation, Buffer.from(key)),
    groupKey: columns ? key : '',
    flags: flags & ~MESSAGE_FLAG.ungrouped,
  }
}

type Message = Readonly<{ record: Readonly<Record<string, unknown>>; metadata: Readonly<{ table_schema?: string; table_name?: string }> }>

function columnsOf(body: Buffer, { groupColumns }: GenerationShape): readonly string[] | undefined {
  if (Object.keys(groupColumns).length === 0) return undefined
  const { metadata } = messageOf(body)
  return groupColumns[`${metadata.table_schema}.${metadata.table_name}`]
}

function columnTexts(body: Buffer, columns: readonly string[]): (string | null)[] {
  const { record } = messageOf(body)
  return columns.map((column) => {
    const value = record[column]
    if (value === null || value === undefined) return null
    if (typeof value === 'boolean') return value ? 't' : 'f'
    return typeof value === 'string' ? value : JSON.stringify(value)
  })
}

/** Numbers stay texts: they have more digits than a JavaScript number keeps. */
function messageOf(body: Buffer): Message {
  const exact = (_name: string, value: unknown, { source }: { source?: string }) => (typeof value === 'number' ? (source ?? value) : value)
  return (JSON.parse as (text: string, reviver: typeof exact) => Message)(`{${body.toString('utf8')}}}`, exact)
}
