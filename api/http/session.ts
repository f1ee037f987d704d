/** The session of a request: its cookies, and whether the request comes from one of our own pages. Nothing here does I/O. */
import type { FastifyRequest } from 'fastify'
import { EngineError } from '../../engine/errors.ts'

/** The name of the cookie that holds the secret of a session. */
export const SESSION_COOKIE = 'tailrace_session'
const SECRET = /^[\w-]{43}$/

/** Finds the secret of the session in the cookies of a request. */
export const sessionSecret = (request: Pick<FastifyRequest, 'headers'>): string | undefined => cookieIn(request, SESSION_COOKIE, SECRET)

/** Finds a cookie of a request. @param form of its values; those of another form don't count */
export function cookieIn({ headers }: Pick<FastifyRequest, 'headers'>, name: string, form: RegExp): string | undefined {
  for (const part of headers.cookie?.split(';') ?? []) {
    const [given, value = ''] = part.trim().split('=', 2)
    if (given === name && form.test(value)) return value
  }
  return undefined
}

/**
 * Makes the text that sets a cookie. Nothing on a page can read it, and the browser sends it from our own pages, or when somebody follows a
 * link. @param cookie.seconds 0: it is deleted @param cookie.isSecure the browser sends it over TLS alone @param cookie.path below which it is sent
 */
export function cookieText(
  name: string,
  value: string,
  { seconds, isSecure, path = '/' }: Readonly<{ seconds: number; isSecure: boolean; path?: string }>,
): string {
  const parts = [`${name}=${value}`, `Path=${path}`, `Max-Age=${seconds}`, 'HttpOnly', 'SameSite=Lax']
  return [...parts, ...(isSecure ? ['Secure'] : [])].join('; ')
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
