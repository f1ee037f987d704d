/** Users of the console: signed in and out, invited, given roles, and the first one set up. */
import { createHmac, hash, timingSafeEqual } from 'node:crypto'
import { EngineError, fieldRefused } from '../../engine/errors.ts'
import type { Query } from '../../engine/postgres/query.ts'
import { rowsOf } from '../../engine/postgres/rows.ts'
import { actAs, record, type Actor } from '../../engine/state/audit.ts'
import { hashPassword, isPassword } from '../../engine/state/passwords.ts'
import { accountLock, type ResourceStore } from '../../engine/state/resource-store.ts'
import type { Account } from '../../engine/state/resources.ts'
import type { Store } from '../../engine/state/store.ts'
import {
  addInvitation,
  addUser,
  beginSession,
  endSession,
  hasAdmin,
  invitationsOf,
  newSecret,
  removeInvitation,
  removeUser,
  sessionUser,
  setPassword,
  setRole,
  takeInvitation,
  userByEmail,
  usersOfAccount,
  type Invitation,
  type Role,
  type User,
} from '../../engine/state/users.ts'
import { fieldChanges, plainly } from './audited-changes.ts'

/** How long a session lasts. */
export const SESSION_DAYS = 7
const INVITATION_DAYS = 7
const SETUP_CODE_CHARACTERS = 24

/** Where a request of somebody who signs in comes from. */
export type From = Readonly<{ address: string; client: string | undefined }>
/** Somebody who has signed in. @property secret what the cookie of the session holds */
export type SignedIn = Readonly<{ user: User; secret: string }>
/** Longest life of the cookie. */
export const SESSION_SECONDS = SESSION_DAYS * 86_400

type UserEditsOptions = Readonly<{
  store: Store
  resources: Pick<ResourceStore, 'saveAccount'>
  /** the code of the first set-up is derived from it, so that all processes have the same */
  vaultKey: Buffer
}>

/** Gives the code that the first user has to have: only who has the key of the service can know it, and all its processes do. */
export const setupCodeOf = (vaultKey: Buffer): string =>
  createHmac('sha256', vaultKey).update('tailrace set-up code').digest('base64url').slice(0, SETUP_CODE_CHARACTERS)

/** Signs users in and edits them. */
export class UserEdits {
  readonly #options: UserEditsOptions
  readonly #setupCode: string
  #hasAdmin = false

  constructor(options: UserEditsOptions) {
    this.#options = options
    this.#setupCode = setupCodeOf(options.vaultKey)
  }

  /** Whether the first admin is still to be set up. */
  async needsSetup(): Promise<boolean> {
    this.#hasAdmin ||= await hasAdmin(this.#options.store.query) // an account keeps its last admin: once there is one, there is
    return !this.#hasAdmin
  }

  /**
   * Makes the first admin of all. @param account its name; absent: the one that there is, or a new one named "default"
   * @throws EngineError SETUP_REFUSED: there is an admin already, or the code is another; VALIDATION_FAILED
   */
  async setUp(
    { code, account, email, password }: Readonly<{ code: string; account?: string | undefined; email: string; password: string }>,
    from: From,
  ): Promise<SignedIn> {
    if (!isSame(code, this.#setupCode))
      throw new EngineError('SETUP_REFUSED', 'the set-up code is another one: npx tailrace user setup-code prints it')
    const hashed = await hashPassword(password)
    const { store, resources } = this.#options
    return store.transaction(async (query) => {
      await query('lock table app_user in exclusive mode')
      if (await hasAdmin(query)) throw new EngineError('SETUP_REFUSED', 'there is an admin already')
      const own = await accountOf(query, {
        resources,
        name: account,
        several: (known) => fieldRefused('account', `must be one of ${known}`),
      })
      return this.#begin(query, own, {
        email,
        password: hashed,
        role: 'admin',
        action: 'set up',
        from,
      })
    })
  }

  /** @throws EngineError SIGN_IN_FAILED, SIGN_IN_BUSY */
  async signIn({ email, password }: Readonly<{ email: string; password: string }>, from: From): Promise<SignedIn> {
    const { query } = this.#options.store
    const user = await userByEmail(query, email)
    if (!(await isPassword(password, user?.password)) || !user) throw new EngineError('SIGN_IN_FAILED', 'email or password is wrong')
    return { user, secret: await beginSession(query, user, { ...from, days: SESSION_DAYS }) }
  }

  /** Finds who has a session. @param secret what its cookie holds */
  userOf(secret: string): Promise<User | undefined> {
    return sessionUser(this.#options.store.query, secret)
  }

  signOut(secret: string): Promise<void> {
    return endSession(this.#options.store.query, secret)
  }

  /** Gives a user another password; all other sessions end. @throws EngineError SIGN_IN_FAILED: the present one is wrong */
  async changePassword(user: User, { current, password }: Readonly<{ current: string; password: string }>, secret: string): Promise<void> {
    const known = await userByEmail(this.#options.store.query, user.email)
    if (!(await isPassword(current, known?.password))) throw new EngineError('SIGN_IN_FAILED', 'the present password is wrong')
    const hashed = await hashPassword(password)
    await this.#edit(user.account, async (query) => {
      await setPassword(query, user.id, hashed, secret)
      await record(query, [change(user.account, 'change password', 'user', user.email)])
    })
  }

  list(account: Account): Promise<readonly User[]> {
    return usersOfAccount(this.#options.store.query, account)
  }

  /** @throws EngineError NOT_FOUND; VALIDATION_FAILED: no admin would be left */
  changeRole(account: Account, id: string, role: Role): Promise<User> {
    return this.#edit(account, async (query) => {
      const user = await this.#user(query, account, id)
      if (role !== 'admin') await refuseLastAdmin(query, user)
      await setRole(query, id, role)
      const changes = fieldChanges(plainly({ role: user.role }), plainly({ role }))
      await record(query, [{ ...change(account, 'update', 'user', user.email), changes }])
      return { ...user, role }
    })
  }

