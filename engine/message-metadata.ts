/**
 * The metadata of a message: what its change says of itself, and what its sink adds at delivery. The log keeps the first half, as
 * `wal/decode/change-writer.ts` writes it, and leaves it open; the second half is the same for all messages of a sink. A new field
 * of a sink is a line here. A new field of a change is a line here and what writes it: for changes `ChangeWriter`, for rows of
 * backfills `ReadTail`; what is of the table stands in `tableMetadata` of `wal/decode/relation.ts`, for both. Three readers go by the
 * order of the fields, so new ones stand between the table's name and the annotations: `transforms/function-lines.ts` and
 * `sinks/messages.ts` want schema and table first, the former `transaction_annotations` last, and
 * `actors/partition/split-key-changes.ts` the metadata behind record, changes and action.
 *
 * Functions see these types in editors, by the package's own types: so nothing here needs another module, or Node's types.
 */

/** Holds what a message says of its change. */
type ChangeMetadata = {
  table_schema: string
  table_name: string
  /** ISO 8601, UTC */
  commit_timestamp: string
  commit_lsn: number
  commit_idx: number
  idempotency_key: string
  record_pks: string[]
  transaction_annotations: unknown
}

/** Holds what a message says of the sink that delivers it, and of that sink's database. */
export type SinkMetadata = {
  database_name: string
  consumer: { id: string; name: string; annotations: Record<string, unknown> }
  database: { id: string; name: string; annotations: Record<string, unknown>; database: string; hostname: string }
}

/** Holds all that a message says beside its row: of its change, the row that enriches it, its sink and its database. */
export type Metadata = ChangeMetadata & { enrichment: Record<string, unknown> | null } & SinkMetadata

type Named = Readonly<{ id: string; name: string; annotations: Readonly<Record<string, unknown>> }>
type NamedDatabase = Named & Readonly<{ connection: Readonly<{ database: string; hostname: string }> }>

/** Says of which database a message is, whatever sink delivers it. */
export const databaseMetadata = ({ id, name, annotations, connection }: NamedDatabase): Omit<SinkMetadata, 'consumer'> => ({
  database_name: name,
  database: { id, name, annotations, database: connection.database, hostname: connection.hostname },
})

/** Makes the half of the metadata that is the same for every message of a sink. */
export function sinkMetadata({ id, name, annotations }: Named, database: NamedDatabase): SinkMetadata {
  const { database_name, ...of } = databaseMetadata(database)
  return { database_name, consumer: { id, name, annotations }, ...of }
}

/** Stands in front of the row that enriches a message, or of null. */
export const ENRICHMENT = ',"enrichment":'

/** Makes the end of every message of a sink, behind the row that enriches it: the rest of its metadata. */
export const metadataEnd = (sink: Named, database: NamedDatabase): string => `,${JSON.stringify(sinkMetadata(sink, database)).slice(1)}}`

const EXAMPLE_NAMED = { id: '00000000-0000-4000-8000-000000000000', name: 'example', annotations: {} }
/** The example of a message's change. */
export const EXAMPLE_CHANGE: ChangeMetadata = {
  table_schema: 'public',
  table_name: 'example',
  commit_timestamp: '2025-02-03T04:05:06.789012Z',
  commit_lsn: 26_741_272,
  commit_idx: 0,
  idempotency_key: 'MjY3NDEyNzI6MA==',
  record_pks: ['1'],
  transaction_annotations: null,
}
/** The example of a message's sink. */
export const EXAMPLE_SINK: SinkMetadata = sinkMetadata(EXAMPLE_NAMED, {
  ...EXAMPLE_NAMED,
  connection: { database: 'example', hostname: 'localhost' },
})
