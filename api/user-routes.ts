/**
 * Users of the console (docs/security.md): sessions, the first set-up, users and invitations. A session is a cookie, which the browser
 * sends by itself; so what it changes must come from our own pages.
 */
import type { FastifyReply, FastifyRequest } from 'fastify'
import { Type } from 'typebox'
import { checker } from '../actors/resources/form.ts'
import { SESSION_SECONDS, type From, type SignedIn, type UserEdits } from '../actors/resources/user-edits.ts'
import { EngineError, ERRORS } from '../engine/errors.ts'
import { clientNetwork } from '../engine/net/ip-address.ts'
import { MAX_PASSWORD, MIN_PASSWORD } from '../engine/state/passwords.ts'
import { emailOf, ROLES, type Invitation, type Role, type User } from '../engine/state/users.ts'
import { cookieText, refuseForeignPage, sessionSecret, SESSION_COOKIE } from './http/session.ts'
import { objectBody, pathParameter, type Operation } from './http/operation.ts'
import type { WrongTries } from './http/wrong-tries.ts'
import { endAtIssuer, isSecure, type Oidc } from './oidc/oidc-routes.ts'

/** The calls that the routes of users make. */
export type UserPort = Pick<
  UserEdits,
  | 'needsSetup'
  | 'setUp'
  | 'signIn'
  | 'userOf'
  | 'signOut'
  | 'changePassword'
  | 'list'
  | 'changeRole'
  | 'remove'
  | 'invitations'
  | 'invite'
  | 'withdraw'
  | 'accept'
>

const strict = { additionalProperties: false } as const
const Email = Type.String({ pattern: '^[^@\\s]{1,64}@[^@\\s]{1,190}$', description: 'an email address' })
const NewPassword = Type.String({ minLength: MIN_PASSWORD, maxLength: MAX_PASSWORD })
const GivenPassword = Type.String({ minLength: 1, maxLength: MAX_PASSWORD })
const AnyRole = Type.Unsafe<Role>(Type.Union(Object.keys(ROLES).map((role) => Type.Literal(role)), { description: 'viewer: read; editor: manage; admin: admin' })) // prettier-ignore
const SignIn = Type.Object({ email: Email, password: GivenPassword }, strict)
const SetUp = Type.Object(
  {
    code: Type.String({ description: 'the set-up code, which tailrace user setup-code prints' }),
    account: Type.Optional(Type.String({ minLength: 1, description: 'absent: the one that there is, or a new one named "default"' })),
    email: Email,
    password: NewPassword,
  },
  strict,
)
const Accept = Type.Object({ token: Type.String({ minLength: 1, description: 'of the invitation' }), password: NewPassword }, strict)
const ChangePassword = Type.Object({ current_password: GivenPassword, password: NewPassword }, strict)
const Invite = Type.Object({ email: Email, role: AnyRole }, strict)
const ChangeRole = Type.Object({ role: AnyRole }, strict)
const UserOut = Type.Object({
  id: Type.String({ format: 'uuid' }),
  email: Type.String(),
  name: Type.Union([Type.String(), Type.Null()], { description: 'as the OIDC issuer has it' }),
  role: Type.String(),
  account: Type.String(),
  inserted_at: Type.String(),
})
const InvitationOut = Type.Object({
  id: Type.String({ format: 'uuid' }),
  email: Type.String(),
  role: Type.String(),
  inserted_at: Type.String(),
  expires_at: Type.String(),
})
const SessionOut = Type.Object({
  user: Type.Union([UserOut, Type.Null()], { description: 'who has signed in' }),
  setup_needed: Type.Boolean({ description: 'there is no admin yet' }),
})
const Ways = Type.Object({
  password: Type.Boolean({ description: 'with email and password' }),
  oidc: Type.Boolean({ description: 'by the link /api/session/oidc' }),
})
const Success = Type.Object({ success: Type.Literal(true) })
const SignedOut = Type.Object({
  ...Success.properties,
  end_session_url: Type.Optional(Type.String({ description: 'of the OIDC issuer: a browser that goes there signs out there, too' })),
})

const [checkSignIn, checkSetUp, checkAccept] = [checker(SignIn), checker(SetUp), checker(Accept)]
const [checkPassword, checkInvite, checkRole] = [checker(ChangePassword), checker(Invite), checker(ChangeRole)]

