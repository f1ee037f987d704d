/**
 * Secrets on the wire: shown so that their owner knows which one it is, and nobody learns it. A value that is sent back as
 * it was shown means the one that is stored (contract 9.1).
 */

/** Most of what hides a long one. */
const MOST_STARS = 20

export function obfuscated(secret: string): string {
  const { length } = secret
  if (length <= 5) return '*'.repeat(length)
  if (length <= 9) return `${secret[0]}${'*'.repeat(length - 2)}${secret.at(-1)}`
  return `${secret.slice(0, 3)}${'*'.repeat(Math.min(length - 4, MOST_STARS))}${secret.at(-1)}`
}

/** @returns what is meant: the stored secret when `given` is how it is shown */
export const meant = (given: string, stored: string | undefined): string =>
  stored !== undefined && given === obfuscated(stored) ? stored : given

/** Whether a text has the form in which secrets are shown. */
const isObfuscated = (text: string): boolean => /^(?:\*{1,5}|.\*{4,7}.|.{3}\*{6,20}.)$/su.test(text)

/** @returns what is meant; undefined: it is some secret as it is shown, and not the stored one */
export function meantOrUnknown(given: string, stored: string | undefined): string | undefined {
  const text = meant(given, stored)
  return text === given && given !== stored && isObfuscated(given) ? undefined : text
}
