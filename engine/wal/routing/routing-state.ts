/**
 * Which routing version holds where the stream stands, and what it means for each relation. Versions whose place is
 * known take effect by comparing positions; a new one when its mark comes (correctness 6). No I/O.
 */
import type { Lsn } from '../../lsn.ts'
import { comparePositions, PART, type Position } from '../../position.ts'
import type { RoutedSink, RoutingVersion } from '../../state/resources.ts'
import type { Relation } from '../decode/relation.ts'
import { compileTargets, topicOf, type Target } from './routing.ts'
import type { PlacedVersion } from '../source-store.ts'

/** A target as it concerns one relation. */
export type RelationTarget = Readonly<{
  target: Target
  /** indexes of the columns that make the group */
  groupColumns: readonly number[]
  /** the group is not the primary key and is written beside it */
  hasOwnGroup: boolean
}>

/** The last generation of a sink, as its topic. */
export type EndedTopic = Readonly<{ topic: string; generation: number; partitions: number }>

/** A generation that ends at a position, and may not have got its last pack. */
export type EndingTopic = EndedTopic & Readonly<{ endsAt: Position }>

const NOTHING: RoutingVersion = { databaseId: '', version: 0, sinks: [] }

export class RoutingState {
  /** those with a place, in the order of version, which is the order of place too */
  readonly #placed: PlacedVersion[]
  #active: RoutingVersion = NOTHING
  #next = 0
  /** each sink as the last version that had it named it: one that was off meanwhile may come back with another generation */
  readonly #last = new Map<string, RoutedSink>()
  #unclosed: EndingTopic[]
  readonly #targets = new Map<Relation, readonly RelationTarget[]>()

  /** @param unclosed generations whose last pack may be missing: each gets one, where its place has been passed */
  constructor(versions: readonly PlacedVersion[], unclosed: readonly EndingTopic[] = []) {
    this.#placed = versions.filter((version) => version.position !== undefined)
    this.#unclosed = [...unclosed]
  }

  get active(): RoutingVersion {
    return this.#active
  }

  /** A transaction begins: what took effect before it holds. @returns the topics whose generation ends here */
  begin(history: number, lsn: Lsn): readonly EndedTopic[] {
    return this.reach({ history, lsn, idx: -1, part: PART.row })
  }

  /**
   * What has its place up to here holds.
   * @returns the topics whose generation ends within this transaction: what ended before it was closed with what was
   *   confirmed, or is closed late
   */
  reach(position: Position): readonly EndedTopic[] {
    const ended: EndedTopic[] = []
    for (let next = this.#placed[this.#next]; next?.position; next = this.#placed[this.#next]) {
      if (comparePositions(next.position, position) > 0) break
      this.#next++
      const { history, lsn } = next.position
      if (history === position.history && lsn === position.lsn) ended.push(...this.#endedBy(next.routing))
      this.#activate(next.routing)
    }
    return ended
  }

  /**
   * What ended before here, and may never have been closed: its place did not come again in a change of history, in an
   * accepted gap, or with another log. Everything that is its own has been appended by now. @returns it, once
   */
  closeLate(position: Position): readonly EndedTopic[] {
    if (this.#unclosed.length === 0) return []
    const { late = [], open = [] } = Object.groupBy(this.#unclosed, ({ endsAt }) =>
      comparePositions(endsAt, position) <= 0 ? 'late' : 'open',
    )
    this.#unclosed = open
    return late
  }

  /** A version takes effect. @returns the topics whose generation ends here */
  switchTo(version: RoutingVersion): readonly EndedTopic[] {
    const ended = this.#endedBy(version)
    while ((this.#placed[this.#next]?.routing.version ?? Infinity) <= version.version) this.#next++
    this.#activate(version)
    return ended
  }

  /** The sinks that take the relation's changes under the active version. */
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
    for (const sink of version.sinks) this.#last.set(sink.sinkId, sink)
    this.#targets.clear()
  }

  /** Sinks that go on with another generation: their old topics get a last pack. */
  #endedBy(version: RoutingVersion): EndedTopic[] {
    const ended = version.sinks.flatMap(({ sinkId, generation }) => {
      const former = this.#last.get(sinkId)
      return former && former.generation !== generation
        ? [{ topic: topicOf(former), generation: former.generation, partitions: former.partitions }]
        : []
    })
    this.#unclosed = this.#unclosed.filter(({ topic }) => !ended.some((each) => each.topic === topic))
    return ended
  }
}
