/**
 * Whether a table groups its changes as it did before its definition changed. The group of a row is made of the values of
 * its primary key, or of the columns a sink groups by; with other columns the same row is in another group, and its
 * changes are no longer ordered against those before (correctness 24). When in doubt it is another grouping: that costs
 * a generation, the other mistake costs the order.
 */
import type { RelationMessage } from './pgoutput.ts'
import type { RelationDescription } from './relation.ts'

/** What of a table decides its groups. Plain JSON: saved with the description. */
export type RelationColumns = Readonly<{
  /** in the table's order */
  columns: readonly Readonly<{ name: string; typeOid: number }>[]
  /** names of the primary key's columns */
  key: readonly string[]
}>

export const columnsOf = (message: RelationMessage, { key }: Pick<RelationDescription, 'key'>): RelationColumns => ({
  columns: message.columns.map(({ name, typeOid }) => ({ name, typeOid })),
  key,
})

/** Whether nothing changed that any grouping could depend on. */
export const sameColumns = (a: RelationColumns, b: RelationColumns): boolean =>
  a.columns.length === b.columns.length &&
  a.key.length === b.key.length &&
  a.key.every((name, i) => name === b.key[i]) &&
  a.columns.every(({ name, typeOid }, i) => name === b.columns[i]?.name && typeOid === b.columns[i].typeOid)

/**
 * @param names the columns a sink groups by; undefined: the primary key
 * @returns whether the group of a row is made of the same columns. A column that was only renamed is the same one (the
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
