/** A Meilisearch sink's wire, what it is given, and how its outcomes read. */
import type { Batch } from '../../engine/dispatch/batch.ts'
import assert from 'node:assert/strict'
import type { MeilisearchDestination } from '../../sinks/meilisearch-settings.ts'
import type { Sink } from '../../engine/state/resources.ts'
import { meilisearch } from '../../sinks/meilisearch.ts'
import type { Failure, Outcome, PushOptions } from '../../sinks/push.ts'
import type { Meilisearch, Request } from '../services/meilisearch.ts'
import { SECRET } from './conformance.ts'
import { madeInto, batchOf, wireOf, type Row } from './batch.ts'

export const destination = (url: string, settings: Partial<MeilisearchDestination> = {}): MeilisearchDestination => ({
  ...{
    type: 'meilisearch',
    endpoint_url: url,
    index_name: 'items',
    primary_key: 'id',
    api_key: SECRET,
    batch_size: 100,
    timeout_seconds: 5,
  },
  ...settings,
})
export const open = (
  server: Pick<Meilisearch, 'url'>,
  settings: Partial<MeilisearchDestination> = {},
  sink: Partial<Sink> = {},
  options: Partial<PushOptions> = {},
) => wireOf(meilisearch, destination(server.url, settings), sink, options)

/** Messages of which a function has made these documents. */
export const madeOf = (documents: readonly unknown[], rows: readonly Partial<Row>[] = []): Batch =>
  madeInto(
    batchOf(documents.map((_, i) => ({ key: [String(i)], ...rows[i] }))),
    documents.map((document) => Buffer.from(typeof document === 'string' ? document : JSON.stringify(document))),
  )
export const stored = (server: Meilisearch, index = 'items') => [...server.documents(index).values()]
export const ids = (server: Meilisearch, index = 'items') => [...server.documents(index).keys()]
export const writes = ({ requests }: Meilisearch): readonly Request[] => requests.filter(({ method }) => method === 'POST')

export function failureOf(outcome: Outcome): Failure {
  assert.ok(outcome.kind === 'failed', JSON.stringify(outcome))
  return outcome.failure
}
/** By message: its failure's blame and words, or undefined. */
export function wordsOf(outcome: Outcome): readonly (readonly [string, string] | undefined)[] {
  assert.ok(outcome.kind === 'each', JSON.stringify(outcome))
  return outcome.failures.map((failure) => failure && ([failure.blame, failure.answer.message] as const))
}
