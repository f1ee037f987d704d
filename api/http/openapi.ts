/** The OpenAPI 3.1 document, printed from the operations that are served: TypeBox schemas are JSON schemas, which 3.1 takes
 *  as they are. Nothing here does I/O. */
import { isDeepStrictEqual } from 'node:util'
import { Type, type TSchema } from 'typebox'
import { ERRORS, isErrorCode, type ErrorCode } from '../../engine/errors.ts'
import { fieldsOf, isObject } from '../../engine/json.ts'
import { SCOPES } from '../../engine/state/tokens.ts'
import type { Operation } from './operation.ts'
import { SESSION_COOKIE } from './session.ts'

const ErrorOut = Type.Object(
  {
    summary: Type.String(),
    code: Type.Union(
      Object.keys(ERRORS)
        .filter(isErrorCode)
        .map((code) => Type.Literal(code)),
    ),
    remedy: Type.String({ description: 'what to do about it' }),
    validation_errors: Type.Optional(
      Type.Object({}, { additionalProperties: true, description: '422: field to list of reasons, nested as the resource is' }),
    ),
    required_scope: Type.Optional(
      Type.Union(
        SCOPES.map((scope) => Type.Literal(scope)),
        { description: '403: the scope that is lacking' },
      ),
    ),
    errors: Type.Optional(Type.Object({ detail: Type.String() })),
  },
  { title: 'Error' },
)

/**
 * Schemas as the document has them, for programs that are made of it. Those that have a title stand once, under it: so types have names.
 * A default is told in words: generated clients send one for each field that they are not given, and an update would set back what it left out.
 */
class DocumentSchemas {
  readonly named: Record<string, unknown> = {}

