/**
 * Secrets on the wire: shown so that their owner knows which one it is, and nobody learns it. A value that is sent back as
 * it was shown means the one that is stored.
 */
import { isObject } from '../../engine/json.ts'

/** At most so many asterisks hide a long secret. */
const MOST_STARS = 20

/** Shows a secret: its first and last characters, and asterisks. */
export function obfuscated(secret: string): string {
  const { length } = secret
  if (length <= 5) return '*'.repeat(length)
  if (length <= 9) return `${secret[0]}${'*'.repeat(length - 2)}${secret.at(-1)}`
  return `${secret.slice(0, 3)}${'*'.repeat(Math.min(length - 4, MOST_STARS))}${secret.at(-1)}`
}

/** Parameters of a URL that look like keys, by their names. */
const KEY_NAME = /^(?:.*[_-])?(?:api[_-]?key|apikey|key|token|secret|passw(?:or)?d|pwd|sig|signature|auth|credential|code)$/i

/** Finds the names of what looks like a key in the query of a URL. */
export const keysIn = (url: string): readonly string[] => [...new Set(queryOf(url).flatMap(([name, value]) => (value === undefined ? [] : [name])))] // prettier-ignore

/** Shows a URL, its keys in part only. */
export function shownUrl(url: string, secret: (text: string) => string = obfuscated): string {
  const at = url.indexOf('?')
  if (keysIn(url).length === 0) return url
  const parts = queryOf(url).map(([, value, part]) =>
    value === undefined ? part : `${part.slice(0, part.indexOf('=') + 1)}${secret(value)}`,
  )
  return `${url.slice(0, at + 1)}${parts.join('&')}${url.slice(endOfQuery(url))}`
}

/**
 * Finds out which URL is meant: the stored one when it is given as it is shown. @param tell is called for a URL with hidden keys
 * that are not those of the stored one
 */
export function urlMeant(given: string, stored: string | undefined, tell: (reason: string) => void): string {
  if (stored !== undefined && given === shownUrl(stored)) return stored
  if (given !== stored && queryOf(given).some(([, value]) => value !== undefined && isObfuscated(value)))
    tell('has a shortened key, as answers show keys, and not that of the stored URL: give the whole key')
  return given
}

const endOfQuery = (url: string): number => (url.includes('#') ? url.indexOf('#') : url.length)

/** Each parameter: its name, its value if it looks like a key, and the text of both. */
function queryOf(url: string): (readonly [name: string, key: string | undefined, part: string])[] {
  const at = url.indexOf('?')
  if (at < 0 || at > endOfQuery(url)) return []
  return url
    .slice(at + 1, endOfQuery(url))
    .split('&')
    .map((part) => {
      const [name = '', ...value] = part.split('=')
      return [name, KEY_NAME.test(name) && value.join('=') !== '' ? value.join('=') : undefined, part]
    })
}

/** Whether a text has the form in which secrets are shown. */
const isObfuscated = (text: string): boolean => /^(?:\*{1,5}|.\*{4,7}.|.{3}\*{6,20}.)$/su.test(text)

/**
 * Finds out which secret is meant: the stored one when `given` is how that is shown. @param tell is called for a text that looks
 * like another hidden secret: asterisks are never taken for a secret
 */
export function secretMeant(given: string, stored: unknown, tell: (reason: string) => void): string {
  if (typeof stored === 'string' && given === obfuscated(stored)) return stored
  if (given !== stored && isObfuscated(given))
    tell(
      `is a shortened secret, as answers show secrets${stored === undefined ? '' : ', and not of the stored one'}: give the whole secret`,
    )
  return given
}

/**
 * @param given a text, a list of texts, or texts by name: an object, or a list of `key` and `value`
 * @param stored the same; undefined where there is none
 * @param tell of one that is shown in part, and isn't how a stored one is shown: asterisks are never taken for a secret
 * @returns what is given, with the secrets that are meant
 */
export function secretsMeant(given: unknown, stored: unknown, tell: (reason: string) => void): unknown {
  if (typeof given === 'string') return secretMeant(given, stored, tell)
  if (Array.isArray(given))
    return given.map((one: unknown) => {
      if (isObject(one))
        return { ...one, value: secretsMeant(one['value'], isObject(stored) ? stored[String(one['key'])] : undefined, tell) }
      const known = Array.isArray(stored) ? stored.find((secret) => typeof secret === 'string' && obfuscated(secret) === one) : undefined
      return secretsMeant(one, known, tell)
    })
  if (isObject(given))
    return Object.fromEntries(
      Object.entries(given).map(([key, value]) => [key, secretsMeant(value, isObject(stored) ? stored[key] : undefined, tell)]),
    )
  return given
}
