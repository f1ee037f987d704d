/**
 * Looks whether each source publishes what its sinks ask for: now and then, and after edits. What is missing stands in the health
 * of the sinks, and once in the log. While a source can't be asked, its last answer stays.
 */
import { setTimeout as pause } from 'node:timers/promises'
import { Client } from 'pg'
import type { Logger } from '../../engine/logger.ts'
import type { Query } from '../../engine/postgres/query.ts'
import { cut } from '../../engine/postgres/client-cut.ts'
import type { Database, Sink } from '../../engine/state/resources.ts'
import { isOutsideIdentity, missingOf, namesOf, reasonOf } from '../../engine/state/source-names.ts'
import { publicationGaps, type PublicationGap } from '../../engine/wal/publication-gaps.ts'
import { sourceClient } from '../../engine/wal/connection/source-client.ts'
import { Rounds } from '../../engine/bell.ts'
import type { HealthCheck } from '../../engine/status.ts'
import { isKeyed } from '../../sinks/destination-types.ts'

/** Every so often; sooner while something is missing, for someone may be mending it. */
const EVERY_MS = 300_000
const EVERY_MS_WITH_GAPS = 15_000
/** No request waits for the answer. */
const LIMIT_MS = 30_000
/** Edits often come several at once. */
const GATHER_MS = 100
/** So long the watch rests after each look: with hundreds of tables a look costs the server more than the edit that caused it. */
const REST_MS = 2_000

/** Tells what is wrong with the tables of a sink: not published, or grouped by what Postgres doesn't tell of deleted rows. */
type Gap = PublicationGap | Readonly<{ code: 'group_outside_identity'; message: string }>
const STATUS = { group_outside_identity: 'error', table_not_published: 'warning', nothing_published: 'notice' } as const

type Known = Readonly<{ databases: readonly Database[]; sinks: readonly Sink[] }>

/**
 * Looks for tables that sinks ask for and their publication leaves out, now and then, and soon after a ring says that a sink was
 * made or edited, or that a source begins to stream.
 */
export class PublicationWatch extends Rounds {
  protected override readonly restMs = REST_MS
  readonly #known: () => Known
  readonly #logger: Logger
  /** by sink; empty: everything is published */
  readonly #gaps = new Map<string, readonly Gap[]>()

  constructor(known: () => Known, logger: Logger) {
    super()
    this.#known = known
    this.#logger = logger
  }

  check(sinkId: string): HealthCheck {
    const name = 'Sink configuration'
    const gaps = this.#gaps.get(sinkId)
    if (!gaps) return { name, status: 'waiting' }
    const [worst] = gaps
    if (!worst) return { name, status: 'healthy' }
    const message = gaps.map((gap) => gap.message).join('; ')
    return { name, status: STATUS[worst.code], error: { code: worst.code, message } }
  }

  protected override async round(): Promise<number> {
    await pause(GATHER_MS, undefined, { signal: this.signal }).catch(() => undefined)
    if (this.signal.aborted) return Infinity
    const { databases, sinks } = this.#known()
    const ids = new Set(sinks.map(({ id }) => id))
    for (const id of this.#gaps.keys()) if (!ids.has(id)) this.#gaps.delete(id)
    await Promise.all(databases.map((database) => this.#ask(database, sinks)))
    const hasGaps = [...this.#gaps.values()].some((gaps) => gaps.length > 0)
    return hasGaps ? EVERY_MS_WITH_GAPS : EVERY_MS
  }

  async #ask(database: Database, sinks: readonly Sink[]): Promise<void> {
    const { signal } = this
    const taking = sinks.filter(({ databaseId, status }) => databaseId === database.id && status !== 'disabled')
    const gaps = taking.length > 0 ? await gapsOf(database, taking, signal).catch(() => undefined) : undefined
    if (gaps && !signal.aborted) for (const sink of taking) this.#tell(sink, gaps.get(sink.id) ?? [])
  }

  #tell({ id, name }: Sink, gaps: readonly Gap[]): void {
    const known = new Set(this.#gaps.get(id)?.map(({ message }) => message))
    for (const { code, message } of gaps)
      if (!known.has(message)) this.#logger[STATUS[code] === 'notice' ? 'info' : 'warn']({ sink: name, code }, message)
    this.#gaps.set(id, gaps)
  }
}

/** Finds the columns by which sinks with a document for each key group, and which Postgres doesn't tell of deleted rows. */
async function groupsOutsideIdentity(query: Query, sinks: readonly Sink[]): Promise<readonly (Gap & Readonly<{ id: string }>)[]> {
  const names = sinks.flatMap((sink) => namesOf(sink, isKeyed(sink.destination)).map((name) => ({ ...name, id: sink.id })))
  const missing = await missingOf(
    query,
    names.filter(({ ofOldRow }) => ofOldRow),
  )
  return missing
    .filter(isOutsideIdentity)
    .map((name) => ({ id: name.id, code: 'group_outside_identity', message: `${name.field} ${reasonOf(name)}` }))
}

async function gapsOf(database: Database, sinks: readonly Sink[], signal: AbortSignal): Promise<ReadonlyMap<string, readonly Gap[]>> {
  const client = new Client({ ...sourceClient(database.connection, 'tailrace publication'), query_timeout: LIMIT_MS })
  client.on('error', () => {}) // the query hears of it
  const onAbort = () => cut(client)
  signal.addEventListener('abort', onAbort)
  try {
    await client.connect()
    const query: Query = (sql, params) => client.query<Record<string, unknown>>(sql, params && [...params])
    const unpublished = await publicationGaps(query, database.slot.publication, sinks)
    const outside = Map.groupBy(await groupsOutsideIdentity(query, sinks), ({ id }) => id)
    return new Map(sinks.map(({ id }) => [id, [...(outside.get(id) ?? []), ...(unpublished.get(id) ?? [])]]))
  } finally {
    signal.removeEventListener('abort', onAbort)
    await client.end().catch(() => undefined)
  }
}
