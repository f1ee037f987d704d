/**
 * Where messages go: the settings of each kind of destination, each described once. A field with `secret: true` is stored
 * encrypted and shown only in part.
 */
import { Type, type Static } from 'typebox'

const strict = { additionalProperties: false } as const
/** Not printed, not logged, encrypted in the state database. */
const secret = { secret: true } as const
const HTTP_URL = '^[hH][tT][tT][pP][sS]?://[^/?#@\\s]+(?:/[^?#\\s]*)?$'
const searchUrl = Type.String({ pattern: HTTP_URL, maxLength: 4096, description: 'address of the server, http or https, without query' })
const indexName = (description: string) => Type.String({ minLength: 1, maxLength: 1024, description })
const searchBatch = Type.Integer({ minimum: 1, maximum: 10_000, default: 100, description: 'most documents of one request' })
const caCert = Type.Optional(
  Type.String({
    pattern: '-----BEGIN CERTIFICATE-----',
    maxLength: 65_536,
    description: 'authority in PEM that signs its certificate, if not a common one',
  }),
)
/** Taken in, and without effect: the index has to name it. */
const none = Type.Null()

/** The pull (stream) sink has no settings of its own: its transport is the client. */
export const PullDestination = Type.Object({ type: Type.Literal('sequin_stream') }, strict)

export const PATH_PATTERN = "^(?:[/?#][A-Za-z0-9\\-._~:/?#\\[\\]@!$&'()*+,;=%]*)?$"

export const WebhookDestination = Type.Object(
  {
    type: Type.Literal('webhook'),
    http_endpoint: Type.String({
      pattern: '^[a-zA-Z0-9_.-]+$',
      maxLength: 255,
      description: 'name of the HTTP endpoint that gets the messages',
    }),
    http_endpoint_path: Type.Optional(
      Type.Union([Type.String({ pattern: PATH_PATTERN, maxLength: 2000 }), none], {
        description: 'appended to the URL of the endpoint; begins with /, ? or #',
      }),
    ),
    batch: Type.Boolean({ default: true, description: 'true: {"data":[…]}, also for one message; false: the message alone' }),
    item_results: Type.Boolean({
      default: false,
      description: 'the answer to a batch may name messages that failed: {"failures":[{"index":0,"error":"…"}]}',
    }),
    signing_secrets: Type.Optional(
      Type.Array(Type.String({ pattern: '^whsec_[A-Za-z0-9+/]{32,}={0,2}$', ...secret }), {
        minItems: 1,
        maxItems: 4,
        description: 'signs each request in the Standard Webhooks form, once with each secret (whsec_ and base64)',
      }),
    ),
  },
  strict,
)
export type WebhookDestination = Static<typeof WebhookDestination>

export const ElasticsearchDestination = Type.Object(
  {
    type: Type.Literal('elasticsearch'),
    endpoint_url: searchUrl,
    index_name: Type.Optional(Type.Union([indexName('index that gets the documents; it must exist'), none])),
    auth_type: Type.Union([Type.Literal('api_key'), Type.Literal('basic'), Type.Literal('bearer'), Type.Literal('none')], {
      default: 'api_key',
      description: 'how the request says who asks',
    }),
    auth_value: Type.Optional(
      Type.Union([
        Type.String({ minLength: 1, maxLength: 8192, description: 'API key, user:password or token; none with auth_type none', ...secret }),
        none,
      ]),
    ),
    batch_size: searchBatch,
    versioning: Type.Union([Type.Literal('external_gte'), Type.Literal('none')], {
      default: 'external_gte',
      description: 'external_gte: a document carries the position of its change, so that an older one never replaces a newer one',
    }),
    ca_cert: caCert,
  },
  strict,
)
export type ElasticsearchDestination = Static<typeof ElasticsearchDestination>

export const MeilisearchDestination = Type.Object(
  {
    type: Type.Literal('meilisearch'),
    endpoint_url: searchUrl,
    index_name: Type.Optional(Type.Union([indexName('index that gets the documents; it must exist'), none])),
    primary_key: Type.String({ minLength: 1, maxLength: 255, default: 'id', description: 'field of the documents that is their key' }),
    api_key: Type.String({ minLength: 1, maxLength: 8192, description: 'key with the right to add, delete and read tasks', ...secret }),
    batch_size: searchBatch,
    timeout_seconds: Type.Integer({ minimum: 1, maximum: 300, default: 5, description: 'longest wait for the answer to one request' }),
    ca_cert: caCert,
  },
  strict,
)
export type MeilisearchDestination = Static<typeof MeilisearchDestination>

/** By the value of `type`. */
export const DESTINATIONS = {
  sequin_stream: PullDestination,
  webhook: WebhookDestination,
  elasticsearch: ElasticsearchDestination,
  meilisearch: MeilisearchDestination,
} as const
export type DestinationKind = keyof typeof DESTINATIONS
export const Destination = Type.Union(
  Object.values(DESTINATIONS) as [
    typeof PullDestination,
    typeof WebhookDestination,
    typeof ElasticsearchDestination,
    typeof MeilisearchDestination,
  ],
)
export type Destination = Static<typeof Destination>

/** Names of the fields of a destination that hold secrets: texts, or lists of texts. */
export function secretFields(kind: DestinationKind): readonly string[] {
  return Object.entries(DESTINATIONS[kind].properties)
    .filter(([, schema]) => JSON.stringify(schema).includes('"secret":true'))
    .map(([name]) => name)
}

/** Where webhooks go: a URL, and headers, of which some are secrets. */
export type HttpEndpoint = Readonly<{
  id: string
  accountId: string
  name: string
  /** local: reached through a development tunnel, which is not there yet */
  kind: 'external' | 'local'
  url: string
  headers: Readonly<Record<string, string>>
  encryptedHeaders: Readonly<Record<string, string>>
}>
