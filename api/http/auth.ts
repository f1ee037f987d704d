/** Who asks, and what they may do: the token behind `Authorization: Bearer <token>`. Tokens are known by their sha256 only, and looked up in
 *  memory: no database stands in the way of a request. */
import type { FastifyRequest } from 'fastify'
import { EngineError } from '../../engine/errors.ts'
import type { Actor } from '../../engine/state/audit.ts'
import type { Account } from '../../engine/state/resources.ts'
import type { TokenLookup } from '../../engine/state/token-memory.ts'
import { allows, hashToken, mayReceive, SCOPES, type Rights, type Scope } from '../../engine/state/tokens.ts'

/** Who has sent a request. @property kind absent: a token has */
export type Caller = Rights & Readonly<{ kind?: 'user'; id: string; account: Account; name: string }>

declare module 'fastify' {
  interface FastifyRequest {
    /** null: it has no token, or one that is not known */
    caller: Caller | null
  }
}

const BEARER = /^Bearer +([^\s]+) *$/i

/** Finds who sends a request by its token. @returns undefined: no header, another scheme, or a token that no account has */
export function callerOf(authorization: string | undefined, tokens: TokenLookup): Caller | undefined {
  const token = tokenIn(authorization)
  return token === undefined ? undefined : tokens.find(hashToken(token))
}

/** Says why a request has no account. */
export function tokenInvalid(authorization: string | undefined): EngineError {
  if (authorization === undefined)
    return new EngineError('TOKEN_INVALID', 'The request has no Authorization header; send "Authorization: Bearer <API token>".')
  return new EngineError(
    'TOKEN_INVALID',
    tokenIn(authorization) === undefined ? 'The Authorization header must be "Bearer <API token>".' : 'The API token is not known.',
  )
}

/** Tells whether a request has what may be a token. */
export const hasToken = (authorization: string | undefined): boolean => tokenIn(authorization) !== undefined

const tokenIn = (authorization = ''): string | undefined => BEARER.exec(authorization)?.[1]

const MAX_CLIENT = 200

/** Says in whose name a request changes something, and where it comes from. */
export function actorOf({ caller, ip, headers }: FastifyRequest): Actor {
  const client = headers['user-agent']?.slice(0, MAX_CLIENT)
  const { kind = 'token', id = '', name = '' } = caller ?? {}
  return { kind, id, name, address: ip, ...(client !== undefined && { client }) }
}

/** Says that a request may not be made with its token. @param what needs the scope */
export function scopeMissing(caller: Pick<Caller, 'name' | 'scopes'>, scope: Scope, what = 'This request'): EngineError {
  const has = SCOPES.filter((one) => caller.scopes.includes(one)).join(', ')
  return new EngineError('SCOPE_MISSING', `${what} needs the scope "${scope}"; "${caller.name}" has: ${has}.`, { required_scope: scope })
}

/** Lets a request go on if who sent it may do what needs a scope. @param what needs it @throws EngineError SCOPE_MISSING, TOKEN_INVALID */
export function requireScope({ caller, headers }: FastifyRequest, scope: Scope, what?: string): void {
  if (!caller) throw tokenInvalid(headers.authorization)
  if (!allows(caller, scope)) throw scopeMissing(caller, scope, what)
}

/** Tells whether whoever has sent a request may do all there is. */
export const isAdmin = ({ caller }: FastifyRequest): boolean => caller !== null && allows(caller, 'admin')

/** Lets a request go on if who sent it may receive from a sink. @throws EngineError SCOPE_MISSING, TOKEN_INVALID */
export function requireReceive({ caller, headers }: FastifyRequest, sink: string): void {
  if (!caller) throw tokenInvalid(headers.authorization)
  if (!mayReceive(caller, sink)) throw scopeMissing(caller, 'receive', `The sink "${sink.slice(0, 100)}"`)
}
