/** API tokens of an account: listed, made and revoked for the API. */
import { EngineError, fieldRefused } from '../../engine/errors.ts'
import type { Query } from '../../engine/postgres/query.ts'
import { accountLock } from '../../engine/state/resource-store.ts'
import type { Account } from '../../engine/state/resources.ts'
import type { Store } from '../../engine/state/store.ts'
import { deleteToken, isTokenKnown, saveToken, tokensOf, type StoredToken, type TokenInput } from '../../engine/state/token-store.ts'
import type { TokenMemory } from '../../engine/state/token-memory.ts'
import { newToken } from '../../engine/state/tokens.ts'

type TokenEditsOptions = Readonly<{
  store: Store
  memory: Pick<TokenMemory, 'usedAt'>
  /** Settles when every process knows the tokens that are stored. */
  takeIn: () => Promise<void>
}>

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
      return (await tokensOf(query, account)).find(({ name }) => name === input.name)
    })
    if (!made) throw new Error('the token that was saved is not there')
    return { ...made, token }
  }

  /** Deletes a token: when this settles it works in no process any more. @throws EngineError NOT_FOUND */
  async revoke(account: Account, id: string): Promise<void> {
    await this.#edit(account, async (query) => {
      if (!(await deleteToken(query, account, id))) throw new EngineError('NOT_FOUND', `There is no API token "${id.slice(0, 100)}".`)
    })
  }

  async #edit<T>(account: Account, work: (query: Query) => Promise<T>): Promise<T> {
    const result = await this.#options.store.transaction(work, accountLock(account.id))
    await this.#options.takeIn()
    return result
  }
}
