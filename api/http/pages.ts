/** Pages of lists. Without `limit` and `cursor` a list comes whole, as clients of the original read it. Nothing here does I/O. */
import type { FastifyRequest } from 'fastify'
import { Type, type TSchema } from 'typebox'
import { EngineError } from '../../engine/errors.ts'
import { queryOf } from './operation.ts'

const MAX_LIMIT = 1_000
const DEFAULT_LIMIT = 100

/** What a list takes. */
export const PageQuery = Type.Object({
  limit: Type.Optional(
    Type.Integer({ minimum: 1, maximum: MAX_LIMIT, description: `default ${DEFAULT_LIMIT} with a cursor; without both all come` }),
  ),
  cursor: Type.Optional(Type.String({ description: 'next_cursor of the page before' })),
})

/** Describes the answer of a list. */
export const listOut = <T extends TSchema>(one: T) =>
  Type.Object({
    data: Type.Array(one),
    next_cursor: Type.Optional(
      Type.String({ description: 'where the next page begins; only where a limit was asked for, and there are more' }),
    ),
  })

/** Says how the pages of a list are ordered: by a text that each of it has alone and keeps. */
type Order<T> = Readonly<{ key: (one: T) => string; isNewestFirst?: boolean }>
type Page<T> = Readonly<{ those: readonly T[]; next: Readonly<{ next_cursor?: string }> }>

/**
 * Takes the page of a list that a request asks for. What is there all the time comes once, whatever else is made or deleted meanwhile.
 * @throws EngineError REQUEST_INVALID
 */
export function pageOf<T>(request: FastifyRequest, all: readonly T[], { key, isNewestFirst = false }: Order<T>): Page<T> {
  const { limit, cursor } = queryOf(request)
  if (limit === undefined && cursor === undefined) return { those: all, next: {} }
  const most = /^\d{1,4}$/.test(String(limit ?? DEFAULT_LIMIT)) ? Number(limit ?? DEFAULT_LIMIT) : 0
  if (most < 1 || most > MAX_LIMIT) throw new EngineError('REQUEST_INVALID', `limit must be a whole number from 1 to ${MAX_LIMIT}.`)
  const after = cursor === undefined ? undefined : keyIn(String(cursor))
  const sign = isNewestFirst ? -1 : 1
  const compared = (a: string, b: string): number => (a < b ? -sign : a > b ? sign : 0)
  const rest = all.filter((one) => after === undefined || compared(key(one), after) > 0).toSorted((a, b) => compared(key(a), key(b)))
  const those = rest.slice(0, most)
  const last = those.at(-1)
  return { those, next: last !== undefined && rest.length > most ? { next_cursor: Buffer.from(key(last)).toString('base64url') } : {} }
}

function keyIn(cursor: string): string {
  const key = Buffer.from(cursor, 'base64url').toString()
  if (key !== '' && Buffer.from(key).toString('base64url') === cursor) return key
  throw new EngineError('REQUEST_INVALID', 'cursor must be the next_cursor of an answer.')
}
