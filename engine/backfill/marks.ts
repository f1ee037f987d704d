/** The marks that backfills write into the log of their source, and where they stand in its stream. */
import { randomUUID } from 'node:crypto'
import { EngineError } from '../errors.ts'
import { fieldsOf } from '../json.ts'
import type { Query } from '../postgres/query.ts'
import type { Mark } from '../wal/change-packer.ts'

/** Prefix of the transactional logical message that marks a page of a backfill. */
export const BACKFILL_MARK = 'tailrace:backfill'

/** Writes the marks of one run of a source, in the order in which they are asked for. */
export class Marks {
  readonly #databaseId: string
  readonly #query: Query
  /** those that were asked for and have not come back, by id */
  readonly #open = new Map<string, (mark: Mark) => void>()
  /** the last one is written */
  #written: Promise<unknown> = Promise.resolve()

  /** @param query of the source, on a session that waits for no standby when it commits */
  constructor(databaseId: string, query: Query) {
    this.#databaseId = databaseId
    this.#query = query
  }

  /**
   * Writes a mark. @returns what `meet` gives where the mark stands in the stream
   * @throws EngineError BACKFILL_INTERRUPTED: the signal was aborted
   */
  async write<T>(meet: (mark: Mark) => T, signal: AbortSignal): Promise<T> {
    const id = randomUUID()
    const met = Promise.withResolvers<T>()
    const end = () => met.reject(interrupted('the run has ended'))
    if (signal.aborted) end()
    signal.addEventListener('abort', end)
    this.#open.set(id, (mark) => met.resolve(meet(mark)))
    try {
      if (!signal.aborted) this.#emit(JSON.stringify({ database: this.#databaseId, mark: id })).catch(met.reject)
      return await met.promise
    } finally {
      signal.removeEventListener('abort', end)
      this.#open.delete(id)
    }
  }

  /** Settles when those are written that were asked for. */
  get written(): Promise<unknown> {
    return this.#written
  }

  /** A mark has come: if it is one of these, what it was written for is done, at its place. Those of other runs mean nothing. */
  met(mark: Mark): void {
    const { database, mark: id } = fieldsOf(parsed(mark.content))
    if (database !== this.#databaseId || typeof id !== 'string') return
    const meet = this.#open.get(id)
    this.#open.delete(id)
    meet?.(mark)
  }

  /** Each mark is a transaction of its own: rows that are added at two of one would have the same places in the stream. */
  #emit(content: string): Promise<unknown> {
    const write = () => this.#query('select pg_catalog.pg_logical_emit_message(true, $1, $2)', [BACKFILL_MARK, content])
    const written = this.#written.then(write)
    this.#written = written.catch(() => undefined)
    return written
  }
}

/** Makes the error of a page that has to be read again. */
export const interrupted = (why: string): EngineError =>
  new EngineError('BACKFILL_INTERRUPTED', `the page of a backfill is read again: ${why}`)

function parsed(content: Buffer): unknown {
  try {
    return JSON.parse(content.toString('utf8'))
  } catch {
    return undefined // anybody may write a message of this prefix
  }
}
