/**
 * Edits of backfills: each is one transaction with what it means for the sink, which has a stream of its own for as long as one of its
 * backfills has not ended (docs/rules.md, rule 47).
 */
import { EngineError } from '../../engine/errors.ts'
import type { Query } from '../../engine/postgres/query.ts'
import {
  addBackfill,
  backfillOf,
  moveBackfill,
  backfillsOf,
  removeBackfill,
  shareBackfills,
  unendedBackfills,
  type Backfill,
  type BackfillSettings,
  type BackfillState,
} from '../../engine/state/backfills.ts'
import { accountLock, saveGeneration, type ResourceStore } from '../../engine/state/resource-store.ts'
import type { Sink } from '../../engine/state/resources.ts'
import type { Store } from '../../engine/state/store.ts'

type BackfillEditsOptions = Readonly<{
  store: Pick<Store, 'query' | 'transaction'>
  resources: Pick<ResourceStore, 'load'>
  /** Makes what is stored take effect. */
  takeIn: () => Promise<void>
}>

/** Begins backfills of a sink, in the transaction of another edit. @returns the sink with them: it gets a stream of its own */
export async function beginBackfills(query: Query, sink: Sink, settings: readonly BackfillSettings[]): Promise<Sink> {
  await addAll(query, sink, settings)
  return shared(query, sink)
}

async function addAll(query: Query, { id }: Sink, settings: readonly BackfillSettings[]): Promise<readonly Backfill[]> {
  const added: Backfill[] = []
  for (const each of settings) added.push(await addBackfill(query, id, each))
  return added
}

/** Lets every process know which backfills of a sink have not ended. @param before the sink as it is stored */
async function shared(query: Query, before: Sink): Promise<Sink> {
  const sink = { ...before, backfills: await shareBackfills(query, before.id) }
  await saveGeneration(query, sink, before)
  return sink
}

/** Begins, changes and ends backfills. */
export class BackfillEdits {
  readonly #options: BackfillEditsOptions

  constructor(options: BackfillEditsOptions) {
    this.#options = options
  }

  /** Lists the backfills of a sink, newest first. */
  list({ id }: Pick<Sink, 'id'>): Promise<readonly Backfill[]> {
    return backfillsOf(this.#options.store.query, id)
  }

  /** Lists those of some sinks that have not ended, newest first. */
  async unended(sinks: readonly Sink[]): Promise<readonly Backfill[]> {
    const ids = sinks.flatMap(({ id, backfills }) => (backfills.length > 0 ? [id] : []))
    return ids.length > 0 ? unendedBackfills(this.#options.store.query, ids) : []
  }

  /** Finds a backfill of a sink. @throws EngineError NOT_FOUND */
  async find(sink: Pick<Sink, 'id'>, id: string): Promise<Backfill> {
    return (await backfillOf(this.#options.store.query, sink.id, id)) ?? gone()
  }

  /** Begins a backfill of each. @throws EngineError VALIDATION_FAILED: one of the same table has not ended; NOT_FOUND */
  start(sink: Sink, settings: readonly BackfillSettings[]): Promise<readonly Backfill[]> {
    return this.#edit(sink, (query) => addAll(query, sink, settings))
  }

  /** Pauses, resumes or ends a backfill. @throws EngineError VALIDATION_FAILED: it can't from where it is; NOT_FOUND */
  move(sink: Sink, id: string, to: Readonly<{ state: BackfillState; error?: Backfill['error'] }>): Promise<Backfill> {
    return this.#edit(sink, async (query) => (await moveBackfill(query, sink.id, id, to)) ?? gone())
  }

  /** Deletes the record of a backfill; one that has not ended is cancelled. @throws EngineError NOT_FOUND */
  delete(sink: Sink, id: string): Promise<void> {
    return this.#edit(sink, async (query) => {
      if (!(await backfillOf(query, sink.id, id))) gone()
      await removeBackfill(query, id)
    })
  }

  async #edit<T>(sink: Sink, work: (query: Query) => Promise<T>): Promise<T> {
    const { store, resources, takeIn } = this.#options
    const result = await store.transaction(async (query) => {
      const before = (await resources.load(query)).sinks.find(({ id }) => id === sink.id)
      if (!before) throw new EngineError('NOT_FOUND', 'the sink does not exist any more')
      const done = await work(query)
      await shared(query, before)
      return done
    }, accountLock(sink.accountId))
    await takeIn()
    return result
  }
}

function gone(): never {
  throw new EngineError('NOT_FOUND', 'the sink has no such backfill')
}