  /** @throws Error two schemas have one title */
  of(value: unknown): unknown {
    if (Array.isArray(value)) return value.map((one) => this.of(one))
    if (!isObject(value)) return value
    const { default: usual, ...rest } = simplified(value)
    const parts = Object.entries(rest).map(([key, part]) => [key, key === 'properties' ? this.#each(part) : this.of(part)])
    const schema = { ...Object.fromEntries(parts), ...(usual !== undefined && { description: withDefault(rest.description, usual) }) }
    const { title } = rest
    if (typeof title !== 'string') return schema
    const known = (this.named[title] ??= schema)
    if (!isDeepStrictEqual(known, schema)) throw new Error(`two schemas of the API have the title "${title}"`)
    return { $ref: `#/components/schemas/${title}` }
  }

  /** Names of fields may be words of schemas. */
  #each = (properties: unknown) => Object.fromEntries(Object.entries(fieldsOf(properties)).map(([name, schema]) => [name, this.of(schema)]))
}
/** Says a schema in the words that generators know: enumerations, maps, and no union of one. */
function simplified(schema: Readonly<Record<string, unknown>>): Readonly<Record<string, unknown>> {
  const { anyOf, patternProperties, ...rest } = schema
  if (Object.hasOwn(fieldsOf(patternProperties), ANY_NAME)) return { ...rest, additionalProperties: fieldsOf(patternProperties)[ANY_NAME] }
  if (!Array.isArray(anyOf)) return schema
  const [texts, others] = [anyOf.filter(isText), anyOf.filter((one) => !isText(one))]
  const choice = texts.length > 1 ? [{ type: 'string', enum: texts.map((one) => one.const) }] : texts
  const [only, ...more] = [...choice, ...others]
  return more.length === 0 ? simplified({ ...fieldsOf(only), ...rest }) : { ...rest, anyOf: [only, ...more] }
}
/** How a schema of a map says that its keys may be any. */
const ANY_NAME = '^.*$'
const isText = (schema: unknown): schema is Readonly<{ const: string }> => typeof fieldsOf(schema)['const'] === 'string'
const withDefault = (description: unknown, usual: unknown): string =>
  [description, `default ${JSON.stringify(usual)}`].filter((part) => typeof part === 'string').join('; ')

/** Makes the OpenAPI document of routes, as a plain object that JSON can print. */
export function openapiDocument(operations: readonly Operation[], version: string): Record<string, unknown> {
  const paths: Record<string, Record<string, unknown>> = {}
  for (const operation of operations) {
    const [path = ''] = operation.paths
    for (const method of operation.methods)
      (paths[path] ??= {})[method.toLowerCase()] = described(operation, path, method === operation.methods[0])
  }
  const schemas = new DocumentSchemas()
  const served = schemas.of(paths)
  return {
    openapi: '3.1.0',
    info: {
      title: 'Tailrace',
      version,
      description: 'Postgres change data capture: receive changes, acknowledge them, manage sinks.',
      license: { name: 'Apache-2.0', identifier: 'Apache-2.0' },
    },
    paths: served,
    components: {
      securitySchemes: {
        session: { type: 'apiKey', in: 'cookie', name: SESSION_COOKIE, description: 'session of a user, from our own pages' },
        token: {
          type: 'http',
          scheme: 'bearer',
          description:
            'API token of an account. The scope that an operation needs stands in its `security`: admin has manage in it, and manage has read and receive.',
        },
      },
      schemas: schemas.named,
    },
  }
}

function described(operation: Operation, path: string, isFirst: boolean): Record<string, unknown> {
  const { id, summary, description, scope, query, body, answer } = operation
  const aliases = operation.paths.slice(1)
  const text = [description, aliases.length > 0 ? `Also served as ${aliases.join(', ')}.` : undefined].filter(Boolean).join(' ')
  return {
    operationId: isFirst ? id : `${id}ByPut`,
    summary,
    ...(text && { description: text }),
    ...(aliases.length > 0 && { 'x-aliases': aliases }),
    security: scope === 'open' ? [] : [{ token: [scope] }, { session: [scope] }], // what the token, or the user, must be allowed
    parameters: [...pathParameters(path), ...queryParameters(query)],
    ...(body && { requestBody: { required: false, content: json(body) } }),
    responses: {
      [answer.status ?? 200]: {
        description: answer.description,
        ...headersOf(answer.status ?? 200),
        ...(answer.schema && { content: json(answer.schema) }),
      },
      ...Object.fromEntries(failuresOf(operation).map(([status, response]) => [status, { ...response, ...headersOf(status) }])),
    },
  }
}

/** A refused request is answered in the form of errors; where a "no" in the form of the answer has the same status, in either. */
function failuresOf({ scope, body, answer: { schema, negative }, errors = [] }: Operation): [number, Record<string, unknown>][] {
  const statuses = new Set([...(scope === 'open' ? [] : [401, 403, 503]), ...(body ? [400, 413] : []), ...errors, 400, 406, 500])
  const failure = (status: number) => ({ description: meaningOf(status), content: json(ErrorOut) })
  const described = new Map([...statuses].toSorted((a, b) => a - b).map((status) => [status, failure(status)]))
  if (negative && schema) {
    const { status, description } = negative
    described.set(status, { description, content: json(statuses.has(status) ? { anyOf: [schema, ErrorOut] } : schema) })
  }
  return [...described]
}

/** What an answer of a status tells by its headers. */
function headersOf(status: number): Readonly<{ headers?: unknown }> {
  if (status === 302) return { headers: { Location: { description: 'where the browser goes', schema: { type: 'string' } } } }
  if (status === 401) return { headers: { 'WWW-Authenticate': { description: 'how to say who asks', schema: { type: 'string' } } } }
  if (status !== 429 && status !== 503) return {}
  return { headers: { 'Retry-After': { description: 'seconds to wait before the next try', schema: { type: 'string' } } } }
}

const json = (schema: TSchema | Record<string, unknown>) => ({ 'application/json': { schema } })

const pathParameters = (path: string) =>
  [...path.matchAll(/\{(\w+)\}/g)].map(([, name]) => ({
    name,
    in: 'path',
    required: true,
    schema: { type: 'string' },
    ...(name === 'id_or_name' && { description: 'UUID or name' }),
  }))

function queryParameters(query: TSchema | undefined): unknown[] {
  if (!query || !('properties' in query) || !isObject(query.properties)) return []
  return Object.entries(query.properties).map(([name, schema]) => ({
    name,
    in: 'query',
    required: false,
    schema,
  }))
}

/** The code that stands for a status in the document; an answer's own code says more. */
const CODE_OF: Readonly<Record<number, ErrorCode>> = {
  400: 'REQUEST_INVALID',
  401: 'TOKEN_INVALID',
  403: 'SCOPE_MISSING',
  404: 'NOT_FOUND',
  406: 'NOT_ACCEPTABLE',
  409: 'REPLAY_RUNNING',
  413: 'BODY_TOO_LARGE',
  422: 'VALIDATION_FAILED',
  429: 'TOO_MANY_WAITING',
  500: 'INTERNAL',
  503: 'SINK_NOT_RUNNING',
}
const meaningOf = (status: number): string => ERRORS[CODE_OF[status] ?? 'INTERNAL'].meaning
