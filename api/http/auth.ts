/** Who asks: the account behind `Authorization: Bearer <token>`. Tokens are known by their sha256 only, and looked up in
 *  memory: no database stands in the way of a request. */
import { EngineError } from '../../engine/errors.ts'
import type { Account } from '../../engine/state/resources.ts'
import type { ResourceLookup } from '../../engine/state/resource-cache.ts'
import { hashToken } from '../../engine/state/tokens.ts'

const BEARER = /^Bearer +([^\s]+) *$/i

/** Finds the account of a request by its token. @returns undefined: no header, another scheme, or a token that no account has */
export function accountOf(authorization: string | undefined, resources: Pick<ResourceLookup, 'findAccount'>): Account | undefined {
  const token = tokenIn(authorization)
  return token === undefined ? undefined : resources.findAccount(hashToken(token))
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

const tokenIn = (authorization = ''): string | undefined => BEARER.exec(authorization)?.[1]
