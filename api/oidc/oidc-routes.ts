/**
 * Sign-in by an OIDC issuer (docs/oidc.md): a browser comes to the first route, is sent to the issuer, and comes back to the second one with a
 * code, which we change for an ID token. Its cookie between the two says that both are one browser.
 */
import type { FastifyReply, FastifyRequest } from 'fastify'
import { Type } from 'typebox'
import type { IssuerUsers } from '../../actors/resources/issuer-users.ts'
import { SESSION_SECONDS } from '../../actors/resources/user-edits.ts'
import { EngineError, ERRORS, fieldRefused } from '../../engine/errors.ts'
import { clientNetwork } from '../../engine/net/ip-address.ts'
import { queryOf, type Operation } from '../http/operation.ts'
import { cookieIn, cookieText, SESSION_COOKIE } from '../http/session.ts'
import type { WrongTries } from '../http/wrong-tries.ts'
import { CALLBACK_PATH, type Issuer } from './issuer.ts'
import { TICKET_SECONDS, type Tickets } from './sign-in-ticket.ts'

/** Sign-in by OIDC, as it is set up. */
export type Oidc = Readonly<{
  issuer: Pick<Issuer, 'begin' | 'complete' | 'endSessionUrl'>
  users: Pick<IssuerUsers, 'signIn'>
  tickets: Tickets
  /** where browsers reach the service */
  publicUrl: string
}>

/** The cookies of a sign-in are sent to paths below this one: no other route needs them. */
const COOKIE_PATH = '/api/session'
const TICKET_COOKIE = 'tailrace_sign_in'
const SEALED = /^[\w-]{1,4000}$/
/** The ID token of the sign-in, for the issuer to know whom to sign out; in the browser, so that nobody else has it. */
const ID_TOKEN_COOKIE = 'tailrace_id_token'
const ID_TOKEN = /^(?:[\w-]+\.[\w-]+\.[\w-]+|-)$/
/** Stands in the cookie for an ID token that is too long for one: browsers take no longer cookies. */
const TOO_LONG = '-'
const MAX_ID_TOKEN = 3_500
const MAX_TARGET = 500

const Begin = Type.Object({
  to: Type.Optional(Type.String({ maxLength: MAX_TARGET, description: 'path of this service to go to in the end (/)' })),
})
const Back = Type.Object({
  state: Type.Optional(Type.String()),
  code: Type.Optional(Type.String()),
  error: Type.Optional(Type.String({ description: 'why the issuer refuses' })),
})

/** Makes the routes of sign-in by OIDC. @param oidc undefined: it is not set up @param failed slows whose sign-ins fail, by address */
export function oidcOperations(oidc: Oidc | undefined, failed: WrongTries): Operation[] {
  /** @throws EngineError OIDC_OFF */
  const setUp = (): Oidc => {
    if (!oidc) throw new EngineError('OIDC_OFF', ERRORS.OIDC_OFF.meaning)
    return oidc
  }
  const send = (reply: FastifyReply, to: string) => reply.header('cache-control', 'no-store').header('location', to).send()
  return [
    {
      id: 'beginOidcSignIn',
      methods: ['GET'],
      paths: ['/api/session/oidc'],
      summary: 'Sign in by OIDC',
      description: 'A link for browsers: it leads to the issuer, and in the end to the path in `to`.',
      scope: 'open',
      query: Begin,
      answer: { description: 'To the issuer.', status: 302 },
      errors: [404, 422, 503],
      head: false,
      handle: async (request, reply) => {
        const { issuer, tickets, publicUrl } = setUp()
        const to = addressOf(queryOf(request)['to'] ?? '/', publicUrl)
        const { url, ...begun } = await issuer.begin()
        const cookie = { seconds: TICKET_SECONDS, isSecure: isSecure(request, publicUrl), path: COOKIE_PATH }
        reply.header('set-cookie', cookieText(TICKET_COOKIE, tickets.seal(begun, to), cookie))
        return send(reply, url)
      },
    },
    {
      id: 'endOidcSignIn',
      methods: ['GET'],
      paths: [CALLBACK_PATH],
      summary: 'Come back from the issuer',
      description: 'The issuer sends browsers here. The answer sets the cookie of a session. Whose sign-ins fail is slowed.',
      scope: 'open',
      query: Back,
      answer: { description: 'To the path that the sign-in was begun with.', status: 302 },
      errors: [401, 403, 404, 503],
      head: false,
      handle: async (request, reply) => {
        const { issuer, users, tickets, publicUrl } = setUp()
        const secure = isSecure(request, publicUrl)
        const by = clientNetwork(request.ip)
        await failed.before(by)
        try {
          const ticket = tickets.open(cookieIn(request, TICKET_COOKIE, SEALED), queryOf(request)['state'])
          reply.header('set-cookie', cookieText(TICKET_COOKIE, '', { seconds: 0, isSecure: secure, path: COOKIE_PATH }))
          const { person, idToken } = await issuer.complete(searchOf(request), ticket)
          const from = { address: request.ip, client: request.headers['user-agent']?.slice(0, 200) }
          const { secret } = await users.signIn(person, { state: ticket.state, endsAt: new Date(ticket.endsAt) }, from)
          const hint = idToken.length > MAX_ID_TOKEN ? TOO_LONG : idToken
          const cookie = { seconds: SESSION_SECONDS, isSecure: secure }
          reply.header('set-cookie', [
            cookieText(SESSION_COOKIE, secret, cookie),
            cookieText(ID_TOKEN_COOKIE, hint, { ...cookie, path: COOKIE_PATH }),
          ])
          return send(reply, ticket.to)
        } catch (error) {
          if (error instanceof EngineError && ERRORS[error.code].status < 500) await failed.slow(by)
          throw error
        }
      },
    },
  ]
}

/**
 * Ends what a sign-in by OIDC left in the browser. @returns where it has to go to sign out at the issuer, too; undefined: nowhere, for it did
 * not sign in there, or the issuer has no such place
 */
export async function endAtIssuer(oidc: Oidc | undefined, request: FastifyRequest, reply: FastifyReply): Promise<string | undefined> {
  const hint = oidc && cookieIn(request, ID_TOKEN_COOKIE, ID_TOKEN)
  if (hint === undefined) return undefined
  reply.header(
    'set-cookie',
    cookieText(ID_TOKEN_COOKIE, '', { seconds: 0, isSecure: isSecure(request, oidc?.publicUrl), path: COOKIE_PATH }),
  )
  return oidc?.issuer.endSessionUrl(hint === TOO_LONG ? undefined : hint)
}

/** Tells whether the browser speaks TLS, be it to a proxy in front of the service. */
export const isSecure = ({ protocol }: FastifyRequest, publicUrl: string | undefined): boolean =>
  protocol === 'https' || publicUrl?.startsWith('https:') === true

const searchOf = ({ raw }: FastifyRequest): string => {
  const { url = '' } = raw
  return url.includes('?') ? url.slice(url.indexOf('?')) : ''
}

/** @returns the whole address, for a path by itself may be read as another host @throws EngineError VALIDATION_FAILED: it leads elsewhere */
function addressOf(to: unknown, publicUrl: string): string {
  const { origin } = new URL(publicUrl)
  const isPath = typeof to === 'string' && to.length <= MAX_TARGET && /^\/(?![/\\])/.test(to)
  const target = isPath ? URL.parse(to, origin) : null
  if (target?.origin !== origin) throw fieldRefused('to', 'must be a path of this service, such as /sinks')
  return target.href
}
