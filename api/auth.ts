/** Who asks: the account behind `Authorization: Bearer <token>`. Tokens are known by their sha256 only, and looked up in
 *  memory: no database stands in the way of a request. */
import { hash } from 'node:crypto'
import { EngineError } from '../engine/errors.ts'
import type { Account } from '../engine/state/resources.ts'
import type { ResourcePort } from './engine-port.ts'

const BEARER = /^Bearer +([^\s]+) *$/i

/** @throws EngineError TOKEN_INVALID: no header, another scheme, or a token that no account has */
export function accountOf(authorization: string | undefined, resources: Pick<ResourcePort, 'findAccount'>): Account {
  if (authorization === undefined)
    throw new EngineError('TOKEN_INVALID', 'The request has no Authorization header; send "Authorization: Bearer <API token>".')
  const token = BEARER.exec(authorization)?.[1]
  if (token === undefined) throw new EngineError('TOKEN_INVALID', 'The Authorization header must be "Bearer <API token>".')
  const account = resources.findAccount(hash('sha256', token, 'hex'))
  if (!account) throw new EngineError('TOKEN_INVALID', 'The API token is not known.')
  return account
}
