/**
 * Where messages go: the settings of each kind of destination, each described once. A field with `secret: true` is stored
 * encrypted and shown only in part.
 */
import { Type, type Static, type TString } from 'typebox'

const strict = { additionalProperties: false } as const
/** Not printed, not logged, encrypted in the state database. */
const secret = { secret: true } as const
const none = Type.Null()

/** The pull (stream) sink has no settings of its own: its transport is the client. */
const PullDestination = Type.Object({ type: Type.Literal('sequin_stream') }, strict)

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
      Type.Union([Type.String({ pattern: PATH_PATTERN, maxLength: 2000, description: 'begins with /, ? or #' }), none], {
        description: 'appended to the URL of the endpoint; begins with /, ? or #',
      }),
    ),
    batch: Type.Boolean({ default: true, description: 'true: {"data":[…]}, also for one message; false: the message alone' }),
    item_results: Type.Boolean({
      default: false,
      description: 'the answer to a batch may name messages that failed: {"failures":[{"index":0,"error":"…"}]}',
    }),
    signing_secrets: Type.Optional(
      Type.Array(
        Type.String({ pattern: '^whsec_[A-Za-z0-9+/]{32,}={0,2}$', description: 'whsec_ and base64 of 24 bytes or more', ...secret }),
        {
          minItems: 1,
          maxItems: 4,
          description: 'signs each request in the Standard Webhooks form, once with each secret (whsec_ and base64)',
        },
      ),
    ),
  },
  strict,
)
export type WebhookDestination = Static<typeof WebhookDestination>

/** What the search servers have in common. */
const EndpointUrl = Type.String({
  pattern: '^[hH][tT][tT][pP][sS]?://[^/?#@\\s]+(?:/[^?#\\s]*)?$',
  maxLength: 4096,
  description: 'address of the server, http or https, without query',
})
/** What the server takes as the name of an index or alias; it stands in paths of requests. */
export const ElasticsearchIndex = Type.String({
  minLength: 1,
  pattern: '^(?!\\.{1,2}$)[^-_+\\\\/*?"<>|\\s,#:][^\\\\/*?"<>|\\s,#:]*$',
  maxLength: 255,
  description: 'the name of an index: no blanks, none of \\ / * ? " < > | , # : and none of - _ + in front',
})
export const MeilisearchIndex = Type.String({
  minLength: 1,
  pattern: '^[A-Za-z0-9_-]+$',
  maxLength: 400,
  description: 'letters, digits, "-" and "_"',
})
const indexName = (name: TString) =>
  Type.Optional(Type.Union([name, none], { description: 'index that gets the documents; a routing function may name another' }))
const BatchSize = Type.Integer({ minimum: 1, maximum: 10_000, default: 100, description: 'most documents of one request' })
const CaCert = Type.Optional(
  Type.Union([Type.String({ pattern: '-----BEGIN CERTIFICATE-----', maxLength: 65_536, description: 'a certificate in PEM' }), none], {
    description: 'authority in PEM that signs the server’s certificate, if not a common one',
  }),
)

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
            ...secret,
          }),
          none,
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
  strict,
)
export type ElasticsearchDestination = Static<typeof ElasticsearchDestination>

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
      ...secret,
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
export const Destination = Type.Union([PullDestination, WebhookDestination, ElasticsearchDestination, MeilisearchDestination])
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

type Addressed = Pick<HttpEndpoint, 'url' | 'headers' | 'encryptedHeaders'>

/** User and password of the URL become the header that they stand for, which is kept encrypted; a header that is given goes before them. */
export function withoutLogin<T extends Addressed>(endpoint: T): T {
  const { url, headers, encryptedHeaders } = endpoint
  const login = loginIn(url)
  if (login === undefined) return endpoint
  const isGiven = [headers, encryptedHeaders].some((those) => Object.keys(those).some((name) => name.toLowerCase() === 'authorization'))
  const authorization = `Basic ${Buffer.from(login).toString('base64')}`
  return {
    ...endpoint,
    url: url.replace(/^([^:/?#]*:\/\/)[^/?#]*@/, '$1'),
    ...(!isGiven && { encryptedHeaders: { ...encryptedHeaders, authorization } }),
  }
}

/** @returns `user:password`; undefined: the URL has neither */
function loginIn(url: string): string | undefined {
  if (!URL.canParse(url)) return undefined
  const { username, password } = new URL(url)
  if (username === '' && password === '') return undefined
  const plain = `${username}:${password}`
  try {
    return decodeURIComponent(plain)
  } catch {
    return plain // with a "%" that encodes nothing
  }
}
