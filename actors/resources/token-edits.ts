/** API tokens of an account: listed, made and revoked for the API. */
import { EngineError, fieldRefused } from '../../engine/errors.ts'
import type { Query } from '../../engine/postgres/query.ts'
import { record, type Change } from '../../engine/state/audit.ts'
import { accountLock } from '../../engine/state/resource-store.ts'
import type { Account } from '../../engine/state/resources.ts'
import type { Store } from '../../engine/state/store.ts'
import { deleteToken, isTokenKnown, saveToken, tokensOf, type StoredToken, type TokenInput } from '../../engine/state/token-store.ts'
import type { TokenMemory } from '../../engine/state/token-memory.ts'
import { fieldChanges, plainly } from './audited-changes.ts'
import { rightsOut } from './token-form.ts'
import { newToken, type Rights } from '../../engine/state/tokens.ts'

type TokenEditsOptions = Readonly<{
  store: Store
  memory: Pick<TokenMemory, 'usedAt'>
  /** Settles when every process knows the tokens that are stored. */
  takeIn: () => Promise<void>
}>

/** Gives the change of a token for the audit log: what it may do, never its text. */
export function tokenChange(
  { id: accountId }: Pick<Account, 'id'>,
  action: 'create' | 'update' | 'delete',
  name: string,
  { before, after, hasOtherText = false }: Readonly<{ before?: Partial<Rights>; after?: Partial<Rights>; hasOtherText?: boolean }>,
): Change {
  const shown = (rights: Partial<Rights> | undefined, text: object) =>
    rights && plainly({ ...rightsOut({ scopes: ['admin'], sinks: [], ...rights }), ...text })
  const changes = fieldChanges(shown(before, {}), shown(after, hasOtherText ? { token: '(another one)' } : {}))
  return { accountId, action, kind: 'api_token', name, changes }
}

/** Lists, makes and revokes API tokens. */
export class TokenEdits {
  readonly #options: TokenEditsOptions

  constructor(options: TokenEditsOptions) {
    this.#options = options
  }

  /** Lists the tokens of an account, by name. */
  async list(account: Account): Promise<readonly StoredToken[]> {
    const { store, memory } = this.#options
    return (await tokensOf(store.query, account)).map((token) => {
      const used = memory.usedAt(token.id)
      return used === undefined || used < (token.usedAt?.getTime() ?? 0) ? token : { ...token, usedAt: new Date(used) }
    })
  }

  /** Makes a token. @returns it with its text, which nobody can ask for later. @throws EngineError VALIDATION_FAILED: name or text is taken */
  async create(
    account: Account,
    { token = newToken(), ...input }: Omit<TokenInput, 'token' | 'madeBy'> & Readonly<{ token?: string | undefined }>,
  ): Promise<StoredToken & Readonly<{ token: string }>> {
    const made = await this.#edit(account, async (query) => {
      if ((await tokensOf(query, account)).some(({ name }) => name === input.name))
        throw fieldRefused('name', 'is taken by another API token')
      if (await isTokenKnown(query, token)) throw fieldRefused('token', 'is in use already')
      await saveToken(query, account, { ...input, token, madeBy: 'api' })
      await record(query, [tokenChange(account, 'create', input.name, { after: input })])
      return (await tokensOf(query, account)).find(({ name }) => name === input.name)
    })
    if (!made) throw new Error('the token that was saved is not there')
    return { ...made, token }
  }

  /** Deletes a token: when this settles it works in no process any more. @throws EngineError NOT_FOUND */
  async revoke(account: Account, id: string): Promise<void> {
    await this.#edit(account, async (query) => {
      const before = (await tokensOf(query, account)).find((token) => token.id === id)
      if (!before) throw new EngineError('NOT_FOUND', `There is no API token "${id.slice(0, 100)}".`)
      await deleteToken(query, account, id)
      await record(query, [tokenChange(account, 'delete', before.name, { before })])
    })
  }

  async #edit<T>(account: Account, work: (query: Query) => Promise<T>): Promise<T> {
    const result = await this.#options.store.transaction(work, accountLock(account.id))
    await this.#options.takeIn()
    return result
  }
}
