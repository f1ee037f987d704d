/** API tokens in requests, in the configuration file and in answers. Nothing here does I/O. */
import { Type, type Static } from 'typebox'
import { EngineError } from '../../engine/errors.ts'
import { Name } from '../../engine/resource-name.ts'
import type { StoredToken } from '../../engine/state/token-store.ts'
import { ALL_SINKS, SCOPES, type Rights, type Scope } from '../../engine/state/tokens.ts'
import { checker, invalid, readOnly, type Form } from './form.ts'

/** A token that is shorter can be guessed: those of files are taken, and a notice says so. */
export const LEAST_TOKEN = 8
const text = Type.String({ minLength: LEAST_TOKEN, description: 'the token itself' })
/** The fields that say what a token may do. */
const rights = {
  scopes: Type.Optional(
    Type.Unsafe<Scope[]>(
      Type.Array(Type.Union(SCOPES.map((scope) => Type.Literal(scope))), {
        minItems: 1,
        uniqueItems: true,
        default: ['admin'],
        description:
          'receive: take and acknowledge messages of `sinks`; read: look at everything but secrets; manage: change everything but tokens and users; admin: all',
      }),
    ),
  ),
  sinks: Type.Optional(
    Type.Array(Type.Union([Name, Type.Literal(ALL_SINKS)]), {
      uniqueItems: true,
      description: 'of the scope receive: names of sinks, or "*" for all',
    }),
  ),
} as const

const strict = { additionalProperties: false } as const
/** The schema of what a file says of an API token. */
export const TokenEntry = Type.Object({ name: Name, token: Type.String({ ...text, minLength: 1 }), ...rights, ...readOnly() }, strict)
/** The schema of a request for a new API token. */
export const TokenIn = Type.Object(
  {
    name: Name,
    token: Type.Optional({ ...text, description: 'the token itself; absent: one is made, which nobody can guess' }),
    ...rights,
    expires_at: Type.Optional(
      Type.String({ description: 'ISO 8601 time from which on it works no more; absent: it works until it is revoked' }),
    ),
    ...readOnly(),
  },
  { ...strict, title: 'ApiKeyInput' },
)
const NULLABLE_TIME = Type.Union([Type.String(), Type.Null()])
/** The schema of an API token in answers. */
export const TokenOut = Type.Object(
  {
    id: Type.String({ format: 'uuid' }),
    name: Type.String(),
    inserted_at: Type.String(),
    scopes: Type.Array(Type.String()),
    sinks: Type.Union([Type.Array(Type.String()), Type.Null()], { description: 'of the scope receive' }),
    expires_at: NULLABLE_TIME,
    last_used_at: Type.Union([Type.String(), Type.Null()], { description: 'to about a minute' }),
    made_by: Type.Union([Type.Literal('file'), Type.Literal('apply'), Type.Literal('api'), Type.Null()], {
      description: 'the file of the start, a file that a client applied, or the API; null: it is not known',
    }),
  },
  { title: 'ApiKey' },
)

const checkEntry = checker(TokenEntry)
const checkIn = checker(TokenIn)

/** Gives what a token may do. A token that says nothing may do everything. @throws EngineError VALIDATION_FAILED */
function rightsOf({ scopes = ['admin'], sinks = [] }: Partial<Rights>): Rights {
  const isForSinks = scopes.includes('receive')
  if (isForSinks && sinks.length === 0) throw invalid([['sinks', `must name the sinks that receive is for, or be ["${ALL_SINKS}"]`]])
  if (!isForSinks && sinks.length > 0) throw invalid([['sinks', 'belongs to the scope receive, which scopes does not have']])
  return { scopes, sinks }
}

/** Reads a token of a configuration file. @throws EngineError VALIDATION_FAILED */
export function tokenEntry(entry: Form): Rights & Readonly<{ name: string; token: string }> {
  const { name, token, ...given } = checkEntry(entry)
  return { name, token, ...rightsOf(given) }
}

/** Reads a request for a new token. @throws EngineError VALIDATION_FAILED */
export function newTokenOf(body: Form): Rights & Readonly<{ name: string; token: string | undefined; expiresAt: Date | undefined }> {
  const { name, token, expires_at, ...given } = checkIn(body)
  const expiresAt = expires_at === undefined ? undefined : new Date(expires_at)
  if (expiresAt && !(expiresAt.getTime() > Date.now())) {
    const reason = Number.isNaN(expiresAt.getTime()) ? 'must be a time such as 2027-01-31T00:00:00Z' : 'must be in the future'
    throw new EngineError('VALIDATION_FAILED', `expires_at ${reason}.`, { expires_at: reason })
  }
  return { name, token, expiresAt, ...rightsOf(given) }
}

/** Shows a token: never its text. */
export const tokenOut = (token: StoredToken): Static<typeof TokenOut> => ({
  id: token.id,
  name: token.name,
  inserted_at: token.insertedAt.toISOString(),
  ...rightsOut(token),
  expires_at: token.expiresAt?.toISOString() ?? null,
  last_used_at: token.usedAt?.toISOString() ?? null,
  made_by: token.madeBy ?? null,
})

/** Shows what a token may do. */
export const rightsOut = ({ scopes, sinks }: Rights) => ({ scopes: [...scopes], sinks: scopes.includes('receive') ? [...sinks] : null })
