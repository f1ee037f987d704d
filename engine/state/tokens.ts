/** API tokens: random, shown once, kept as a hash, and what each may do. A token has the entropy of a key, so a plain hash keeps it. */
import { hash, randomBytes } from 'node:crypto'
import type { Account } from './resources.ts'

/** What tokens and users may be allowed, from the least to all. */
export const SCOPES = ['receive', 'read', 'manage', 'admin'] as const
/** Names something that a token or a user may be allowed. */
export type Scope = (typeof SCOPES)[number]

/** The scopes that each has in it, beside itself. */
const INCLUDED: Readonly<Record<Scope, readonly Scope[]>> = {
  receive: [],
  read: [],
  manage: ['receive', 'read'],
  admin: ['receive', 'read', 'manage'],
}

/** Stands for all sinks of the account in the sinks of a token. */
export const ALL_SINKS = '*'

/** Says what a token or a user may do. @property sinks names of the sinks that `receive` is for */
export type Rights = Readonly<{ scopes: readonly Scope[]; sinks: readonly string[] }>

/** An API token as requests are checked by it. @property expiresAt milliseconds since 1970; absent: it does not end */
export type Token = Rights & Readonly<{ id: string; name: string; account: Account; expiresAt: number | undefined }>

/** Tells whether somebody may do what needs a scope. */
export const allows = ({ scopes }: Pick<Rights, 'scopes'>, wanted: Scope): boolean =>
  scopes.some((scope) => scope === wanted || INCLUDED[scope].includes(wanted))

/** Tells whether somebody may receive and acknowledge the messages of a sink. */
export const mayReceive = ({ scopes, sinks }: Rights, sink: string): boolean =>
  allows({ scopes }, 'manage') || (scopes.includes('receive') && (sinks.includes(ALL_SINKS) || sinks.includes(sink)))

/** Makes a token that nobody can guess. */
export const newToken = (): string => `tr_${randomBytes(24).toString('base64url')}`

/** Hashes a token, into lower-case hexadecimal. */
export const hashToken = (token: string): string => hash('sha256', token, 'hex')