  /** @throws EngineError NOT_FOUND; VALIDATION_FAILED: no admin would be left */
  remove(account: Account, id: string): Promise<void> {
    return this.#edit(account, async (query) => {
      const user = await this.#user(query, account, id)
      await refuseLastAdmin(query, user)
      await removeUser(query, id)
      await record(query, [change(account, 'delete', 'user', user.email)])
    })
  }

  invitations(account: Account): Promise<readonly Invitation[]> {
    return invitationsOf(this.#options.store.query, account)
  }

  /** @returns the invitation, with the text that who was invited has to have. @throws EngineError VALIDATION_FAILED: there is such a user */
  invite(account: Account, { email, role }: Readonly<{ email: string; role: Role }>): Promise<Invitation & Readonly<{ secret: string }>> {
    return this.#edit(account, async (query) => {
      if (await userByEmail(query, email)) throw fieldRefused('email', 'is that of a user')
      const secret = newSecret()
      const made = await addInvitation(query, account, { email, role, secret, days: INVITATION_DAYS })
      const changes = fieldChanges(undefined, plainly({ role }))
      await record(query, [{ ...change(account, 'create', 'invitation', made.email), changes }])
      return { ...made, secret }
    })
  }

  /** @throws EngineError NOT_FOUND */
  withdraw(account: Account, id: string): Promise<void> {
    return this.#edit(account, async (query) => {
      const gone = await removeInvitation(query, account, id)
      if (!gone) throw new EngineError('NOT_FOUND', `There is no invitation "${id.slice(0, 100)}".`)
      await record(query, [change(account, 'delete', 'invitation', gone.email)])
    })
  }

  /** Makes a user of who was invited, and signs in. @throws EngineError SIGN_IN_FAILED: there is no such invitation; VALIDATION_FAILED */
  async accept({ secret, password }: Readonly<{ secret: string; password: string }>, from: From): Promise<SignedIn> {
    const hashed = await hashPassword(password)
    return this.#options.store.transaction(async (query) => {
      const taken = await takeInvitation(query, secret)
      if (!taken) throw new EngineError('SIGN_IN_FAILED', 'the invitation is not known, was used, or its time is over')
      const { account, email, role } = taken
      return this.#begin(query, account, { email, password: hashed, role, action: 'accept invitation', from })
    })
  }

  async #begin(
    query: Query,
    account: Account,
    { email, password, role, action, from }: Readonly<{ email: string; password: string; role: Role; action: string; from: From }>,
  ): Promise<SignedIn> {
    const user = await addUser(query, account, { email, password, role })
    if (!user) throw fieldRefused('email', 'is that of a user')
    const { address, client } = from
    const actor: Actor = { kind: 'user', id: user.id, name: user.email, address, ...(client !== undefined && { client }) }
    const changes = fieldChanges(undefined, plainly({ role }))
    await actAs(actor, () => record(query, [{ ...change(account, action, 'user', user.email), changes }]))
    return { user, secret: await beginSession(query, user, { ...from, days: SESSION_DAYS }) }
  }

  async #user(query: Query, account: Account, id: string): Promise<User> {
    const user = (await usersOfAccount(query, account)).find((one) => one.id === id)
    if (!user) throw new EngineError('NOT_FOUND', `There is no user "${id.slice(0, 100)}".`)
    return user
  }

  #edit<T>(account: Account, work: (query: Query) => Promise<T>): Promise<T> {
    return this.#options.store.transaction(work, accountLock(account.id))
  }
}

/** Compares in a time that tells nothing. */
const isSame = (a: string, b: string): boolean => timingSafeEqual(hash('sha256', a, 'buffer'), hash('sha256', b, 'buffer'))

/**
 * Finds the account that a new user belongs to, and makes it if need be. @param name absent: the one that there is, or a new one named
 * "default" @param several makes the error for when there are several, of their names
 */
export async function accountOf(
  query: Query,
  {
    resources,
    name,
    several,
  }: Readonly<{ resources: Pick<ResourceStore, 'saveAccount'>; name: string | undefined; several: (known: string) => EngineError }>,
): Promise<Account> {
  const known = rowsOf({ name: 'text' }, await query('select name from account order by name')).map((one) => one.name)
  if (name === undefined && known.length > 1) throw several(known.join(', '))
  return resources.saveAccount(query, name ?? known[0] ?? 'default')
}

/** Makes an entry of the audit log for what happens to a user or an invitation. */
export const change = ({ id: accountId }: Account, action: string, kind: 'user' | 'invitation', name: string) => ({
  accountId,
  action,
  kind,
  name,
})

/** @throws EngineError VALIDATION_FAILED */
async function refuseLastAdmin(query: Query, user: User): Promise<void> {
  if (await isLastAdmin(query, user)) throw fieldRefused('role', 'of the last admin of the account must stay')
}

/** Tells whether a user is the last admin of the account. */
export async function isLastAdmin(query: Query, { id, role, account }: User): Promise<boolean> {
  if (role !== 'admin') return false
  return !(await usersOfAccount(query, account)).some((one) => one.role === 'admin' && one.id !== id)
}
