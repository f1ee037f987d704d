/**
 * Users who sign in by an OIDC issuer. One who did so before is known by issuer and subject, whatever the email is now. Anybody else is
 * known by an email that the issuer has verified: as a user who signs in this way for the first time, or as somebody who was invited.
 * Others become users if their groups, or the settings, give them a role.
 */
import { EngineError } from '../../engine/errors.ts'
import type { Query } from '../../engine/postgres/query.ts'
import { actAs, record } from '../../engine/state/audit.ts'
import type { ResourceStore } from '../../engine/state/resource-store.ts'
import type { Store } from '../../engine/state/store.ts'
import { addIdentity, completeSignIn, setRoleByGroup, signInAlone, userByIdentity } from '../../engine/state/user-identities.ts'
import { addUser, beginSession, setName, setRole, takeInvitationTo, userByEmail, type Role, type User } from '../../engine/state/users.ts'
import { fieldChanges, plainly } from './audited-changes.ts'
import { refuseStranger, roleOfGroups, verifiedEmail, type IssuerPolicy, type Person } from './issuer-rights.ts'
import { accountOf, change, isLastAdmin, SESSION_DAYS, type From, type SignedIn } from './user-edits.ts'

type IssuerUsersOptions = Readonly<{ store: Store; resources: Pick<ResourceStore, 'saveAccount'>; policy: IssuerPolicy }>

/** Signs users in that an issuer has identified. */
export class IssuerUsers {
  readonly #options: IssuerUsersOptions

  constructor(options: IssuerUsersOptions) {
    this.#options = options
  }

  /**
   * Begins a session for somebody whom the issuer has identified. @param state of the sign-in, which is good once
   * @throws EngineError OIDC_STATE_INVALID, OIDC_NOT_ALLOWED, OIDC_EMAIL_UNVERIFIED, OIDC_NOT_INVITED, OIDC_IDENTITY_TAKEN, OIDC_MISCONFIGURED
   */
  async signIn(person: Person, state: Readonly<{ state: string; endsAt: Date }>, from: From): Promise<SignedIn> {
    refuseStranger(person, this.#options.policy)
    return this.#options.store.transaction(async (query) => {
      await signInAlone(query)
      if (!(await completeSignIn(query, state))) throw new EngineError('OIDC_STATE_INVALID', 'this sign-in was completed before')
      const user = (await this.#again(query, person, from)) ?? (await this.#linked(query, person, from)) ?? (await this.#new(query, person, from)) // prettier-ignore
      const { name = user.name } = person
      if (name !== undefined && name !== user.name) await setName(query, user.id, name)
      return { user: { ...user, name }, secret: await beginSession(query, user, { ...from, days: SESSION_DAYS }) }
    })
  }

  /** Somebody who signed in before: what the groups say of the role holds. @returns undefined: they did not */
  async #again(query: Query, person: Person, from: From): Promise<User | undefined> {
    const known = await userByIdentity(query, person)
    if (!known) return undefined
    const { user, isRoleByGroup } = known
    const { policy } = this.#options
    refuseForeignAccount(user, policy)
    const byGroup = roleOfGroups(person, policy)
    if (byGroup !== undefined && !isRoleByGroup) await setRoleByGroup(query, person)
    const role = byGroup ?? (isRoleByGroup ? policy.defaultRole : user.role)
    if (role === undefined) throw new EngineError('OIDC_NOT_INVITED', 'no group of yours gives you a role here any more')
    return this.#inRole(query, user, role, from)
  }

  /** A user who signs in by the issuer for the first time. @returns undefined: there is no user with the email */
  async #linked(query: Query, person: Person, from: From): Promise<User | undefined> {
    const user = await userByEmail(query, verifiedEmail(person))
    if (!user) return undefined
    const { policy } = this.#options
    refuseForeignAccount(user, policy)
    const byGroup = roleOfGroups(person, policy)
    if (!(await addIdentity(query, user, person, byGroup !== undefined)))
      throw new EngineError('OIDC_IDENTITY_TAKEN', `${user.email} is somebody else at this issuer`)
    const { issuer, subject } = person
    await recordAs(
      user,
      from,
      () =>
      record(query, [{ ...change(user.account, 'link identity', 'user', user.email), changes: fieldChanges(undefined, plainly({ issuer, subject })) }]), // prettier-ignore
    )
    return this.#inRole(query, user, byGroup ?? user.role, from)
  }

  /** Somebody who becomes a user: invited, or given a role by groups or settings. */
  async #new(query: Query, person: Person, from: From): Promise<User> {
    const { policy, resources } = this.#options
    const email = verifiedEmail(person)
    const byGroup = roleOfGroups(person, policy)
    const invitation = await takeInvitationTo(query, email, policy.account)
    const role = byGroup ?? invitation?.role ?? policy.defaultRole
    if (role === undefined) throw new EngineError('OIDC_NOT_INVITED', `nobody has invited ${email}`)
    const account = invitation?.account ?? (await accountOf(query, { resources, name: policy.account, several }))
    const user = await addUser(query, account, { email, role })
    if (!user || !(await addIdentity(query, user, person, byGroup !== undefined))) throw new Error('a new user could not be saved')
    const { issuer, subject } = person
    const action = invitation ? 'accept invitation' : 'create'
    await recordAs(
      user,
      from,
      () =>
      record(query, [{ ...change(account, action, 'user', email), changes: fieldChanges(undefined, plainly({ role, issuer, subject })) }]), // prettier-ignore
    )
    return user
  }

  /** Gives a user a role, but for the last admin of the account, who stays one. */
  async #inRole(query: Query, user: User, role: Role, from: From): Promise<User> {
    if (role === user.role) return user
    await query('select from account where id = $1 for update', [user.account.id]) // as who edits users does: two admins don't leave at once
    if (await isLastAdmin(query, user)) return user
    await setRole(query, user.id, role)
    const changes = fieldChanges(plainly({ role: user.role }), plainly({ role }))
    await recordAs(user, from, () => record(query, [{ ...change(user.account, 'update', 'user', user.email), changes }]))
    return { ...user, role }
  }
}

const several = (known: string): EngineError =>
  new EngineError('OIDC_MISCONFIGURED', `there are several accounts (${known}): TAILRACE_OIDC_ACCOUNT has to name that of new users`)

/** @throws EngineError OIDC_NOT_INVITED */
function refuseForeignAccount({ account, email }: User, policy: IssuerPolicy): void {
  if (policy.account !== undefined && account.name !== policy.account)
    throw new EngineError('OIDC_NOT_INVITED', `${email} belongs to an account whose users do not sign in by this issuer`)
}

/** Puts on record in the name of the user. */
const recordAs = <T>({ id, email: name }: User, { address, client }: From, work: () => T): T =>
  actAs({ kind: 'user', id, name, address, ...(client !== undefined && { client }) }, work)
