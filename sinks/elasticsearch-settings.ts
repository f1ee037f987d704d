/** The settings of an Elasticsearch sink, and what a routing function may say of a message: its index. */
import { Type, type Static } from 'typebox'
import { SECRET } from '../engine/state/destinations.ts'
import { BatchSize, CaCert, EndpointUrl, indexName } from './keyed-documents.ts'
import { DestinationRouting, type RoutedMessage } from './routing.ts'

/** What the server takes as the name of an index or alias; it stands in paths of requests. */
const ElasticsearchIndex = Type.String({
  minLength: 1,
  pattern: '^(?!\\.{1,2}$)[^-_+\\\\/*?"<>|\\s,#:][^\\\\/*?"<>|\\s,#:]*$',
  maxLength: 255,
  description: 'the name of an index: no blanks, none of \\ / * ? " < > | , # : and none of - _ + in front',
})

/** The settings of a sink of type elasticsearch, as a schema. */
export const ElasticsearchDestination = Type.Object(
  {
    type: Type.Literal('elasticsearch'),
    endpoint_url: EndpointUrl,
    index_name: indexName(ElasticsearchIndex),
    auth_type: Type.Union([Type.Literal('api_key'), Type.Literal('basic'), Type.Literal('bearer'), Type.Literal('none')], {
      default: 'api_key',
      description: 'how requests log in',
    }),
    auth_value: Type.Optional(
      Type.Union(
        [
          Type.String({
            minLength: 1,
            maxLength: 8192,
            pattern: '^[^\\x00-\\x1f\\x7f]+$',
            description: 'without line breaks and other control characters',
            ...SECRET,
          }),
          Type.Null(),
        ],
        {
          description: 'the encoded API key, user:password, or the token; with auth_type none nothing',
        },
      ),
    ),
    batch_size: BatchSize,
    timeout_seconds: Type.Integer({ minimum: 1, maximum: 300, default: 60, description: 'longest wait for the answer to one request' }),
    versioning: Type.Union([Type.Literal('external_gte'), Type.Literal('none')], {
      default: 'external_gte',
      description: 'external_gte: no older change overwrites a newer one, however late it arrives; none: documents have no version of ours',
    }),
    ca_cert: CaCert,
  },
  { additionalProperties: false },
)
/** The settings of a sink of type elasticsearch. */
export type ElasticsearchDestination = Static<typeof ElasticsearchDestination>

/** In the spelling that such indexes have where this service takes over from another. */
const PREFIX = 'sequin'

/** @param database the connection's name */
export const builtInIndex = ({ database, schema, table }: Omit<RoutedMessage, 'action'>): string =>
  `${PREFIX}.${database}.${schema}.${table}`

/** What a routing function may say of messages to Elasticsearch. */
export const elasticsearchRouting = new DestinationRouting({
  result: Type.Object({ index_name: Type.Optional(ElasticsearchIndex) }, { additionalProperties: false }),
  effective: ({ index_name }, destination, message) => ({ index_name: index_name ?? destination?.index_name ?? builtInIndex(message) }),
})
