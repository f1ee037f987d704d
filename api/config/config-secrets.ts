/** Secrets of a configuration document: one may stand there as it is shown, and means the stored one then. Nothing here does I/O. */
import { isObject } from '../schema-reasons.ts'
import { meantOrUnknown, obfuscated } from '../sinks/secret-form.ts'

/**
 * @param given a text, a list of texts, or texts by name: an object, or a list of `key` and `value`
 * @param stored the same; undefined where there is none
 * @param tell of one that is shown in part, and isn't how a stored one is shown: asterisks are never taken for a secret
 * @returns what is given, with the secrets that are meant
 */
export function secretsMeant(given: unknown, stored: unknown, tell: (reason: string) => void): unknown {
  if (typeof given === 'string') {
    const meant = meantOrUnknown(given, typeof stored === 'string' ? stored : undefined)
    if (meant === undefined)
      tell(stored === undefined ? 'is a secret as an export shows it: give the whole one' : 'is a secret as an export shows it, and not the stored one: give the whole one') // prettier-ignore
    return meant ?? given
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
