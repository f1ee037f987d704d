/** The settings of a Meilisearch sink, and what a routing function may say of a message: its index, and what is done there. */
import { Type, type Static } from 'typebox'
import { SECRET } from '../engine/state/destinations.ts'
import { BatchSize, CaCert, EndpointUrl, indexName } from './keyed-documents.ts'
import { DestinationRouting } from './routing.ts'

const MeilisearchIndex = Type.String({
  minLength: 1,
  pattern: '^[A-Za-z0-9_-]+$',
  maxLength: 400,
  description: 'letters, digits, "-" and "_"',
})

/** The settings of a sink of type meilisearch, as a schema. */
export const MeilisearchDestination = Type.Object(
  {
    type: Type.Literal('meilisearch'),
    endpoint_url: EndpointUrl,
    index_name: indexName(MeilisearchIndex),
    primary_key: Type.String({ minLength: 1, maxLength: 255, default: 'id', description: 'field of the documents that names them' }),
    api_key: Type.String({
      minLength: 1,
      maxLength: 8192,
      pattern: '^[\\x21-\\x7e]+$',
      description: 'key with the right to add and delete documents and to read tasks and the index',
      ...SECRET,
    }),
    batch_size: BatchSize,
    timeout_seconds: Type.Integer({
      minimum: 1,
      maximum: 300,
      default: 5,
      description: 'longest wait for the answer to one request; tasks may take longer',
    }),
    ca_cert: CaCert,
  },
  { additionalProperties: false },
)
/** The settings of a sink of type meilisearch. */
export type MeilisearchDestination = Static<typeof MeilisearchDestination>

const ACTIONS = ['index', 'delete', 'function'] as const
const OF_EDITS = ['filter', 'function', 'context'] as const
const expression = Type.String({ minLength: 1, maxLength: 10_000 })

/** What a routing function may say of messages to Meilisearch. */
export const meilisearchRouting = new DestinationRouting({
  result: Type.Object(
    {
      action: Type.Optional(Type.Union(ACTIONS.map((action) => Type.Literal(action)))),
      index_name: Type.Optional(MeilisearchIndex),
      filter: Type.Optional(expression),
      function: Type.Optional(expression),
      context: Type.Optional(Type.Union([Type.Object({}, { additionalProperties: true }), Type.Null()])),
    },
    { additionalProperties: false },
  ),
  cases: { action: 'lower' },
  refused(route, destination) {
    const isEdit = route['action'] === 'function'
    if (isEdit && route['filter'] === undefined) return 'filter is missing: the action "function" edits what it selects'
    if (isEdit && route['function'] === undefined) return 'function is missing: the action "function" applies it'
    const other = isEdit ? undefined : OF_EDITS.find((key) => route[key] !== undefined)
    if (other) return `${other} is only for the action "function"`
    if (destination && (route['index_name'] ?? destination.index_name ?? undefined) === undefined)
      return 'index_name is missing, and the sink names none'
    return undefined
  },
  effective: (route, destination, message) => {
    const index_name = route['index_name'] ?? destination?.index_name
    return {
      action: message.action === 'delete' ? 'delete' : 'index',
      ...(index_name !== null && index_name !== undefined && { index_name }),
      ...route,
    }
  },
})
