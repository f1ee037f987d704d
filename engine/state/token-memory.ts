/**
 * The API tokens in memory, so that no request waits for the state database. What is stored is taken in at a notice, and by a look every
 * few seconds, because a notice can be lost. They are read apart from the resources, whose edits may wait for a source: a token that
 * is revoked works no more as soon as this has heard of it.
 */
import { Rounds } from '../bell.ts'
import type { Query } from '../postgres/query.ts'
import type { StateFeed } from './state-feed.ts'
import { allTokens, printOfTokens, saveUses } from './token-store.ts'
import type { Token } from './tokens.ts'

const LOOK_EVERY_MS = 5_000
const RETRY_MS = 1_000
const SAVE_USES_EVERY_MS = 60_000

/** The part of it in which requests look their tokens up. */
export type TokenLookup = Readonly<{
  /** Finds a token by its hash (`hashToken`), and notes that it is used. @returns undefined: there is none, or its time is over */
  find: (hash: string) => Token | undefined
}>

type Options = Readonly<{
  query: Query
  /** absent: it looks by itself alone */
  feed?: Pick<StateFeed, 'watch'>
  onError: (error: unknown) => void
}>

/** The tokens of all accounts as they are stored now. */
export class TokenMemory extends Rounds implements TokenLookup, AsyncDisposable {
  readonly #options: Options
  #tokens: ReadonlyMap<string, Token> = new Map()
  #print = ''
  /** milliseconds since 1970, by id: what is not stored yet */
  readonly #uses = new Map<string, number>()
  #usesSavedAt = performance.now()
  #reading: Promise<void> = Promise.resolve()
  #nextReading: Promise<void> | undefined
  readonly #unwatch: (() => void) | undefined

  constructor(options: Options) {
    super()
    this.#options = options
    this.#unwatch = options.feed?.watch(({ about }) => {
      if (about === 'tokens' || about === 'everything') this.ring()
    })
  }

  readonly find = (hash: string): Token | undefined => {
    const token = this.#tokens.get(hash)
    const now = Date.now()
    if (!token || (token.expiresAt !== undefined && token.expiresAt <= now)) return undefined
    this.#uses.set(token.id, now)
    return token
  }

  /** Gives when a token was used last in this process, where that is not stored yet. */
  usedAt(id: string): number | undefined {
    return this.#uses.get(id)
  }

  /** Settles when what is stored at this moment is known here. One reading at a time, so that an older one never replaces a newer one. */
  load(): Promise<void> {
    return (this.#nextReading ??= this.#reading =
      this.#reading
        .catch(() => undefined)
        .then(async () => {
          this.#nextReading = undefined // a later caller may have stored something that this reading misses
          const { query } = this.#options
          const print = await printOfTokens(query)
          if (print === this.#print) return
          this.#tokens = await allTokens(query)
          this.#print = print
        }))
  }

  protected override async round(): Promise<number> {
    await this.load()
    if (performance.now() - this.#usesSavedAt >= SAVE_USES_EVERY_MS) await this.#saveUses()
    return LOOK_EVERY_MS
  }

  protected override failed(error: unknown, isFirst: boolean): number {
    if (isFirst) this.#options.onError(error)
    return RETRY_MS
  }

  /** Stores what was used, too. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#unwatch?.()
    this[Symbol.dispose]()
    await this.ended
    await this.#saveUses().catch(this.#options.onError)
  }

  async #saveUses(): Promise<void> {
    const uses = new Map(this.#uses)
    await saveUses(this.#options.query, uses)
    this.#usesSavedAt = performance.now()
    for (const [id, at] of uses) if (this.#uses.get(id) === at) this.#uses.delete(id)
  }
}
