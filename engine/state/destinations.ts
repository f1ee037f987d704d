/** Where messages go, as far as it is the same for all destinations. Each type describes its own settings, in sinks/. */
import type { TObject } from 'typebox'

/** Holds the type of a destination, and the settings that its schema has. */
export type Destination = Readonly<{ type: string; [setting: string]: unknown }>

/** Marks a setting in its schema as secret: it is stored encrypted, never logged, and shown only in part. */
export const SECRET = { secret: true } as const

/** The settings of each type. */
export type DestinationSchemas = ReadonlyMap<string, TObject>

/** Lists the fields of a destination that hold secrets: texts, or lists of texts. */
export function secretFields(schemas: DestinationSchemas, type: string): readonly string[] {
  const schema = schemas.get(type)
  if (!schema) throw new Error(`there is no destination of type ${type}, so nothing says what of it is secret`)
  return Object.entries(schema.properties)
    .filter(([, field]) => JSON.stringify(field).includes('"secret":true'))
    .map(([name]) => name)
}

/** Gives the name of the HTTP endpoint of a destination; undefined: it has an address of its own, or needs none. */
export const endpointName = ({ http_endpoint: name }: Destination): string | undefined => (typeof name === 'string' ? name : undefined)

/** Says where webhooks go: to a URL, with headers, of which some are secrets. */
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

/** The URL of an external HTTP endpoint that has none yet. */
export const NO_URL = ''
/** Says why nothing can be sent to an HTTP endpoint; undefined: it has an address. */
export function withoutAddress({ kind, url }: Pick<HttpEndpoint, 'kind' | 'url'>): string | undefined {
  if (kind === 'local') return 'the HTTP endpoint is local: no development tunnel is open'
  return url === NO_URL
    ? 'the HTTP endpoint has no url yet: an address at webhook.site is made only where one is asked for over the API'
    : undefined
}

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
