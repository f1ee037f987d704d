/**
 * The wire form of an HTTP endpoint: external, local, or one that a public test service gives. Headers come
 * as an object or as a list of key and value; encrypted ones are shown only in part, and may be sent back so. Nothing here
 * does I/O.
 */
import { Type } from 'typebox'
import { isHeader, MAX_HEADERS } from '../../engine/net/http-header.ts'
import { NO_URL, withoutLogin, type HttpEndpoint } from '../../engine/state/destinations.ts'
import { Name, isName } from '../../engine/resource-name.ts'
import { NOUN_OF, type EndpointInput } from '../../engine/state/resource-store.ts'
import { type Reason } from '../../engine/schema-reasons.ts'
import { isObject } from '../../engine/json.ts'
import { invalid, readOnly, type ResourceForm } from './form.ts'
import { obfuscated, secretMeant, shownUrl, urlMeant } from './secret-form.ts'

const HeaderMap = Type.Record(Type.String(), Type.String())
const Headers = Type.Union(
  [HeaderMap, Type.Array(Type.Object({ key: Type.String(), value: Type.String() }, { additionalProperties: false }))],
  {
    description: 'an object, or a list of key and value',
  },
)

/** The schema of an HTTP endpoint in an answer. */
export const EndpointOut = Type.Object(
  {
    id: Type.String({ format: 'uuid' }),
    name: Name,
    url: Type.Optional(Type.String()),
    local: Type.Optional(Type.Literal(true)),
    path: Type.Optional(Type.String({ description: 'of a local one' })),
    'webhook.site': Type.Optional(Type.Literal(true, { description: 'in the place of a url: it has none yet' })),
    headers: HeaderMap,
    encrypted_headers: Type.Record(Type.String(), Type.String(), { description: 'values are shown only in part' }),
  },
  { title: 'HttpEndpoint' },
)

/** The schema of an HTTP endpoint in a request, and in an entry of `http_endpoints`. */
export const EndpointIn = Type.Object(
  {
    name: Type.Optional(Name),
    url: Type.Optional(Type.String({ description: 'http or https' })),
    headers: Type.Optional(Headers),
    encrypted_headers: Type.Optional(Type.Union([Headers, Type.String()], { description: 'as headers, and secret' })),
    local: Type.Optional(
      Type.Union([Type.Boolean(), Type.Literal('true'), Type.Literal('false')], { description: 'reached through a development tunnel' }),
    ),
    path: Type.Optional(Type.String({ description: 'of a local one' })),
    'webhook.site': Type.Optional(
      Type.Union([Type.Boolean(), Type.Literal('true'), Type.Literal('false')], {
        description: 'makes an address at a public test service',
      }),
    ),
    ...readOnly(),
  },
  { additionalProperties: false, title: 'HttpEndpointInput' },
)

const MAX_URL = 4096
/** Where the test service makes addresses. */
const TEST_SERVICE = 'https://webhook.site/'
/** How an older version showed encrypted headers: means those that are stored. */
const isSummary = (given: unknown): given is string => typeof given === 'string' && /^\(\d+ encrypted header\(s\)\)/.test(given)

/** Shows an HTTP endpoint, of its secrets only enough to know them. */
export function endpointOut({ id, name, kind, url, headers, encryptedHeaders }: HttpEndpoint): Record<string, unknown> {
  return {
    id,
    name,
    ...(kind === 'local' ? { local: true, path: url } : url === NO_URL ? { 'webhook.site': true } : { url: shownUrl(url) }),
    headers,
    encrypted_headers: Object.fromEntries(Object.entries(encryptedHeaders).map(([key, value]) => [key, obfuscated(value)])),
  }
}

type Body = Readonly<Record<string, unknown>>

/**
 * @param known whose secrets may be given as they are shown
 * @returns a whole endpoint; without a URL when a test service is to make one
 * @throws EngineError VALIDATION_FAILED
 */
export function newEndpoint(body: Body, known?: HttpEndpoint): Omit<EndpointInput, 'url'> & Readonly<{ url: string | undefined }> {
  const { changes, reasons } = read(body, { known, isLocal: isTrue(body['local']) })
  if (changes.name === undefined && !reasons.some(([field]) => field === 'name')) reasons.push(['name', 'is missing'])
  const kind: HttpEndpoint['kind'] = isTrue(body['local']) ? 'local' : 'external'
  const isTest = isTrue(body['webhook.site'])
  if (kind === 'external' && changes.url === undefined && !isTest && !reasons.some(([field]) => field === 'url'))
    reasons.push(['url', 'is missing'])
  if (isTest && (changes.url !== undefined || kind === 'local')) reasons.push(['webhook.site', 'cannot be set beside url or local'])
  if (reasons.length > 0) throw invalid(reasons)
  const { name = '', url, headers = {}, encryptedHeaders = {} } = changes
  if (url === undefined) return { name, kind, url: kind === 'local' ? '' : undefined, headers, encryptedHeaders }
  return withoutLogin({ name, kind, url, headers, encryptedHeaders })
}

/** @throws EngineError VALIDATION_FAILED */
export function endpointChanges(endpoint: HttpEndpoint, body: Body): Partial<EndpointInput> {
  const { changes, reasons } = read(body, { known: endpoint, isLocal: endpoint.kind === 'local' })
  if (body['local'] !== undefined && isTrue(body['local']) !== (endpoint.kind === 'local')) reasons.push(['local', 'cannot be changed'])
  if (isTrue(body['webhook.site']) && endpoint.url !== NO_URL) reasons.push(['webhook.site', 'cannot be changed'])
  if (reasons.length > 0) throw invalid(reasons)
  if (changes.url === undefined) return changes
  const { authorization: _, ...others } = endpoint.encryptedHeaders // a new login goes before the one that is stored
  const { url, headers = endpoint.headers, encryptedHeaders = others } = changes
  const moved = withoutLogin({ url, headers, encryptedHeaders })
  return moved.url === url ? changes : { ...changes, ...moved }
}

