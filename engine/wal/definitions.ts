/**
 * Changes are decoded by the definition of their table and routed by a routing version. Both change along the stream, and
 * this file finds what holds from a place on.
 *
 * A Relation message announces a table. Where it doesn't say enough, the catalogue is asked. What was found is saved by
 * position, so that a re-run decodes alike (docs/rules.md, rule 11). Where a table groups its changes by other columns than before,
 * the next generation begins of each sink that depends on it (docs/rules.md, rule 24).
 *
 *  D1. A table that is as it was, and says all about itself, costs no I/O.
 *  D2. That a table has changed and where the generations open are saved in one step, before anything above is appended.
 *  D3. Within a transaction a table that says the same of itself keeps the key that its changes began with. Postgres announces
 *      it again whenever its own cache is stale, as after an ANALYZE, and the catalogue is of a later time by then. If it was the
 *      transaction itself that changed the key, the table is announced once more with its next change in a later one.
 *  D4. Below the last place that a former run has saved a table keeps what was known of it, for that run has read it so. The
 *      catalogue would have a generation begin below one that has begun already.
 */
import type { Log, Topic } from '../log/log.ts'
import { comparePositions, PART, type Position } from '../position.ts'
import type { RoutingVersion } from '../state/resources.ts'
import { describeByMessage, describeRelation, needsLookup } from './decode/catalog.ts'
import type { Cursor } from './cursor.ts'
import {
  columnsOf,
  type KnownRelations,
  type RelationColumns,
  sameColumns,
  sameGrouping,
  type SavedRelation,
} from './decode/known-relations.ts'
import type { RelationMessage } from './decode/pgoutput.ts'
import type { Landmark } from './history.ts'
import { Relation, type RelationDescription } from './decode/relation.ts'
import { compileTargets } from './routing/routing.ts'
import type { RoutingState } from './routing/routing-state.ts'
import { endsOf, joinReaders, beginTopics, topicsOf } from './run-start.ts'
import type { Query } from '../postgres/query.ts'
import type { SourceObserver } from './source-settings.ts'
import type { SourceStore } from './source-store.ts'

/** Describes a table as its changes are read from here on. @property left topics that generations leave ahead of its next change */
export type Described = Readonly<{ relation: Relation; left: readonly Topic[] }>

type DefinitionsOptions = Readonly<{
  store: Pick<SourceStore, 'makeTopics' | 'saveRelation' | 'saveRegrouping' | 'routingVersion' | 'placeVersion'>
  log: Log
  cursor: Cursor
  routing: RoutingState
  known: KnownRelations
  landmark: Landmark
  /** on the source's database */
  query: Query
  observer: Pick<SourceObserver, 'notice' | 'routed'>
}>

/** Finds, and saves for later runs, what the changes of a run are read and routed by from the place of its cursor on. */
export class Definitions {
  readonly #options: DefinitionsOptions

  constructor(options: DefinitionsOptions) {
    this.#options = options
  }

  /**
   * The cursor stands at the relation's next change. A promise where I/O is needed: no chunk may be handled meanwhile.
   * @param met as what changes of the same transaction have been read
   * @throws what the catalogue and the state database throw
   */
  describe(message: RelationMessage, met?: Relation): Described | Promise<Described> {
    const { cursor, routing, known } = this.#options
    const { position, isDurable } = cursor
    const left = routing.reach(before(position)) // what a former run has begun here
    const saved = known.at(message.oid, position)
    if (saved) return { relation: new Relation(message, saved), left }
    const former = known.before(message.oid, position)
    if (needsLookup(message)) {
      const isPassed = isDurable || known.isPassed(position) || routing.isPassed(position)
      const kept = met && saysTheSame(message, met.message) ? met.description : isPassed ? former : undefined
      return kept ? { relation: new Relation(message, kept), left } : this.#lookUp(message, former, left)
    }
    const description = describeByMessage(message)
    const now = columnsOf(message, description)
    if (isDurable || (former && sameColumns(fullOf(former) ?? now, now))) return { relation: new Relation(message, description), left }
    return this.#save(message, { ...description, columns: now.columns }, former, left)
  }

