/** Deletes what is older in the audit log than it is kept. */
import { Rounds } from '../bell.ts'
import type { Query } from '../postgres/query.ts'
import { pruneAudit } from './audit.ts'

const EVERY_MS = 3_600_000

/** Looks every hour. */
export class AuditPruning extends Rounds implements AsyncDisposable {
  readonly #query: Query
  readonly #days: number
  readonly #onError: (error: unknown) => void

  /** @param days entries are kept so long */
  constructor({ query, days, onError }: Readonly<{ query: Query; days: number; onError: (error: unknown) => void }>) {
    super()
    this.#query = query
    this.#days = days
    this.#onError = onError
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this[Symbol.dispose]()
    await this.ended
  }

  protected override async round(): Promise<number> {
    await pruneAudit(this.#query, this.#days)
    return EVERY_MS
  }

  protected override failed(error: unknown): number {
    this.#onError(error)
    return EVERY_MS
  }
}
