/**
 * The settings of a webhook sink, and what a routing function may say of a message: method, path behind the endpoint's URL,
 * headers beside the endpoint's.
 */
import { Type, type Static } from 'typebox'
import { isHeader, MAX_HEADERS } from '../engine/net/http-header.ts'
import { SECRET } from '../engine/state/destinations.ts'
import { DestinationRouting } from './routing.ts'

const PATH_PATTERN = "^(?:[/?#][A-Za-z0-9\\-._~:/?#\\[\\]@!$&'()*+,;=%]*)?$"

/** The settings of a sink of type webhook, as a schema. */
export const WebhookDestination = Type.Object(
  {
    type: Type.Literal('webhook'),
    http_endpoint: Type.String({
      pattern: '^[a-zA-Z0-9_.-]+$',
      maxLength: 255,
      description: 'name of the HTTP endpoint that gets the messages',
    }),
    http_endpoint_path: Type.Optional(
      Type.Union([Type.String({ pattern: PATH_PATTERN, maxLength: 2000, description: 'begins with /, ? or #' }), Type.Null()], {
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
        Type.String({ pattern: '^whsec_[A-Za-z0-9+/]{32,}={0,2}$', description: 'whsec_ and base64 of 24 bytes or more', ...SECRET }),
        {
          minItems: 1,
          maxItems: 4,
          description: 'signs each request in the Standard Webhooks form, once with each secret (whsec_ and base64)',
        },
      ),
    ),
  },
  { additionalProperties: false },
)
/** The settings of a sink of type webhook. */
export type WebhookDestination = Static<typeof WebhookDestination>

const METHODS = ['GET', 'POST', 'PUT', 'PATCH', 'DELETE', 'HEAD', 'OPTIONS'] as const

/** `/../` and its kin: a proxy behind the endpoint's address may resolve them, also when they are encoded. */
function hasDotSegment(path: string): boolean {
  const [before = ''] = path.split(/[?#]/, 1)
  const plain = before.replaceAll(/%2e/gi, '.').replaceAll(/%2f|%5c|\\/gi, '/')
  return plain.split('/').some((part) => /^\.{1,2}(?:;|$)/.test(part)) // some servers take what follows ";" for a parameter of the part
}

/** What a routing function may say of messages to a webhook. */
export const webhookRouting = new DestinationRouting({
  result: Type.Object(
    {
      method: Type.Optional(Type.Union(METHODS.map((method) => Type.Literal(method)))),
      endpoint_path: Type.Optional(
        Type.String({
          pattern: PATH_PATTERN,
          maxLength: 2000,
          description:
            'empty, or a text that begins with /, ? or #; characters that a URL can not have, such as a blank, must go through encodeURIComponent',
        }),
      ),
      headers: Type.Optional(Type.Record(Type.String(), Type.String(), { maxProperties: MAX_HEADERS })),
    },
    { additionalProperties: false },
  ),
  cases: { method: 'upper' },
  refused({ headers = {}, endpoint_path: path = '' }) {
    if (hasDotSegment(String(path))) return 'endpoint_path has a part "." or "..", which would leave the path of the endpoint'
    const wrong = Object.entries(headers ?? {}).find(([name, value]) => !isHeader(name, String(value)))
    return wrong && `headers has a header that HTTP does not allow: ${wrong[0].slice(0, 60)}`
  },
  effective: ({ method = 'POST', endpoint_path, headers = {} }, destination) => ({
    method,
    endpoint_path: endpoint_path ?? destination?.http_endpoint_path ?? '',
    headers,
  }),
})
