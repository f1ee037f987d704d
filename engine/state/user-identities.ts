/** Who a user is at an OIDC issuer, in the state database; and which sign-ins by one were completed. */
import type { Query } from '../postgres/query.ts'
import { rowsOf } from '../postgres/rows.ts'
import { hashOf, users, type User } from './users.ts'

/** Somebody as an issuer knows them, for ever: emails and names may change hands. */
export type Identity = Readonly<{ issuer: string; subject: string }>

/** Finds the user of an identity. @returns isRoleByGroup whether the groups at the issuer say the role */
export async function userByIdentity(
  query: Query,
  { issuer, subject }: Identity,
): Promise<Readonly<{ user: User; isRoleByGroup: boolean }> | undefined> {
  const sql = 'select user_id as id, role_by_group as "isRoleByGroup" from user_identity where issuer = $1 and subject = $2'
  const [found] = rowsOf({ id: 'text', isRoleByGroup: 'boolean' }, await query(sql, [issuer, subject]))
  const [user] = found ? await users(query, 'where u.id = $1', [found.id]) : []
  return found && user && { user, isRoleByGroup: found.isRoleByGroup }
}

/** Stores that an identity is a user. @returns false: the user is somebody else at this issuer */
export async function addIdentity(query: Query, { id }: User, { issuer, subject }: Identity, isRoleByGroup: boolean): Promise<boolean> {
  const sql = `insert into user_identity (issuer, subject, user_id, role_by_group) values ($1, $2, $3, $4)
    on conflict (user_id, issuer) do nothing returning user_id`
  return (await query(sql, [issuer, subject, id, isRoleByGroup])).rows.length > 0
}

/** Stores that from now on the groups at the issuer say the role of a user. */
export const setRoleByGroup = async (query: Query, { issuer, subject }: Identity): Promise<void> =>
  void (await query('update user_identity set role_by_group = true where issuer = $1 and subject = $2', [issuer, subject]))

/** Makes sign-ins by issuers wait for each other until the end of the transaction: two of one new person make one user. */
export const signInAlone = async (query: Query): Promise<void> => void (await query('select pg_advisory_xact_lock($1)', [SIGN_IN_LOCK]))
/** The number of an advisory lock; no other lock of ours has it. */
const SIGN_IN_LOCK = 7_376_002

/** Stores that a sign-in is completed. @returns false: it was before */
export async function completeSignIn(query: Query, { state, endsAt }: Readonly<{ state: string; endsAt: Date }>): Promise<boolean> {
  await query('delete from completed_sign_in where expires_at < now()')
  // the clock of the database may be another than that of who looks whether the sign-in is too old
  const sql = `insert into completed_sign_in (hash, expires_at) values (decode($1, 'hex'), $2::timestamptz + interval '1 hour')
    on conflict (hash) do nothing returning hash`
  return (await query(sql, [hashOf(state), endsAt])).rows.length > 0
}
