/** The descriptions saved for the tables of a source, each from a position on. No I/O. */
import { comparePositions, type Position } from '../../position.ts'
import type { RelationDescription } from './relation.ts'
import type { RelationColumns } from './relation-grouping.ts'

/** @property columns absent: saved by a version that didn't need them */
export type SavedRelation = RelationDescription & Readonly<{ columns?: RelationColumns['columns'] }>
export type RelationAt = Readonly<{ relation: number; position: Position; saved: SavedRelation }>

export class KnownRelations {
  /** oldest first */
  readonly #byOid = new Map<number, RelationAt[]>()

  /** @param all of a relation, the oldest first */
  constructor(all: readonly RelationAt[]) {
    for (const one of all) this.add(one)
  }

  /** Above all that is known of the relation, or in the place of what is. */
  add(one: RelationAt): void {
    const known = this.#byOid.get(one.relation) ?? []
    this.#byOid.set(one.relation, [...known.filter(({ position }) => comparePositions(position, one.position) < 0), one])
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
