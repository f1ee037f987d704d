/** Users, their sessions and invitations in the state database. */
import { hash, randomBytes } from 'node:crypto'
import type { Query } from '../postgres/query.ts'
import { oneOf, rowsOf } from '../postgres/rows.ts'
import type { Account } from './resources.ts'
import type { Rights } from './tokens.ts'

/** What users may be, and what each may do. */
export const ROLES = { viewer: ['read'], editor: ['manage'], admin: ['admin'] } as const satisfies Record<string, Rights['scopes']>
/** The role of a user. */
export type Role = keyof typeof ROLES
/** Tells whether a text names a role. */
export const isRole = (text: string): text is Role => Object.hasOwn(ROLES, text)

/** A user, without the password. @property name as an OIDC issuer has it */
export type User = Readonly<{ id: string; account: Account; email: string; name: string | undefined; role: Role; insertedAt: Date }>
/** An invitation, without the text of its link. */
export type Invitation = Readonly<{ id: string; email: string; role: Role; insertedAt: Date; expiresAt: Date }>

/** Emails are compared as they are stored. */
export const emailOf = (text: string): string => text.trim().toLowerCase()
/** Makes the secret of a session or an invitation. */
export const newSecret = (): string => randomBytes(32).toString('base64url')
/** What is stored of a secret, in hexadecimal. */
export const hashOf = (secret: string): string => hash('sha256', secret, 'hex')

const role = oneOf('viewer', 'editor', 'admin')
const USER = { id: 'text', accountId: 'text', account: 'text', email: 'text', name: 'text?', role, insertedAt: 'time' } as const
const USER_COLUMNS = 'u.id, u.account_id as "accountId", a.name as account, u.email, u.name, u.role, u.inserted_at as "insertedAt"'
const USERS = 'app_user u join account a on a.id = u.account_id'
const INVITATION = { id: 'text', email: 'text', role, insertedAt: 'time', expiresAt: 'time' } as const
const INVITATION_COLUMNS = 'i.id, i.email, i.role, i.inserted_at as "insertedAt", i.expires_at as "expiresAt"'

/** Finds users. @param rest of the query, where `u` is the user */
export async function users(query: Query, rest: string, params: readonly unknown[]): Promise<readonly User[]> {
  const found = rowsOf(USER, await query(`select ${USER_COLUMNS} from ${USERS} ${rest}`, params))
  return found.map(({ accountId, account, ...user }) => ({ ...user, account: { id: accountId, name: account } }))
}

/** Tells whether there is an admin, of whatever account. */
export const hasAdmin = async (query: Query): Promise<boolean> =>
  (await query(`select from app_user where role = 'admin' limit 1`)).rows.length > 0

/** Names the accounts that nobody can ask for anything: they have no user, and no API token that has not expired. */
export async function closedAccounts(query: Query): Promise<readonly string[]> {
  const sql = `select a.name from account a where not exists (select from app_user u where u.account_id = a.id)
    and not exists (select from api_token t where t.account_id = a.id and (t.expires_at is null or t.expires_at > now())) order by a.name`
  return rowsOf({ name: 'text' }, await query(sql)).map(({ name }) => name)
}

/** Lists the users of an account, by email. */
export const usersOfAccount = (query: Query, { id }: Account): Promise<readonly User[]> =>
  users(query, 'where u.account_id = $1 order by u.email', [id])

/** Finds a user by email, with what is stored of the password. @returns password undefined: the user has none */
export async function userByEmail(query: Query, email: string): Promise<(User & Readonly<{ password: string | undefined }>) | undefined> {
  const [user] = await users(query, 'where u.email = $1', [emailOf(email)])
  const [row] = user ? rowsOf({ password: 'text?' }, await query('select password from app_user where id = $1', [user.id])) : []
  return user && row && { ...user, ...row }
}

/** Stores a new user. @param password as `hashPassword` made it; absent: none @returns undefined: the email is taken */
export async function addUser(
  query: Query,
  account: Account,
  { email, password, role }: Readonly<{ email: string; password?: string | undefined; role: Role }>,
): Promise<User | undefined> {
  const sql = 'insert into app_user (account_id, email, password, role) values ($1, $2, $3, $4) on conflict (email) do nothing returning id'
  const [made] = rowsOf({ id: 'text' }, await query(sql, [account.id, emailOf(email), password ?? null, role]))
  return made && (await users(query, 'where u.id = $1', [made.id]))[0]
}

/** Gives a user another role. */
export const setRole = async (query: Query, id: string, to: Role): Promise<void> =>
  void (await query('update app_user set role = $2 where id = $1', [id, to]))

/** Stores the name of a user. */
export const setName = async (query: Query, id: string, name: string): Promise<void> =>
  void (await query('update app_user set name = $2 where id = $1', [id, name]))

