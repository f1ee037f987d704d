/**
 * Databases as the API edits them. What is to be read is tried first, in the order in which it can fail: the network, the login, the
 * rights, whether the server is a standby, publication and slot. Nothing is stored of a database that can't be read, and what was made
 * on its server for it is dropped again.
 */
import { EngineError } from '../../engine/errors.ts'
import type { Logger } from '../../engine/logger.ts'
import { provision, type Beginning, type Provisioned } from '../../engine/wal/connection/provision.ts'
import { withTlsChosen } from '../../engine/postgres/tls-choice.ts'
import type { DatabaseInput } from '../../engine/state/resource-store.ts'
import type { Account, Database } from '../../engine/state/resources.ts'
import type { UnstoredDatabases } from '../../engine/wal/connection/unstored-databases.ts'
import { toSourceError } from '../../engine/wal/connection/source-error.ts'
import { askSource, checkSlot } from '../../engine/wal/connection/slot-check.ts'
import { sourceTables, type SourceTable } from '../../engine/wal/source-tables.ts'
import type { DatabaseChanges, NewDatabase } from './database-body.ts'
import type { ResourceEdits } from './resource-edits.ts'

type DatabaseEditsOptions = Readonly<{
  edits: Pick<ResourceEdits, 'create' | 'update' | 'delete'>
  logger: Pick<Logger, 'warn'>
  unstored: Pick<UnstoredDatabases, 'during'>
}>

type Making = Readonly<{ create: boolean; initSql?: string }>
type Verified = Readonly<{ input: DatabaseInput; undo: Provisioned['undo'] }>

const VERIFYING = 'verifying'

/** Tells whether an error says that a database can't be read, which is no failure of the service. */
export const isUnfit = (error: unknown): error is EngineError => error instanceof EngineError && error.context['step'] === VERIFYING

/** Creates, changes, deletes and tests databases. */
export class DatabaseEdits {
  readonly #options: DatabaseEditsOptions

  constructor(options: DatabaseEditsOptions) {
    this.#options = options
  }

  /** Stores a new database, which is read from then on. @throws EngineError VALIDATION_FAILED, and those of `isUnfit` */
  async create(account: Account, { input, ...making }: NewDatabase): Promise<Database> {
    return this.#making(making, async (beginning) => {
      const verified = await this.#verified(input, { ...making, beginning, isOurs: false })
      return stored(verified, () => this.#options.edits.create('database', account, verified.input))
    })
  }

  /** Stores some fields of a database anew. What concerns neither connection nor slot is not tried. @throws as `create` does */
  async update(database: Database, { changes, ...making }: DatabaseChanges): Promise<Database> {
    const { edits } = this.#options
    const now = inputOf(database)
    const input = { ...now, ...changes }
    const isMoved = READ_BY.some((field) => input[field] !== now[field])
    const isBegun = now.slotStatus === 'disabled' && input.slotStatus === 'active'
    if (!isMoved && !isBegun) return edits.update('database', database.id, changes)
    const isOurs = input.slotName === now.slotName // under another name of its host it is read by the source that is about to end
    return this.#making(making, async (beginning) => {
      const verified = await this.#verified(input, { ...making, beginning, isOurs })
      const { connection, primary = null } = verified.input
      const chosen = { ...changes, ...(changes.connection && { connection }), ...(changes.primary && { primary }) }
      return stored(verified, () => edits.update('database', database.id, chosen))
    })
  }

  #making<T>({ create }: Making, work: (beginning?: Beginning) => Promise<T>): Promise<T> {
    return create ? this.#options.unstored.during(work) : work()
  }

  /** Deletes a database with all that is kept of it. Its slot stays on its server. @throws EngineError RESOURCE_IN_USE */
  async delete(database: Database): Promise<void> {
    await this.#options.edits.delete('database', database.id)
  }

  /** Tries all that reading a database needs, and makes nothing. @returns what is wrong; undefined: nothing */
  async test(database: Database): Promise<EngineError | undefined> {
    const tried = await orUnfit(this.#verified(inputOf(database), { create: false, isOurs: true }))
    return tried instanceof EngineError ? tried : undefined
  }

  /** Lists the tables of a database as they are now. @returns an error: it can't be read */
  async tables({ connection, slot }: Database): Promise<readonly SourceTable[] | EngineError> {
    const asked = askSource(connection, 'tailrace tables', (query) => sourceTables(query, slot.publication))
    return orUnfit(
      asked.catch((error: unknown) => {
        throw unfit(error)
      }),
    )
  }

  /** @param isOurs the slot may be read by a process of ours */
  async #verified(
    given: DatabaseInput,
    { create, initSql, beginning, isOurs }: Making & Readonly<{ beginning?: Beginning | undefined; isOurs: boolean }>,
  ): Promise<Verified> {
    try {
      const input = await withTlsOf(given)
      const { connection, primary, slotName, publicationName } = input
      const { undo } = await provision(connection, {
        primary,
        slot: { name: slotName, create },
        publication: { name: publicationName, create, ...(initSql !== undefined && { initSql }) },
        beginning,
      })
      await checkSlot(connection, { slot: slotName, publication: publicationName, isOurs }).catch(async (error: unknown) => {
        await undo()
        throw error
      })
      if (connection.withoutTls)
        this.#options.logger.warn(
          { database: input.name, hostname: connection.hostname },
          'ssl is not set and the server offers no TLS: the connection to this database is not encrypted',
        )
      return { input, undo }
    } catch (error) {
      throw unfit(error)
    }
  }
}

function unfit(error: unknown): EngineError {
  const { code, message, context } = toSourceError(error, 'connecting')
  return new EngineError(code, message, { ...context, step: VERIFYING }, { cause: error })
}

/** Gives the error of a database that can't be read as a result. */
async function orUnfit<T>(asked: Promise<T>): Promise<T | EngineError> {
  try {
    return await asked
  } catch (error) {
    if (isUnfit(error)) return error
    throw error
  }
}

/** Finds out whether the servers of a database offer TLS, where its user left that open. */
export async function withTlsOf(input: DatabaseInput): Promise<DatabaseInput> {
  const connection = await withTlsChosen(input.connection)
  return { ...input, connection, ...(input.primary && { primary: await withTlsChosen(input.primary) }) }
}

/** The settings that decide from where, and how, a database is read. */
const READ_BY = ['connection', 'primary', 'slotName', 'publicationName'] as const

function inputOf({ slot, name, connection, primary = null, poolSize, annotations, hints = {} }: Database): DatabaseInput {
  const { name: slotName, publication: publicationName, status: slotStatus } = slot
  return { name, connection, primary, poolSize, annotations, hints, slotName, publicationName, slotStatus }
}

/** Stores what was verified, or drops again what was made for it. */
async function stored<T>({ undo }: Verified, store: () => Promise<T>): Promise<T> {
  try {
    return await store()
  } catch (error) {
    await undo()
    throw error
  }
}
