/**
 * Encrypts all secrets of the state database by another key, in one transaction: whoever is killed in the midst of it leaves all of
 * them as they were. Processes that run accept both keys meanwhile. They look which one is in use when they store a secret, and hold
 * that until their transaction ends, so no secret is stored by the former key once this has begun.
 */
import type { Query } from '../postgres/query.ts'
import { rowsOf } from '../postgres/rows.ts'
import type { Vault } from './secrets.ts'

/** Every column that holds what a vault has encrypted. */
const SECRETS = [
  ['source_database', 'password'],
  ['source_database', 'primary_password'],
  ['http_endpoint', 'encrypted_headers'],
  ['sink', 'secrets'],
  ['unstored_part', 'connection'],
] as const

/** The key by which secrets are encrypted. @property print undefined: none was rotated yet, and it is the vault's own */
export type KeyInUse = Readonly<{ print: string | undefined }>

/** Reads which key secrets are encrypted by, and holds that for the transaction. */
export async function keyInUse(query: Query): Promise<KeyInUse> {
  const [row] = rowsOf({ print: 'text?' }, await query('select print from vault_key for share'))
  return { print: row?.print }
}

/**
 * Encrypts all secrets by the own key of a vault. @param query of a transaction. @param vault opens them by any of its keys
 * @returns how many there are. @throws EngineError SECRET_UNREADABLE: one opens by none of the keys
 */
export async function rotateSecrets(query: Query, vault: Vault): Promise<number> {
  await query('update vault_key set print = $1', [vault.print])
  let count = 0
  for (const [table, column] of SECRETS) {
    const found = await query(`select id, ${column} as secret from ${table} where ${column} is not null for update`)
    for (const { id, secret } of rowsOf({ id: 'text', secret: 'bytes' }, found)) {
      await query(`update ${table} set ${column} = $2 where id = $1`, [id, vault.encrypt(vault.decrypt(secret))])
      count++
    }
  }
  return count
}
