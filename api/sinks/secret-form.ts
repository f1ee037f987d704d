/**
 * Secrets on the wire: shown so that their owner knows which one it is, and nobody learns it. A value that is sent back as
 * it was shown means the one that is stored (contract 9.1).
 */
import { isObject } from '../form.ts'

/** Most of what hides a long one. */
const MOST_STARS = 20

export function obfuscated(secret: string): string {
  const { length } = secret
  if (length <= 5) return '*'.repeat(length)
  if (length <= 9) return `${secret[0]}${'*'.repeat(length - 2)}${secret.at(-1)}`
  return `${secret.slice(0, 3)}${'*'.repeat(Math.min(length - 4, MOST_STARS))}${secret.at(-1)}`
}

/** @returns what is meant: the stored secret when `given` is how it is shown */
const meant = (given: string, stored: string | undefined): string => (stored !== undefined && given === obfuscated(stored) ? stored : given)

/** Whether a text has the form in which secrets are shown. */
const isObfuscated = (text: string): boolean => /^(?:\*{1,5}|.\*{4,7}.|.{3}\*{6,20}.)$/su.test(text)

/** @returns what is meant; undefined: it is some secret as it is shown, and not the stored one */
function meantOrUnknown(given: string, stored: string | undefined): string | undefined {
  const text = meant(given, stored)
  return text === given && given !== stored && isObfuscated(given) ? undefined : text
}

/**
 * @param given a text, a list of texts, or texts by name: an object, or a list of `key` and `value`
 * @param stored the same; undefined where there is none
 * @param tell of one that is shown in part, and isn't how a stored one is shown: asterisks are never taken for a secret
 * @returns what is given, with the secrets that are meant
 */
export function secretsMeant(given: unknown, stored: unknown, tell: (reason: string) => void): unknown {
  if (typeof given === 'string') {
    const known = meantOrUnknown(given, typeof stored === 'string' ? stored : undefined)
    if (known === undefined) tell(`is a secret as it is shown${stored === undefined ? '' : ', and not the stored one'}: give the whole one`)
    return known ?? given
  }
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