  /**
   * The routing version that a mark names takes effect at the cursor, unless an earlier mark has said so already.
   * @returns topics that generations leave here
   */
  async place(number: number): Promise<readonly Topic[]> {
    const { store, log, cursor, routing, landmark, observer } = this.#options
    const { position, isDurable } = cursor
    const found = await store.routingVersion(number)
    if (!found) observer.notice?.(`a mark in the write-ahead log names routing version ${number}, which the state database does not know`)
    if (!found || (found.position === undefined && landmark.isAhead)) return [] // its place would be of another past
    // what the log has was made ready before it was appended, and some topics may be gone again
    const ends = isDurable ? [] : await beginTopics(store, log, { from: routing.active, to: found.routing, position })
    const stands = await store.placeVersion(number, position, ends)
    const left = comparePositions(stands, position) === 0 ? routing.switchTo(found.routing) : []
    observer.routed?.()
    return left
  }

  async #lookUp(message: RelationMessage, former: SavedRelation | undefined, left: readonly Topic[]): Promise<Described> {
    const description = await describeRelation(this.#options.query, message)
    if (isAhead(description) && former && isOf(former, message)) return this.#save(message, former, former, left)
    return this.#save(message, { ...description, ...columnsOf(message, description) }, former, left)
  }

  async #save(
    message: RelationMessage,
    described: SavedRelation,
    former: SavedRelation | undefined,
    left: readonly Topic[],
  ): Promise<Described> {
    const { cursor, store, routing, log, known } = this.#options
    const { position, isDurable } = cursor
    const at = { relation: message.oid, position }
    const sinks = isDurable ? [] : this.#regroupedSinks(message, former, described)
    let saved = described
    let version: RoutingVersion | undefined
    if (sinks.length === 0) saved = await store.saveRelation({ ...at, saved })
    else {
      const ends = await endsOf(log, topicsOf(routing.active))
      version = await store.saveRegrouping({ ...at, saved }, before(position), { sinks, key: described.key, ends })
    }
    known.add({ ...at, saved })
    const relation = new Relation(message, saved)
    if (!version) return { relation, left }
    const many = `${sinks.length} ${sinks.length === 1 ? 'sink begins' : 'sinks begin'} another generation`
    this.#options.observer.notice?.(`${message.schema}.${message.table} groups its changes by other columns than before: ${many}`)
    await store.makeTopics(log, topicsOf(version))
    const { readers } = version
    await joinReaders(log, { ...version, readers: readers.filter(({ sinkId }) => sinks.includes(sinkId)) }, before(position), [])
    return { relation, left: [...left, ...routing.switchTo(version)] }
  }

  /** Readers of the streams that take the table and put its rows into other groups from here on. */
  #regroupedSinks({ schema, table }: RelationMessage, former: SavedRelation | undefined, now: SavedRelation): readonly string[] {
    const [a, b] = [former && fullOf(former), fullOf(now)]
    if (!a || !b) return []
    const { active } = this.#options.routing
    const targets = compileTargets(active, { schema, name: table })
    const regrouped = targets
      .filter(({ grouping, groupColumns }) => grouping && !sameGrouping(a, b, groupColumns))
      .map(({ topic }) => topic)
    return active.readers.filter(({ topic }) => regrouped.includes(topic)).map(({ sinkId }) => sinkId)
  }
}

const saysTheSame = (a: RelationMessage, b: RelationMessage): boolean =>
  a.replicaIdentity === b.replicaIdentity &&
  sameColumns(columnsOf(a, { key: [] }), columnsOf(b, { key: [] })) &&
  a.columns.every(({ key }, i) => key === b.columns[i]?.key)

/** The catalogue is of a later time than the message: the table is gone by then, or has a key of columns that were not there. */
const isAhead = ({ warnings }: RelationDescription): boolean =>
  warnings.some(({ code }) => code === 'table_dropped' || code === 'key_not_published')

/** Whether the table had the columns that it has in the message. */
const isOf = (saved: SavedRelation, message: RelationMessage): boolean =>
  saved.columns !== undefined && sameColumns({ columns: saved.columns, key: [] }, columnsOf(message, { key: [] }))

const fullOf = ({ columns, key }: SavedRelation): RelationColumns | undefined => columns && { columns, key }

/** The greatest position of a source's messages below the change at `position`: where a generation opens that begins with it. */
const before = ({ history, lsn, idx }: Position): Position => ({ history, lsn, idx: idx - 1, part: PART.row })
