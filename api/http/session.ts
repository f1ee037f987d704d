/** The session of a request: its cookie, and whether the request comes from one of our own pages. Nothing here does I/O. */
import type { FastifyRequest } from 'fastify'
import { EngineError } from '../../engine/errors.ts'

/** The name of the cookie that holds the secret of a session. */
export const SESSION_COOKIE = 'tailrace_session'
const SECRET = /^[\w-]{43}$/

/** Finds the secret of the session in the cookies of a request. */
export function sessionSecret({ headers }: Pick<FastifyRequest, 'headers'>): string | undefined {
  for (const part of headers.cookie?.split(';') ?? []) {
    const [name, value = ''] = part.trim().split('=', 2)
    if (name === SESSION_COOKIE && SECRET.test(value)) return value
  }
  return undefined
}

/**
 * A browser sends the cookie by itself, also with what another site makes it send; then it says where that comes from. A program that says
 * nothing of it is no browser, and has no cookie but its own.
 * @throws EngineError PAGE_FOREIGN
 */
export function refuseForeignPage({ headers }: Pick<FastifyRequest, 'headers'>): void {
  const { origin, host, 'sec-fetch-site': site } = headers
  const isOurs = site === undefined ? origin === undefined || hostOf(origin) === host : site === 'same-origin' || site === 'none'
  if (!isOurs) throw new EngineError('PAGE_FOREIGN', 'the request comes from a page of another site')
}

const hostOf = (origin: string): string | undefined => URL.parse(origin)?.host
