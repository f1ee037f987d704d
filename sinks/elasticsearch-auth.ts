/** How requests to an Elasticsearch log in: the header, and every form in which a secret leaves us. Pure. */
import type { ElasticsearchDestination } from './elasticsearch-settings.ts'

const HEADER_VALUE = /^[\x21-\x7e]+$/

type Login = Readonly<{ header: string | undefined; secrets: readonly string[] }>

/** @returns what is wrong with the login's value; undefined: nothing */
export function loginProblem({ auth_type, auth_value }: Pick<ElasticsearchDestination, 'auth_type' | 'auth_value'>): string | undefined {
  if (auth_type === 'none') return undefined
  const value = auth_value ?? ''
  if (value === '') return 'is missing: every auth_type but none needs it'
  if (value.includes(':') && auth_type !== 'bearer') return undefined // gets encoded
  if (auth_type === 'basic' && base64Text(value) === undefined) return 'must be user:password, or the base64 of it'
  return HEADER_VALUE.test(value) ? undefined : 'must have only visible ASCII characters and no spaces: it is sent as a header'
}

/** Makes the header that logs in, and lists what must not be kept of answers. */
export function loginOf({ auth_type, auth_value }: ElasticsearchDestination): Login {
  const value = auth_value ?? ''
  if (auth_type === 'none' || value === '') return { header: undefined, secrets: [] }
  if (auth_type === 'bearer') return { header: `Bearer ${value}`, secrets: [value] }
  // "user:password", and "id:key" as API keys are given out beside their encoded form; the encoded one holds no colon
  const plain = value.includes(':') ? value : base64Text(value)
  const encoded = value.includes(':') ? Buffer.from(value).toString('base64') : value
  const secret = plain?.slice(plain.indexOf(':') + 1)
  return {
    header: `${auth_type === 'basic' ? 'Basic' : 'ApiKey'} ${encoded}`,
    secrets: [value, encoded, ...(plain === undefined ? [] : [plain]), ...(secret === undefined ? [] : [secret])],
  }
}

/** What the base64 of a text with a colon in it says; undefined: it is none. */
function base64Text(value: string): string | undefined {
  if (!/^[A-Za-z0-9+/]+={0,2}$/.test(value)) return undefined
  const bytes = Buffer.from(value, 'base64')
  if (bytes.toString('base64').replace(/(?<!=)=+$/, '') !== value.replace(/(?<!=)=+$/, '')) return undefined
  const text = bytes.toString('utf8')
  return text.includes(':') ? text : undefined
}
