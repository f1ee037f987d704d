/** API tokens: random, shown once, kept as a hash. A token has the entropy of a key, so a plain hash keeps it. */
import { hash, randomBytes } from 'node:crypto'

/** Makes a token that nobody can guess. */
export const newToken = (): string => `tr_${randomBytes(24).toString('base64url')}`

/** Hashes a token, into lower-case hexadecimal. */
export const hashToken = (token: string): string => hash('sha256', token, 'hex')
