/**
 * Knows which routing version holds where the stream stands, and what it means for each relation. Versions whose place is
 * known take effect by comparing positions; a new one when its mark comes (docs/rules.md, rule 6). No I/O.
 */
import type { Lsn } from '../../lsn.ts'
import { comparePositions, PART, type Position } from '../../position.ts'
import type { RoutingVersion } from '../../state/resources.ts'
import type { Relation } from '../decode/relation.ts'
import { compileTargets, ownTopic, type Target } from './routing.ts'
import type { PlacedVersion } from './stored-versions.ts'
import type { Topic } from '../../log/log.ts'

/** A target as it concerns one relation. */
export type RelationTarget = Readonly<{
  target: Target
  /** indexes of the columns that make the group */
  groupColumns: readonly number[]
  /** the group is not the primary key and is written beside it */
  hasOwnGroup: boolean
}>

/** Names a topic that a generation leaves at a position. A marker in each partition tells it so, and it may not have met that yet. */
export type LeavingTopic = Topic & Readonly<{ endsAt: Position }>

const NONE: readonly Topic[] = []
const NOTHING: RoutingVersion = { databaseId: '', version: 0, streams: [], readers: [] }

/** Knows what goes where at the place of the stream that has been reached. */
export class RoutingState {
  /** the versions that have a place, in the order of version, which is the order of place too */
  readonly #placed: PlacedVersion[]
  #active: RoutingVersion = NOTHING
  #next = 0
  #unmarked: LeavingTopic[]
  readonly #targets = new Map<Relation, readonly RelationTarget[]>()

  /** @param unmarked of generations whose markers may be missing: each gets one, where its place has been passed */
  constructor(versions: readonly PlacedVersion[], unmarked: readonly LeavingTopic[] = []) {
    this.#placed = versions.filter((version) => version.position !== undefined)
    this.#unmarked = [...unmarked]
  }

  get active(): RoutingVersion {
    return this.#active
  }

  /** Whether a former run has placed a version above the position: so it has handled what stands there. */
  isPassed(position: Position): boolean {
    const newest = this.#placed.at(-1)?.position
    return newest !== undefined && comparePositions(newest, position) > 0
  }

  /** A transaction begins: what took effect before it holds. @returns the topics that a generation leaves here */
  begin(history: number, lsn: Lsn): readonly Topic[] {
    return this.reach({ history, lsn, idx: -1, part: PART.row })
  }

  /**
   * Takes into effect the versions that have their place up to here.
   * @returns the topics that a generation leaves within this transaction: what was left before it was marked with what was
   *   confirmed, or is marked late
   */
  reach(position: Position): readonly Topic[] {
    let left: Topic[] | undefined // mostly nothing, once for each transaction
    for (let next = this.#placed[this.#next]; next?.position; next = this.#placed[this.#next]) {
      if (comparePositions(next.position, position) > 0) break
      this.#next++
      const { history, lsn } = next.position
      if (history === position.history && lsn === position.lsn) left = [...(left ?? []), ...this.#leftBy(next.routing, next.position)]
      this.#activate(next.routing)
    }
    return left ?? NONE
  }

  /**
   * Gives the topics that were left before here and may never have got their markers: their place did not come again in a change of
   * history, in an accepted gap, or with another log. Everything that is the generation's own has been appended by now. @returns
   * each topic once
   */
  markLate(position: Position): readonly Topic[] {
    if (this.#unmarked.length === 0) return NONE
    const { late = [], open = [] } = Object.groupBy(this.#unmarked, ({ endsAt }) =>
      comparePositions(endsAt, position) <= 0 ? 'late' : 'open',
    )
    this.#unmarked = open
    return once(late)
  }

  /** Puts a version into effect. @returns the topics that a generation leaves here */
  switchTo(version: RoutingVersion): readonly Topic[] {
    const left = this.#leftBy(version)
    while ((this.#placed[this.#next]?.routing.version ?? Infinity) <= version.version) this.#next++
    this.#activate(version)
    return left
  }

  /** The streams that take the relation's changes under the active version. */
  targets(relation: Relation): readonly RelationTarget[] {
    let targets = this.#targets.get(relation)
    if (!targets) {
      const { schema, table } = relation.message
      targets = compileTargets(this.#active, { schema, name: table }).map((target) => ({
        target,
        groupColumns: target.groupColumns ? relation.columnIndexes(target.groupColumns) : relation.key,
        hasOwnGroup: target.grouping && target.groupColumns !== undefined,
      }))
      this.#targets.set(relation, targets)
    }
    return targets
  }

  /** A relation was replaced. */
  forget(relation: Relation): void {
    this.#targets.delete(relation)
  }

  #activate(version: RoutingVersion): void {
    this.#active = version
    this.#targets.clear()
  }

  /** Sinks that go on with another generation, or with none. */
  #leftBy({ readers }: RoutingVersion, position?: Position): readonly Topic[] {
    const stay = new Set(readers.map(ownTopic))
    const partitions = new Map(this.#active.streams.map((stream) => [stream.topic, stream.partitions]))
    const leaving = this.#active.readers.filter((reader) => !stay.has(ownTopic(reader)))
    const left = once(leaving.map(({ topic }) => ({ topic, partitions: partitions.get(topic) ?? 0 })))
    const isMarked = ({ topic, endsAt }: LeavingTopic) =>
      left.some((each) => each.topic === topic) && (!position || comparePositions(endsAt, position) <= 0)
    this.#unmarked = this.#unmarked.filter((each) => !isMarked(each))
    return left
  }
}

/** One marker tells all who leave a topic at the same place. */
const once = (topics: readonly Topic[]): readonly Topic[] => [...new Map(topics.map((each) => [each.topic, each])).values()]
