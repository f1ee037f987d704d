/**
 * A table as the stream describes it at one point of the log, with everything that rendering its rows needs made
 * beforehand: the primary key, a renderer for each column, names as JSON bytes. Immutable; a new Relation message of the
 * same oid makes a new one.
 */
import { Literal } from '../../byte-writer.ts'
import type { RelationMessage } from './pgoutput.ts'
import { rendererOf, type TimestampFormat } from './render.ts'
import { FIXED_TYPES, type Render, type ValueType } from './value-type.ts'

export type { RelationColumn, RelationMessage, ReplicaIdentity } from './pgoutput.ts'

/**
 * Holds what the Relation message doesn't say of a table, as plain JSON that is saved by position, so that a re-run decides the
 * same (docs/rules.md, rule 11).
 */
export type RelationDescription = Readonly<{
  /** names of the primary key's columns, as the message has them */
  key: readonly string[]
  /** by type oid, for types whose oid isn't fixed */
  types: Readonly<Record<string, ValueType>>
  warnings: readonly RelationWarning[]
}>

/** Tells people what can't be followed of a table. */
export type RelationWarning = Readonly<{
  code: 'no_primary_key' | 'key_outside_identity' | 'key_not_published' | 'table_dropped' | 'type_dropped'
  message: string
}>

/** A table with all that rendering its rows needs. */
export class Relation {
  readonly message: RelationMessage
  readonly description: RelationDescription
  readonly oid: number
  /** indexes of the primary key's columns, in column order */
  readonly key: readonly number[]
  /** 1 where the column belongs to the replica identity: what an old key tuple has values of */
  readonly identity: Uint8Array
  /** `"column":` for each column */
  readonly names: readonly Literal[]
  /** what stands between `changes` and the commit time */
  readonly tableMetadata: Literal
  readonly #renderers: Partial<Record<TimestampFormat, readonly Render[]>> = {}

  constructor(message: RelationMessage, description: RelationDescription) {
    this.message = message
    this.description = description
    this.oid = message.oid
    const key = new Set(description.key)
    this.key = message.columns.flatMap((column, i) => (key.has(column.name) ? [i] : []))
    this.identity = Uint8Array.from(message.columns, (column) => (column.key ? 1 : 0))
    this.names = message.columns.map((column) => new Literal(`${JSON.stringify(column.name)}:`))
    const { schema, table } = message
    this.tableMetadata = new Literal(
      `"metadata":{"table_schema":${JSON.stringify(schema)},"table_name":${JSON.stringify(table)},"commit_timestamp":"`,
    )
  }

  /** One for each column. */
  renderers(format: TimestampFormat): readonly Render[] {
    return (this.#renderers[format] ??= this.message.columns.map(({ typeOid }) => {
      const type = FIXED_TYPES.get(typeOid) ?? this.description.types[typeOid] ?? 'text'
      return rendererOf(type, format)
    }))
  }

  /** @returns the columns' indexes in the order of `names`; a name the table doesn't have is left out */
  columnIndexes(names: readonly string[]): readonly number[] {
    return names.map((name) => this.message.columns.findIndex((column) => column.name === name)).filter((i) => i >= 0)
  }
}
