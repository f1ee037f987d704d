/** An Elasticsearch sink's wire and what it is given. */
import type { ElasticsearchDestination } from '../../sinks/elasticsearch-settings.ts'
import type { Sink } from '../../engine/state/resources.ts'
import { elasticsearch } from '../../sinks/elasticsearch.ts'
import type { Outcome, PushOptions } from '../../sinks/push.ts'
import { ELASTIC_USER } from '../services/elasticsearch.ts'
import type { SearchIndex } from '../services/elasticsearch-client.ts'
import { wireOf } from './batch.ts'

export const LOGIN = `${ELASTIC_USER.username}:${ELASTIC_USER.password}`

export const destination = (endpoint_url: string, settings: Partial<ElasticsearchDestination> = {}): ElasticsearchDestination => ({
  ...{ type: 'elasticsearch', endpoint_url, index_name: 'items', auth_type: 'basic', auth_value: LOGIN },
  ...{ batch_size: 100, timeout_seconds: 60, versioning: 'external_gte' },
  ...settings,
})

/** A wire to an index of the real server. */
export const open = (
  { endpoint, name }: SearchIndex,
  settings: Partial<ElasticsearchDestination> = {},
  sink: Partial<Sink> = {},
  options: Partial<PushOptions> = {},
) => wireOf(elasticsearch, destination(endpoint, { index_name: name, ...settings }), sink, options)

/** By message: its failure's blame and words, or undefined; or the words of the whole. */
export function wordsOf(outcome: Outcome): readonly (string | undefined)[] | string {
  if (outcome.kind === 'each') return outcome.failures.map((failure) => failure && `${failure.blame}: ${failure.answer.message}`)
  return outcome.kind === 'failed' ? `${outcome.failure.blame}: ${outcome.failure.answer.message}` : outcome.kind
}
