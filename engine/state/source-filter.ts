/** Decides which tables of its source a sink takes. */
import { Type, type Static } from 'typebox'
import { qualified } from '../postgres/table-name.ts'

/** The schema of which tables a sink takes. `null` or absent: no restriction. Table names are `schema.table`. */
export const SourceFilter = Type.Object(
  {
    include_schemas: Type.Optional(Type.Union([Type.Array(Type.String(), { minItems: 1 }), Type.Null()])),
    exclude_schemas: Type.Optional(Type.Union([Type.Array(Type.String(), { minItems: 1 }), Type.Null()])),
    include_tables: Type.Optional(Type.Union([Type.Array(Type.String(), { minItems: 1 }), Type.Null()])),
    exclude_tables: Type.Optional(Type.Union([Type.Array(Type.String(), { minItems: 1 }), Type.Null()])),
  },
  {
    additionalProperties: false,
    title: 'SourceFilter',
    description: 'which tables it takes: include_ or exclude_schemas, include_ or exclude_tables; {} takes all that are published',
  },
)
/** Says which tables a sink takes. */
export type SourceFilter = Static<typeof SourceFilter>

/** Tells whether a sink takes a table. Lists that are given restrict: a table must pass those of schemas and those of tables. */
export function takesTable(filter: SourceFilter, schema: string, fullName: string): boolean {
  const { include_schemas, exclude_schemas, include_tables, exclude_tables } = filter
  if (include_schemas && !include_schemas.includes(schema)) return false
  if (exclude_schemas?.includes(schema)) return false
  if (include_tables && !include_tables.some((name) => qualified(name) === fullName)) return false
  return !exclude_tables?.some((name) => qualified(name) === fullName)
}
