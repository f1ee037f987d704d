/** What functions are given and return, for editors: `import type { Transform, Filter, Route } from 'tailrace'`. */
import type { Metadata } from '../engine/message-metadata.ts'

export type { Metadata } from '../engine/message-metadata.ts'
/** What happened to the row; read: it was there when a backfill came. */
export type Action = 'insert' | 'update' | 'delete' | 'read'

/** A row of any table: numbers up to ±2^53, BigInt beyond, everything else as docs/messages.md has it. */
export type Row = Record<string, unknown>

/**
 * A deleted row: columns outside the table's replica identity are null, and nobody here knows which those are. "tailrace types"
 * writes them beside each row's type, for the second place: `Transform<Goods, DeletedGoods>`.
 */
export type Deleted<R = Row> = { [Column in keyof R]: R[Column] | null }

/** Makes what is delivered: any JSON value. `changes` is null but for updates. */
export type Transform<R = Row, D = Deleted<R>> = (action: Action, record: R | D, changes: Partial<R> | null, metadata: Metadata) => unknown
/** Keeps a message by true and drops it by false. */
export type Filter<R = Row, D = Deleted<R>> = (action: Action, record: R | D, changes: Partial<R> | null, metadata: Metadata) => boolean

/** What a routing function may say, by type of sink. What it leaves out is as the sink has it. */
export type Routes = {
  webhook: {
    method?: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE' | 'HEAD' | 'OPTIONS'
    /** behind the URL of the endpoint; begins with /, ? or # */
    endpoint_path?: string
    /** beside those of the endpoint, and before them */
    headers?: Record<string, string>
  }
  elasticsearch: { index_name?: string }
  meilisearch:
    | { action?: 'index' | 'delete'; index_name?: string }
    | {
        /** edits the documents that `filter` selects */
        action: 'function'
        index_name?: string
        filter: string
        /** in Meilisearch's language: `doc.price = context.price` */
        function: string
        context?: Record<string, unknown>
      }
}
/** Says where and how a message goes: `Route<'webhook'>`. */
export type Route<S extends keyof Routes, R = Row, D = Deleted<R>> = (
  action: Action,
  record: R | D,
  changes: Partial<R> | null,
  metadata: Metadata,
) => Routes[S]

/** What functions have beside the language. */
declare global {
  /** Gives the SHA-256 hash of bytes, or of a text as UTF-8, as 64 hex digits. */
  function sha256(bytes: string | Uint8Array): string
  /** Makes a random UUID, of version 4. */
  function randomUUID(): string
  /** Encodes bytes, or a text as UTF-8, as base64. */
  function base64Encode(bytes: string | Uint8Array): string
  /** Decodes base64, also of the alphabet of URLs. */
  function base64Decode(text: string): Uint8Array
}
