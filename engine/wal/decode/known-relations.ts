/**
 * The descriptions saved for the tables of a source, each from a position on. Postgres announces a table where its own caches
 * want it, which is elsewhere in each run: what a former run found of a table holds from the place where that run met it,
 * announced there or not, so that every run decodes alike (docs/rules.md, rule 6). No I/O.
 */
import { comparePositions, type Position } from '../../position.ts'
import type { RelationDescription } from './relation.ts'
import type { RelationMessage } from './pgoutput.ts'

/** Holds a description of a table as it is saved. @property columns absent: saved by a version that didn't need them */
export type SavedRelation = RelationDescription & Readonly<{ columns?: RelationColumns['columns'] }>
/** Holds what was found of a table at a position. */
export type RelationAt = Readonly<{ relation: number; position: Position; saved: SavedRelation }>

/** Remembers what former runs, and this one, have found of the tables. */
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
    return next && isHere ? next.position.idx : Infinity
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

/**
 * Whether a table groups its changes as it did before its definition changed. The group of a row is made of the values of
 * its primary key, or of the columns a sink groups by; with other columns the same row is in another group, and its
 * changes are no longer ordered against those before (docs/rules.md, rule 24). When in doubt it is another grouping: that costs
 * a generation, the other mistake costs the order.
 */

/** Holds what decides the groups of a table's changes, as plain JSON that is saved with the description. */
export type RelationColumns = Readonly<{
  /** in the table's order */
  columns: readonly Readonly<{ name: string; typeOid: number }>[]
  /** names of the primary key's columns */
  key: readonly string[]
}>

/** Gives what decides the groups of a table's changes, by its message and its description. */
export const columnsOf = (message: RelationMessage, { key }: Pick<RelationDescription, 'key'>): RelationColumns => ({
  columns: message.columns.map(({ name, typeOid }) => ({ name, typeOid })),
  key,
})

/** Tells whether nothing changed that any grouping could depend on. */
export const sameColumns = (a: RelationColumns, b: RelationColumns): boolean =>
  a.columns.length === b.columns.length &&
  a.key.length === b.key.length &&
  a.key.every((name, i) => name === b.key[i]) &&
  a.columns.every(({ name, typeOid }, i) => name === b.columns[i]?.name && typeOid === b.columns[i].typeOid)

/**
 * Compares the groups of a table before and after its definition changed. @param names the columns a sink groups by; undefined: the
 * primary key @returns whether the group of a row is made of the same columns. A column that was only renamed is the same one (the
 *   stream has no numbers of columns: with as many columns as before the place tells, else the name)
 */
export function sameGrouping(former: RelationColumns, now: RelationColumns, names: readonly string[] | undefined): boolean {
  const before = groupOf(former, names)
  const after = groupOf(now, names)
  const byPlace = former.columns.length === now.columns.length
  return (
    before.length === after.length &&
    before.every((place, i) => {
      const a = former.columns[place]
      const b = now.columns[after[i] as number]
      return a?.typeOid === b?.typeOid && (byPlace ? place === after[i] : a?.name === b?.name)
    })
  )
}

/** Places of the columns that make the group, in the order in which they do: the key's as they stand in the table. */
function groupOf({ columns, key }: RelationColumns, names: readonly string[] | undefined): readonly number[] {
  if (!names) return columns.flatMap(({ name }, i) => (key.includes(name) ? [i] : []))
  return names.map((name) => columns.findIndex((column) => column.name === name)).filter((i) => i >= 0)
}