/** Gives a user another password, and ends the sessions of the former one. @param keep the secret of a session that goes on */
export async function setPassword(query: Query, id: string, password: string, keep?: string): Promise<void> {
  await query('update app_user set password = $2 where id = $1', [id, password])
  await query(`delete from user_session where user_id = $1 and hash is distinct from decode($2, 'hex')`, [id, keep === undefined ? null : hashOf(keep)]) // prettier-ignore
}

/** Deletes a user, with all sessions. */
export const removeUser = async (query: Query, id: string): Promise<void> => void (await query('delete from app_user where id = $1', [id]))

/** Begins a session. @returns the secret that its cookie holds */
export async function beginSession(
  query: Query,
  user: Pick<User, 'id'>,
  { address, client, days }: Readonly<{ address: string; client: string | undefined; days: number }>,
): Promise<string> {
  const secret = newSecret()
  await query('delete from user_session where expires_at < now()')
  await query(
    `insert into user_session (hash, user_id, address, client, expires_at) values (decode($1, 'hex'), $2, $3, $4, now() + make_interval(days => $5))`,
    [hashOf(secret), user.id, address, client ?? null, days],
  )
  return secret
}

/** Finds who has a session. */
export async function sessionUser(query: Query, secret: string): Promise<User | undefined> {
  const rest = `join user_session s on s.user_id = u.id where s.hash = decode($1, 'hex') and s.expires_at > now()`
  return (await users(query, rest, [hashOf(secret)]))[0]
}

/** Ends a session. */
export const endSession = async (query: Query, secret: string): Promise<void> =>
  void (await query(`delete from user_session where hash = decode($1, 'hex')`, [hashOf(secret)]))

/** Lists the invitations of an account that are open. */
export async function invitationsOf(query: Query, { id }: Account): Promise<readonly Invitation[]> {
  const sql = `select ${INVITATION_COLUMNS} from invitation i where i.account_id = $1 and i.expires_at > now() order by i.email`
  return rowsOf(INVITATION, await query(sql, [id]))
}

/** Stores an invitation, in the place of one to the same email. @param secret the text of its link */
export async function addInvitation(
  query: Query,
  { id }: Account,
  { email, role, secret, days }: Readonly<{ email: string; role: Role; secret: string; days: number }>,
): Promise<Invitation> {
  const answer = await query(
    `insert into invitation as i (account_id, email, role, hash, expires_at) values ($1, $2, $3, decode($4, 'hex'), now() + make_interval(days => $5))
     on conflict (account_id, email) do update set role = excluded.role, hash = excluded.hash, expires_at = excluded.expires_at, inserted_at = now()
     returning ${INVITATION_COLUMNS}`,
    [id, emailOf(email), role, hashOf(secret), days],
  )
  const [made] = rowsOf(INVITATION, answer)
  if (!made) throw new Error('the invitation that was saved was not answered')
  return made
}

/** Deletes an invitation of an account. @returns it; undefined: there is none */
export async function removeInvitation(query: Query, account: Account, id: string): Promise<Invitation | undefined> {
  const sql = `delete from invitation i where i.account_id = $1 and i.id::text = $2 returning ${INVITATION_COLUMNS}`
  return rowsOf(INVITATION, await query(sql, [account.id, id]))[0]
}

/** An invitation that was taken: it is gone. */
type Taken = Invitation & Readonly<{ account: Account }>

/** Takes an invitation by the text of its link. @returns undefined: there is none, or its time is over */
export const takeInvitation = (query: Query, secret: string): Promise<Taken | undefined> =>
  take(query, `i.hash = decode($1, 'hex')`, [hashOf(secret)])

/** Takes the oldest invitation to an email. @param account whose; absent: of any @returns undefined: there is none, or its time is over */
export function takeInvitationTo(query: Query, email: string, account: string | undefined): Promise<Taken | undefined> {
  const oldest = `select o.id from invitation o join account b on b.id = o.account_id
    where o.email = $1 and o.expires_at > now() and ($2::text is null or b.name = $2) order by o.inserted_at limit 1`
  return take(query, `i.id = (${oldest})`, [emailOf(email), account ?? null])
}

async function take(query: Query, condition: string, params: readonly unknown[]): Promise<Taken | undefined> {
  const answer = await query(
    `delete from invitation i using account a where a.id = i.account_id and ${condition} and i.expires_at > now()
     returning ${INVITATION_COLUMNS}, i.account_id as "accountId", a.name as account`,
    params,
  )
  const [taken] = rowsOf({ ...INVITATION, accountId: 'text', account: 'text' }, answer)
  if (!taken) return undefined
  const { accountId, account, ...invitation } = taken
  return { ...invitation, account: { id: accountId, name: account } }
}