/** Describes how HTTP endpoints stand in a file. */
export const ENDPOINT: ResourceForm<'http_endpoint', Readonly<{ input: EndpointInput }>> = {
  section: 'http_endpoints',
  noun: NOUN_OF.http_endpoint,
  schema: EndpointIn,
  read: (entry, { known }) => {
    const isTold = isSummary(entry['encrypted_headers'])
    if (isTold && !known)
      throw invalid([['encrypted_headers', 'is a summary, which has only the number of headers: give the headers with their values']])
    const { url, ...input } = newEndpoint(isTold ? { ...entry, encrypted_headers: known?.encryptedHeaders } : entry, known)
    return { input: { ...input, url: url ?? (known?.url.startsWith(TEST_SERVICE) ? known.url : NO_URL) } }
  },
  entry: ({ name, kind, url, headers, encryptedHeaders }, secret) => {
    const encrypted = Object.entries(encryptedHeaders).map(([key, value]) => [key, secret(value)])
    return {
      name,
      ...(kind === 'local'
        ? { local: true, ...(url !== '' && { path: url }) }
        : url === NO_URL
          ? { 'webhook.site': true }
          : { url: shownUrl(url, secret) }),
      ...(Object.keys(headers).length > 0 && { headers }),
      ...(encrypted.length > 0 && { encrypted_headers: Object.fromEntries(encrypted) }),
    }
  },
}

function read(
  body: Body,
  { known, isLocal }: Readonly<{ known: HttpEndpoint | undefined; isLocal: boolean }>,
): { changes: Partial<EndpointInput>; reasons: Reason[] } {
  const reasons: Reason[] = Object.keys(body)
    .filter((name) => !Object.hasOwn(EndpointIn.properties, name))
    .map((name) => [name.slice(0, 60), 'is not a field of an HTTP endpoint'] as const)
  const changes: { -readonly [K in keyof EndpointInput]?: EndpointInput[K] } = {}
  const { name, url, path, headers, encrypted_headers: encrypted } = body
  if (name !== undefined) {
    if (typeof name === 'string' && isName(name)) changes.name = name
    else reasons.push(['name', 'may have only letters, digits, "_", "." and "-"'])
  }
  if (isLocal) {
    if (url !== undefined) reasons.push(['url', 'cannot be set for a local endpoint'])
    if (path !== undefined && (typeof path !== 'string' || !/^(?:\/[^\s?#]*)?$/.test(path)))
      reasons.push(['path', 'must be a text that begins with /'])
    else if (path !== undefined) changes.url = path
  } else {
    if (path !== undefined) reasons.push(['path', 'is only for local endpoints'])
    if (url !== undefined) {
      const wrong = wrongUrl(url)
      if (wrong) reasons.push(['url', wrong])
      else changes.url = urlMeant(String(url), known?.url, (reason) => reasons.push(['url', reason]))
    }
  }
  if (headers !== undefined) changes.headers = headersOf(headers, 'headers', reasons)
  if (encrypted !== undefined && !isSummary(encrypted)) {
    const given = headersOf(encrypted, 'encrypted_headers', reasons)
    const tell = (reason: string) => reasons.push(['encrypted_headers', reason])
    const meant = Object.entries(given).map(([name, secret]) => [name, secretMeant(secret, known?.encryptedHeaders[name], tell)])
    changes.encryptedHeaders = Object.fromEntries(meant)
  }
  return { changes, reasons }
}

function wrongUrl(url: unknown): string | undefined {
  if (typeof url !== 'string' || url === '') return 'must be a URL, http:// or https://'
  if (url.length > MAX_URL) return `must have at most ${MAX_URL} characters`
  const [, scheme, authority = ''] = /^([a-z][a-z0-9+.-]*):\/\/([^/?#]*)/i.exec(url) ?? []
  if (scheme === undefined || !/^https?$/i.test(scheme)) return 'must begin with http:// or https://'
  const host = authority.replace(/^.*@/, '')
  const [, name = '', port] = /^(.*?)(?::(\d*))?$/.exec(host) ?? []
  if (!/^(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])$/.test(name)) return 'must name a host of letters, digits, "." and "-"'
  if (port !== undefined && !(Number(port) >= 1 && Number(port) <= 65_535)) return 'must have a port from 1 to 65535'
  return URL.canParse(url) && !/[\s\\]/.test(url) ? undefined : 'is not a URL'
}

function headersOf(given: unknown, field: string, reasons: Reason[]): Record<string, string> {
  const entries = Array.isArray(given)
    ? given.map((entry: unknown) => (isObject(entry) ? [entry['key'], entry['value']] : []))
    : isObject(given)
      ? Object.entries(given)
      : undefined
  if (!entries) {
    reasons.push([field, 'must be an object, or a list of key and value'])
    return {}
  }
  if (entries.length > MAX_HEADERS) reasons.push([field, `must have at most ${MAX_HEADERS} headers`])
  const headers: Record<string, string> = Object.create(null)
  for (const [key, value] of entries) {
    const text = typeof value === 'number' || typeof value === 'boolean' ? String(value) : value // as YAML reads what has no quotes
    if (typeof key !== 'string' || typeof text !== 'string') reasons.push([field, 'must have texts as keys and values'])
    else if (!isHeader(key, text)) reasons.push([field, `has a header that HTTP does not allow: ${key.slice(0, 60)}`])
    else headers[key] = text
  }
  return { ...headers }
}

const isTrue = (value: unknown): boolean => value === true || value === 'true'