const userOut = ({ id, email, name, role, account, insertedAt }: User) => ({
  id,
  email,
  name: name ?? null,
  role,
  account: account.name,
  inserted_at: insertedAt.toISOString(),
})
const invitationOut = ({ id, email, role, insertedAt, expiresAt }: Invitation) => ({
  id,
  email,
  role,
  inserted_at: insertedAt.toISOString(),
  expires_at: expiresAt.toISOString(),
})

type UserOptions = Readonly<{
  users: UserPort
  /** slows who tries passwords, by email and by address */
  wrongPasswords: WrongTries
  /** false: nobody signs in by a password */
  hasPasswords: boolean
  oidc: Oidc | undefined
}>

/** Makes the routes of users. */
export function userOperations({ users, wrongPasswords, hasPasswords, oidc }: UserOptions): Operation[] {
  /** @throws EngineError PASSWORDS_OFF */
  const refuseWithoutPasswords = () => {
    if (!hasPasswords) throw new EngineError('PASSWORDS_OFF', ERRORS.PASSWORDS_OFF.meaning)
  }
  /** Does what takes a password: who has tried wrong ones waits before it, and who fails waits for the answer. @param by emails, if known */
  const slowed = async <T>({ ip }: FastifyRequest, by: readonly string[], work: () => Promise<T>): Promise<T> => {
    const tries = [clientNetwork(ip), ...by]
    await Promise.all(tries.map((one) => wrongPasswords.before(one)))
    try {
      return await work()
    } catch (error) {
      const isTry = error instanceof EngineError && (error.code === 'SIGN_IN_FAILED' || error.code === 'SETUP_REFUSED')
      if (isTry) await Promise.all(tries.map((one) => wrongPasswords.slow(one)))
      throw error
    }
  }
  /** Lets somebody sign in. */
  const signedIn = async (request: FastifyRequest, reply: FastifyReply, by: readonly string[], work: (from: From) => Promise<SignedIn>) => {
    refuseForeignPage(request)
    const from = { address: request.ip, client: request.headers['user-agent']?.slice(0, 200) }
    const { user, secret } = await slowed(request, by, () => work(from))
    reply.header('set-cookie', sessionCookie(request, secret, SESSION_SECONDS))
    return { user: userOut(user), setup_needed: false }
  }
  const sessionCookie = (request: FastifyRequest, value: string, seconds: number) =>
    cookieText(SESSION_COOKIE, value, { seconds, isSecure: isSecure(request, oidc?.publicUrl) })
  /** The user of the request's session; undefined: nobody has signed in. */
  const sessionOf = async (request: FastifyRequest): Promise<Readonly<{ user: User; secret: string }> | undefined> => {
    const secret = sessionSecret(request)
    const user = secret === undefined ? undefined : await users.userOf(secret)
    return user && secret !== undefined ? { user, secret } : undefined
  }
  const session = { paths: ['/api/session'], scope: 'open' as const }
  return [
    {
      ...session,
      id: 'getSession',
      methods: ['GET'],
      summary: 'Who has signed in, and how one may',
      answer: {
        description: 'The user of the session, if any.',
        schema: Type.Object({ ...SessionOut.properties, sign_in: Ways }),
      },
      errors: [503],
      handle: async (request) => {
        const own = await sessionOf(request)
        return {
          user: own ? userOut(own.user) : null,
          setup_needed: await users.needsSetup(),
          sign_in: { password: hasPasswords, oidc: oidc !== undefined },
        }
      },
    },
    {
      ...session,
      id: 'signIn',
      methods: ['POST'],
      summary: 'Sign in',
      description: 'The answer sets the cookie of a session. Who tries wrong passwords is slowed.',
      body: SignIn,
      answer: { description: 'Who has signed in.', schema: SessionOut },
      errors: [400, 401, 403, 422, 429, 503],
      handle: (request, reply) => {
        refuseWithoutPasswords()
        const given = checkSignIn(objectBody(request))
        return signedIn(request, reply, [emailOf(given.email)], (from) => users.signIn(given, from))
      },
    },
    {
      ...session,
      id: 'signOut',
      methods: ['DELETE'],
      summary: 'Sign out',
      answer: { description: 'The session has ended.', schema: SignedOut },
      errors: [403, 503],
      handle: async (request, reply) => {
        refuseForeignPage(request)
        const secret = sessionSecret(request)
        if (secret !== undefined) await users.signOut(secret)
        reply.header('set-cookie', sessionCookie(request, '', 0))
        const url = await endAtIssuer(oidc, request, reply)
        return { success: true, ...(url !== undefined && { end_session_url: url }) }
      },
    },
    {
      ...session,
      id: 'changePassword',
      methods: ['PATCH'],
      summary: 'Change one’s own password',
      description: 'All other sessions of the user end.',
      body: ChangePassword,
      answer: { description: 'It is changed.', schema: Success },
      errors: [400, 401, 403, 422, 429, 503],
      handle: async (request) => {
        refuseForeignPage(request)
        refuseWithoutPasswords()
        const own = await sessionOf(request)
        if (!own) throw new EngineError('SIGN_IN_FAILED', 'nobody has signed in')
        const { user, secret } = own
        const { current_password: current, password } = checkPassword(objectBody(request))
        await slowed(request, [user.email], () => users.changePassword(user, { current, password }, secret))
        return { success: true }
      },
    },
    {
      id: 'setUp',
      methods: ['POST'],
      paths: ['/api/session/setup'],
      summary: 'Make the first admin of all, and sign in',
      scope: 'open',
      body: SetUp,
      answer: { description: 'Who has signed in.', schema: SessionOut },
      errors: [400, 403, 422, 429, 503],
      handle: (request, reply) => {
        const given = checkSetUp(objectBody(request))
        return signedIn(request, reply, [], (from) => users.setUp(given, from))
      },
    },
    {
      id: 'acceptInvitation',
      methods: ['POST'],
      paths: ['/api/session/invitation'],
      summary: 'Accept an invitation, and sign in',
      scope: 'open',
      body: Accept,
      answer: { description: 'Who has signed in.', schema: SessionOut },
      errors: [400, 401, 403, 422, 429, 503],
      handle: (request, reply) => {
        refuseWithoutPasswords()
        const { token: secret, password } = checkAccept(objectBody(request))
        return signedIn(request, reply, [], (from) => users.accept({ secret, password }, from))
      },
    },
    {
      id: 'listUsers',
      methods: ['GET'],
      paths: ['/api/users'],
      summary: 'List users',
      scope: 'admin',
      answer: { description: 'All users of the account.', schema: Type.Object({ data: Type.Array(UserOut) }) },
      errors: [503],
      handle: async (_request, _reply, account) => ({ data: (await users.list(account)).map(userOut) }),
    },
    {
      id: 'updateUser',
      methods: ['PATCH', 'PUT'],
      paths: ['/api/users/{id}'],
      summary: 'Give a user another role',
      scope: 'admin',
      body: ChangeRole,
      answer: { description: 'The user.', schema: UserOut },
      errors: [400, 404, 422, 503],
      handle: async (request, _reply, account) =>
        userOut(await users.changeRole(account, pathParameter(request, 'id'), checkRole(objectBody(request)).role)),
    },
    {
      id: 'deleteUser',
      methods: ['DELETE'],
      paths: ['/api/users/{id}'],
      summary: 'Delete a user',
      description: 'All sessions of the user end.',
      scope: 'admin',
      answer: { description: 'It is deleted.', schema: Success },
      errors: [404, 422, 503],
      handle: async (request, _reply, account) => {
        await users.remove(account, pathParameter(request, 'id'))
        return { success: true }
      },
    },
    {
      id: 'listInvitations',
      methods: ['GET'],
      paths: ['/api/invitations'],
      summary: 'List invitations that are open',
      scope: 'admin',
      answer: { description: 'Without their texts.', schema: Type.Object({ data: Type.Array(InvitationOut) }) },
      errors: [503],
      handle: async (_request, _reply, account) => ({ data: (await users.invitations(account)).map(invitationOut) }),
    },
    {
      id: 'createInvitation',
      methods: ['POST'],
      paths: ['/api/invitations'],
      summary: 'Invite somebody',
      description:
        'The text of the invitation is shown in this answer and never again: who has it becomes the user. It is good for seven days.',
      scope: 'admin',
      body: Invite,
      answer: { description: 'The invitation.', schema: Type.Object({ ...InvitationOut.properties, token: Type.String() }) },
      errors: [400, 422, 503],
      handle: async (request, _reply, account) => {
        const { secret, ...made } = await users.invite(account, checkInvite(objectBody(request)))
        return { ...invitationOut(made), token: secret }
      },
    },
    {
      id: 'deleteInvitation',
      methods: ['DELETE'],
      paths: ['/api/invitations/{id}'],
      summary: 'Withdraw an invitation',
      scope: 'admin',
      answer: { description: 'It is withdrawn.', schema: Success },
      errors: [404, 503],
      handle: async (request, _reply, account) => {
        await users.withdraw(account, pathParameter(request, 'id'))
        return { success: true }
      },
    },
  ]
}
