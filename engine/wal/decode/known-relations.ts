/**
 * The descriptions saved for the tables of a source, each from a position on. Postgres announces a table where its own caches
 * want it, which is elsewhere in each run: what a former run found of a table holds from the place where that run met it,
 * announced there or not, so that every run decodes alike (invariant 3). No I/O.
 */
import { comparePositions, type Position } from '../../position.ts'
import type { RelationDescription } from './relation.ts'
import type { RelationColumns } from './relation-grouping.ts'

/** @property columns absent: saved by a version that didn't need them */
export type SavedRelation = RelationDescription & Readonly<{ columns?: RelationColumns['columns'] }>
export type RelationAt = Readonly<{ relation: number; position: Position; saved: SavedRelation }>

export class KnownRelations {
  /** oldest first */
  readonly #byOid = new Map<number, RelationAt[]>()
  /** of former runs, oldest first */
  readonly #former: readonly RelationAt[]
  /** the first of them that has not been passed */
  #ahead = 0

  /** @param former of former runs, oldest first */
  constructor(former: readonly RelationAt[]) {
    this.#former = former
    for (const one of former) this.add(one)
  }

  /** In the place of what is known of the relation there. */
  add(one: RelationAt): void {
    const known = this.#byOid.get(one.relation) ?? []
    const below = known.filter(({ position }) => comparePositions(position, one.position) < 0)
    const above = known.filter(({ position }) => comparePositions(position, one.position) > 0)
    this.#byOid.set(one.relation, [...below, one, ...above])
  }

  /** Whether a former run has found something above the position: so it has handled what stands there. */
  isPassed(position: Position): boolean {
    const newest = this.#former.at(-1)
    return newest !== undefined && comparePositions(newest.position, position) > 0
  }

  /**
   * The next place where a former run found something of a table.
   * @param position never below that of an earlier call
   * @returns the index of a message in the transaction of `position`, from there on; Infinity: there is none in it
   */
  nextIdx(position: Position): number {
    let next = this.#former[this.#ahead]
    while (next && comparePositions(next.position, position) < 0) next = this.#former[++this.#ahead]
    const isHere = next && next.position.history === position.history && next.position.lsn === position.lsn
    return isHere ? (next as RelationAt).position.idx : Infinity
  }

  /** @returns the tables of which a former run found something right there */
  foundAt(position: Position): readonly number[] {
    return this.#former.filter((one) => comparePositions(one.position, position) === 0).map(({ relation }) => relation)
  }

  /** @returns what is saved right there */
  at(relation: number, position: Position): SavedRelation | undefined {
    return this.#byOid.get(relation)?.find((one) => comparePositions(one.position, position) === 0)?.saved
  }

  /** @returns what was saved last below the position */
  before(relation: number, position: Position): SavedRelation | undefined {
    return this.#byOid.get(relation)?.findLast((one) => comparePositions(one.position, position) < 0)?.saved
  }
}
