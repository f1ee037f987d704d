/** What functions are given and return, for editors: `import type { Transform, Filter } from 'tailrace'`. */
export type Action = 'insert' | 'update' | 'delete' | 'read'

export type Metadata = {
  table_schema: string
  table_name: string
  /** ISO 8601, UTC */
  commit_timestamp: string
  commit_lsn: number
  commit_idx: number
  idempotency_key: string
  record_pks: string[]
  transaction_annotations: unknown
  enrichment: Record<string, unknown> | null
  database_name: string
  consumer: { id: string; name: string; annotations: Record<string, unknown> }
  database: { id: string; name: string; annotations: Record<string, unknown>; database: string; hostname: string }
}

/** A row of any table: numbers up to ±2^53, BigInt beyond, everything else as docs/messages.md has it. */
export type Row = Record<string, unknown>

/** Makes what is delivered: any JSON value. `changes` is null but for updates. */
export type Transform<R = Row> = (action: Action, record: R, changes: Partial<R> | null, metadata: Metadata) => unknown
/** Keeps a message by true and drops it by false. */
export type Filter<R = Row> = (action: Action, record: R, changes: Partial<R> | null, metadata: Metadata) => boolean
