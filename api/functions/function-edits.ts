/** Edits and trial runs of functions, as the API asks for them: each edit in one transaction, checked against what is stored. */
import { EngineError } from '../../engine/errors.ts'
import { FUNCTION_FIELDS, refuseMissingFunctions, type FunctionField, type StoredFunction } from '../../engine/state/functions.ts'
import { accountLock, type ResourceStore, type Resources } from '../../engine/state/resource-store.ts'
import type { StateQuery, Store } from '../../engine/state/store.ts'
import type { Account, Sink } from '../../engine/state/resources.ts'
import type { Connection } from '../../engine/postgres/client-config.ts'
import { compileFunction, type Written } from '../../transforms/compile.ts'
import type { FunctionPool } from '../../transforms/sandbox/pool.ts'
import { rehearse, type Rehearsal } from './function-rehearsal.ts'
import { tryEnrichment } from '../../transforms/enrichment-trial.ts'
import { tryFunction, type RouteTrial, type TrialMessage, type TrialResult } from '../../transforms/trial.ts'

type FunctionEditsOptions = Readonly<{
  store: Store
  resources: ResourceStore
  pool: FunctionPool
  /** makes what is stored take effect here */
  reload: () => Promise<void>
}>

/** What a trial is made with: the database that a query runs on, what a route comes to. */
type TrialPlace = Readonly<{ connection?: Connection | undefined; routed?: RouteTrial | undefined }>

export class FunctionEdits {
  readonly #options: FunctionEditsOptions

  constructor(options: FunctionEditsOptions) {
    this.#options = options
  }

  /** @throws EngineError VALIDATION_FAILED: the name is taken, or the code can't be built */
  async create(account: Account, written: Written): Promise<StoredFunction> {
    const input = await compileFunction(written, this.#options.pool.of(account.id))
    const id = await this.#edit(account.id, async (query, stored) => {
      refuseTaken(account.id, written.name, undefined, stored)
      return this.#options.resources.saveFunction(query, account, input)
    })
    return { ...input, id, accountId: account.id }
  }

  /** The sinks that have it by its name have it by the new one. @throws EngineError VALIDATION_FAILED, NOT_FOUND */
  async update(known: StoredFunction, changes: Partial<Written>): Promise<StoredFunction> {
    const { accountId, id } = known
    const { name, type, description, sinkType, code } = { ...known, ...changes }
    const input = await compileFunction({ name, type, description, sinkType, code }, this.#options.pool.of(accountId))
    await this.#edit(accountId, async (query, stored) => {
      const before = stored.functions.find((fn) => fn.id === id)
      if (!before) throw new EngineError('NOT_FOUND', 'the function does not exist any more')
      refuseTaken(accountId, name, id, stored)
      const others = stored.functions.filter((fn) => fn.accountId === accountId && fn.id !== id)
      for (const sink of usersOf(before, stored.sinks))
        ofSink(sink.name, () =>
          refuseMissingFunctions(renamed(sink, before.name, name), sink.destination, [...others, { name, type, sinkType }]),
        )
      if (name !== before.name) await this.#options.resources.renameFunction(query, before, name)
      await this.#options.resources.saveFunction(query, { id: accountId, name: '' }, input)
    })
    return { ...input, id, accountId }
  }

  /** @throws EngineError VALIDATION_FAILED: a sink has it */
  async delete(known: StoredFunction): Promise<void> {
    await this.#edit(known.accountId, async (query, { sinks, functions }) => {
      const now = functions.find(({ id }) => id === known.id)
      const users = now ? usersOf(now, sinks) : []
      if (users.length > 0) {
        const names = users.map(({ name }) => `"${name}"`).join(', ')
        const reason = `is attached to the sink${users.length > 1 ? 's' : ''} ${names}: "none" in its place takes it away`
        throw new EngineError('VALIDATION_FAILED', `the function "${known.name}" ${reason}`, { name: reason })
      }
      await this.#options.resources.deleteFunction(query, known.id)
    })
  }

  /** Runs a function that need not be stored, apart from those at work. @throws EngineError VALIDATION_FAILED, SANDBOX_UNAVAILABLE */
  test(
    { id }: Account,
    written: Written,
    messages: readonly TrialMessage[],
    { connection, routed }: TrialPlace = {},
  ): Promise<TrialResult[]> {
    const pool = this.#options.pool.of(id)
    if (written.type === 'enrichment' && connection) return tryEnrichment(written, messages, { connection, pool })
    return tryFunction(written, messages, pool, routed)
  }

  /** @see rehearse */
  rehearse(fn: StoredFunction, rehearsal: Rehearsal): Promise<readonly string[]> {
    return rehearse(fn, rehearsal, this.#options.pool.of(fn.accountId))
  }

  /** One edit of an account at a time, of all processes; it has taken effect here when this settles. */
  async #edit<T>(accountId: string, work: (query: StateQuery, stored: Resources) => Promise<T>): Promise<T> {
    const { store, resources, reload } = this.#options
    const result = await store.transaction(async (query) => work(query, await resources.load(query)), accountLock(accountId))
    await reload()
    return result
  }
}

export const usersOf = ({ accountId, name }: StoredFunction, sinks: readonly Sink[]): readonly Sink[] =>
  sinks.filter((sink) => sink.accountId === accountId && FUNCTION_FIELDS.some((field) => sink[field] === name))

const renamed = (sink: Sink, from: string, to: string): Pick<Sink, FunctionField> =>
  Object.fromEntries(FUNCTION_FIELDS.map((field) => [field, sink[field] === from ? to : sink[field]]))

/** What a sink's form would be refused for is told of that sink. */
function ofSink(name: string, check: () => void): void {
  try {
    check()
  } catch (error) {
    if (!(error instanceof EngineError) || error.code !== 'VALIDATION_FAILED') throw error
    const reasons = Object.entries(error.context).map(([field, reason]) => [field, `of the sink "${name}" ${reason}`] as const)
    throw new EngineError('VALIDATION_FAILED', reasons.map((words) => words.join(' ')).join('; '), Object.fromEntries(reasons))
  }
}

function refuseTaken(accountId: string, name: string, id: string | undefined, { functions }: Resources): void {
  if (functions.some((fn) => fn.accountId === accountId && fn.name === name && fn.id !== id))
    throw new EngineError('VALIDATION_FAILED', `another function is named "${name}"`, { name: 'is taken' })
}
