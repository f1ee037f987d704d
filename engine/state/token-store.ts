/** API tokens in the state database. */
import type { Query } from '../postgres/query.ts'
import { oneOf, rowsOf } from '../postgres/rows.ts'
import type { Account } from './resources.ts'
import { versionOf } from './row-memory.ts'
import { hashToken, SCOPES, type Rights, type Scope, type Token } from './tokens.ts'

/** Who may make tokens: the file of the start, a file that a client applied, or a call of the API. */
export const TOKEN_MAKERS = ['file', 'apply', 'api'] as const
/** Says who made a token. */
export type TokenMaker = (typeof TOKEN_MAKERS)[number]

/** A token as it is shown. @property madeBy undefined: it is not known, or a demo did @property usedAt of the last minutes it may lack */
export type StoredToken = Rights &
  Readonly<{
    id: string
    name: string
    hash: string
    insertedAt: Date
    expiresAt: Date | undefined
    madeBy: TokenMaker | undefined
    usedAt: Date | undefined
  }>

/** What is said of a token that is to be stored; one that says nothing of scopes may do everything. */
export type TokenInput = Partial<Rights> &
  Readonly<{ name: string; token: string; expiresAt?: Date | undefined; madeBy?: TokenMaker | undefined }>

const isScope = oneOf(...SCOPES)
const scopesOf = (value: unknown): readonly Scope[] => (Array.isArray(value) ? value.map(isScope) : [])
const maker = (value: unknown): TokenMaker | undefined => (value === null ? undefined : oneOf(...TOKEN_MAKERS)(value))
const STORED = {
  id: 'text',
  name: 'text',
  hash: 'text',
  scopes: scopesOf,
  sinks: 'texts',
  insertedAt: 'time',
  expiresAt: 'time?',
  madeBy: maker,
  usedAt: 'time?',
} as const
const SELECTED = `t.id, t.name, encode(t.hash, 'hex') as hash, t.scopes, t.sinks, t.inserted_at as "insertedAt", t.expires_at as "expiresAt",
  t.made_by as "madeBy", u.used_at as "usedAt"`

/** Lists the tokens of an account, by name. */
export async function tokensOf(query: Query, { id }: Pick<Account, 'id'>): Promise<readonly StoredToken[]> {
  const sql = `select ${SELECTED} from api_token t left join api_token_use u on u.token_id = t.id where t.account_id = $1 order by t.name`
  return rowsOf(STORED, await query(sql, [id]))
}

/** Tells whether a token is one already, of whatever account. */
export async function isTokenKnown(query: Query, token: string): Promise<boolean> {
  return (await query(`select from api_token where hash = decode($1, 'hex')`, [hashToken(token)])).rows.length > 0
}

/** Stores a token under its name, in the place of one that has it. Who made it stays, where that is known. */
export async function saveToken(
  query: Query,
  account: Account,
  { name, token, scopes = ['admin'], sinks = [], ...rest }: TokenInput,
): Promise<void> {
  await query(
    `insert into api_token as t (account_id, name, hash, scopes, sinks, expires_at, made_by) values ($1, $2, decode($3, 'hex'), $4, $5, $6, $7)
     on conflict (account_id, name) do update set hash = excluded.hash, scopes = excluded.scopes, sinks = excluded.sinks,
       expires_at = excluded.expires_at, made_by = coalesce(t.made_by, excluded.made_by)`,
    [account.id, name, hashToken(token), scopes, sinks, rest.expiresAt ?? null, rest.madeBy ?? null],
  )
}

/** Deletes a token of an account. @returns false: there is none */
export async function deleteToken(query: Query, account: Account, id: string): Promise<boolean> {
  return (await query('delete from api_token where account_id = $1 and id::text = $2 returning id', [account.id, id])).rows.length > 0
}

/** Lets tokens that name a sink go by its new name. */
export async function renameSinkInTokens(query: Query, accountId: string, [name, newName]: readonly [string, string]): Promise<void> {
  await query('update api_token set sinks = array_replace(sinks, $2, $3) where account_id = $1 and $2 = any (sinks)', [
    accountId,
    name,
    newName,
  ])
}

const FROM = 'from api_token t join account a on a.id = t.account_id'
/** A token knows its account by name. */
const VERSION = versionOf('t', { writtenAt: 'inserted_at', also: ['a.name'] })

/** Gives a text that differs whenever any token does. */
export async function printOfTokens(query: Query): Promise<string> {
  const [row] = rowsOf({ print: 'text' }, await query(`select coalesce(sum(${VERSION}), 0)::text as print ${FROM}`))
  return row?.print ?? ''
}

/** Reads the tokens of all accounts, by their hash. */
export async function allTokens(query: Query): Promise<ReadonlyMap<string, Token>> {
  const columns = { ...STORED, account: 'text', accountName: 'text' } as const
  const sql = `select ${SELECTED}, a.id as account, a.name as "accountName" ${FROM} left join api_token_use u on u.token_id = t.id`
  return new Map(
    rowsOf(columns, await query(sql)).map(({ id, name, hash, scopes, sinks, expiresAt, account, accountName }) => {
      const token: Token = { id, name, scopes, sinks, account: { id: account, name: accountName }, expiresAt: expiresAt?.getTime() }
      return [hash, token] as const
    }),
  )
}

/** Stores when tokens were used last. @param uses milliseconds since 1970, by id of the token */
export async function saveUses(query: Query, uses: ReadonlyMap<string, number>): Promise<void> {
  if (uses.size === 0) return
  await query(
    `insert into api_token_use as u (token_id, used_at)
     select t.id, to_timestamp(given.ms / 1000.0) from unnest($1::uuid[], $2::float8[]) as given (id, ms) join api_token t on t.id = given.id
     on conflict (token_id) do update set used_at = greatest(u.used_at, excluded.used_at)`,
    [[...uses.keys()], [...uses.values()]],
  )
}
