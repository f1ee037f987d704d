/**
 * Edits of backfills: each is one transaction with what it means for the sink, which has a stream of its own for as long as one of its
 * backfills has not ended (docs/rules.md, rule 47).
 */
import { EngineError } from '../../engine/errors.ts'
import type { Query } from '../../engine/postgres/query.ts'
import {
  addBackfills,
  backfillOf,
  endBackfills,
  moveBackfill,
  backfillsOf,
  removeBackfill,
  sinksWithBackfills,
  unendedBackfills,
  type Backfill,
  type BackfillEnd,
  type BackfillSettings,
  type BackfillState,
} from '../../engine/state/backfills.ts'
import { record, type Change } from '../../engine/state/audit.ts'
import { accountLock, saveGeneration, type ResourceStore } from '../../engine/state/resource-store.ts'
import type { Sink } from '../../engine/state/resources.ts'
import type { Store } from '../../engine/state/store.ts'
import { fieldChanges, plainly } from './audited-changes.ts'
import type { Form } from './form.ts'

type BackfillEditsOptions = Readonly<{
  store: Pick<Store, 'query' | 'transaction'>
  resources: Pick<ResourceStore, 'load'>
  /** Makes what is stored take effect. */
  takeIn: () => Promise<void>
}>

/** Begins backfills of a sink, in the transaction of another edit. @returns the sink with them: it gets a stream of its own */
export async function beginBackfills(query: Query, sink: Sink, settings: readonly BackfillSettings[]): Promise<Sink> {
  await addBackfills(query, sink.id, settings)
  const after = { ...sink, hasBackfills: true }
  await saveGeneration(query, after, sink)
  return after
}

/** Gives sinks a stream of their own, or one that they share again. @param before the sinks as they were before their backfills were edited */
async function saveStreams(query: Query, before: readonly Sink[]): Promise<void> {
  const having = await sinksWithBackfills(
    query,
    before.map(({ id }) => id),
  )
  for (const sink of before) await saveGeneration(query, { ...sink, hasBackfills: having.has(sink.id) }, sink)
}

/** Ends of backfills of an account that are put on record together. */
type EndGroup = Readonly<{ ends: BackfillEnd[]; recorded: Promise<ReadonlySet<string>> }>

/** Begins, changes and ends backfills. */
export class BackfillEdits {
  readonly #options: BackfillEditsOptions
  /** by account: that which gathers, while the one before it is put on record */
  readonly #gathering = new Map<string, EndGroup>()
  /** by account: settles when the last group is on record, or could not be put there */
  readonly #recording = new Map<string, Promise<unknown>>()

  constructor(options: BackfillEditsOptions) {
    this.#options = options
  }

  /** Lists the backfills of a sink, newest first. */
  list({ id }: Pick<Sink, 'id'>): Promise<readonly Backfill[]> {
    return backfillsOf(this.#options.store.query, id)
  }

  /** Lists those of some sinks that have not ended, newest first. */
  async unended(sinks: readonly Sink[]): Promise<readonly Backfill[]> {
    const ids = sinks.flatMap(({ id, hasBackfills }) => (hasBackfills ? [id] : []))
    return ids.length > 0 ? unendedBackfills(this.#options.store.query, ids) : []
  }

  /** Finds a backfill of a sink. @throws EngineError NOT_FOUND */
  async find(sink: Pick<Sink, 'id'>, id: string): Promise<Backfill> {
    return (await backfillOf(this.#options.store.query, sink.id, id)) ?? gone()
  }

  /** Begins a backfill of each. @throws EngineError VALIDATION_FAILED: one of the same table has not ended; NOT_FOUND */
  start(sink: Sink, settings: readonly BackfillSettings[]): Promise<readonly Backfill[]> {
    return this.#edit(sink.accountId, [sink.id], async (query) => {
      await record(
        query,
        settings.map((one) => backfillChange(sink, 'start', one.table, { ...one })),
      )
      return addBackfills(query, sink.id, settings)
    })
  }

  /** Pauses, resumes or ends a backfill. @throws EngineError VALIDATION_FAILED: it can't from where it is; NOT_FOUND */
  move(sink: Sink, id: string, to: Readonly<{ state: BackfillState; error?: Backfill['error'] }>): Promise<Backfill> {
    return this.#edit(sink.accountId, [sink.id], async (query) => {
      const moved = (await moveBackfill(query, sink.id, id, to)) ?? gone()
      await record(query, [backfillChange(sink, 'update', moved.table, { state: to.state })])
      return moved
    })
  }

  /** Deletes the record of a backfill; one that has not ended is cancelled. @throws EngineError NOT_FOUND */
  delete(sink: Sink, id: string): Promise<void> {
    return this.#edit(sink.accountId, [sink.id], async (query) => {
      const { table } = (await backfillOf(query, sink.id, id)) ?? gone()
      await removeBackfill(query, id)
      await record(query, [backfillChange(sink, 'delete', table, {})])
    })
  }

  /**
   * Puts on record how a backfill that was read has ended, together with those that end meanwhile: the end of one of a thousand tables
   * costs no transaction of its own. @returns false: it was paused, has ended, or is gone
   */
  async end({ accountId }: Pick<Sink, 'accountId'>, end: BackfillEnd): Promise<boolean> {
    const group = this.#gathering.get(accountId) ?? this.#gather(accountId)
    group.ends.push(end)
    return (await group.recorded).has(end.id)
  }

  #gather(accountId: string): EndGroup {
    const ends: BackfillEnd[] = []
    const before = this.#recording.get(accountId) ?? Promise.resolve()
    const recorded = before.then(() => {
      this.#gathering.delete(accountId)
      const sinkIds = [...new Set(ends.map(({ sinkId }) => sinkId))]
      return this.#edit(accountId, sinkIds, (query) => endBackfills(query, ends))
    })
    this.#recording.set(
      accountId,
      recorded.catch(() => undefined),
    )
    const group = { ends, recorded }
    this.#gathering.set(accountId, group)
    return group
  }

  async #edit<T>(accountId: string, sinkIds: readonly string[], work: (query: Query) => Promise<T>): Promise<T> {
    const { store, resources, takeIn } = this.#options
    const result = await store.transaction(async (query) => {
      const before = (await resources.load(query)).sinks.filter(({ id }) => sinkIds.includes(id))
      if (before.length === 0) throw new EngineError('NOT_FOUND', 'the sink does not exist any more')
      const done = await work(query)
      await saveStreams(query, before)
      return done
    }, accountLock(accountId))
    await takeIn()
    return result
  }
}

/** Gives what is done to a backfill for the audit log. */
const backfillChange = ({ accountId, name }: Sink, action: string, table: string, set: Form): Change => ({
  accountId,
  action,
  kind: 'backfill',
  name: `${name} ${table}`,
  changes: fieldChanges(undefined, plainly(set)),
})

function gone(): never {
  throw new EngineError('NOT_FOUND', 'the sink has no such backfill')
}
