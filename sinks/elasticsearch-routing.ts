/** What a routing function may say of a message for Elasticsearch: its index; and the index of which nobody says anything. */
import { Type } from 'typebox'
import { ElasticsearchIndex, type ElasticsearchDestination } from '../engine/state/destinations.ts'
import { Routing, type RoutedMessage } from './routing.ts'

/** In the spelling that such indexes have where this service takes over from another. */
const PREFIX = 'sequin'

/** @param database the connection's name */
export const builtInIndex = ({ database, schema, table }: Omit<RoutedMessage, 'action'>): string =>
  `${PREFIX}.${database}.${schema}.${table}`

export const elasticsearchRouting = new Routing<ElasticsearchDestination>({
  result: Type.Object({ index_name: Type.Optional(ElasticsearchIndex) }, { additionalProperties: false }),
  effective: ({ index_name }, destination, message) => ({ index_name: index_name ?? destination?.index_name ?? builtInIndex(message) }),
})
