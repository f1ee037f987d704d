/**
 * What the writer knows: the rows as committed, which session holds which row, and inside an open transaction the
 * journal so far. Because one writer drives all sessions and no two of them touch the same row at once, no statement
 * ever waits for a lock, and the outcome of each is known before it runs. Pure.
 */
import type { Json, Row } from './json.ts'
import { groupOf, type Change } from './journal.ts'
import type { Table } from './workload-tables.ts'

export type Key = readonly (string | number)[]

export class Rows {
  readonly #committed = new Map<string, Row>()
  readonly #holders = new Map<string, OpenTransaction>()

  /** Whether the transaction may touch the row: nobody else has since it was last committed. */
  isFree(table: Table, key: Key, by: OpenTransaction): boolean {
    const holder = this.#holders.get(nameOf(table, key))
    return holder === undefined || holder === by
  }

  get(table: Table, key: Key, by: OpenTransaction): Row | undefined {
    const name = nameOf(table, key)
    const own = by.row(name)
    return own === undefined ? this.#committed.get(name) : (own ?? undefined)
  }

  hold(table: Table, key: Key, by: OpenTransaction): void {
    this.#holders.set(nameOf(table, key), by)
  }

  /** @param outcome what became of the transaction */
  end(transaction: OpenTransaction, outcome: 'committed' | 'rolled back'): void {
    if (outcome === 'committed') {
      for (const [name, row] of transaction.rows()) {
        if (row) this.#committed.set(name, row)
        else this.#committed.delete(name)
      }
    }
    for (const [name, holder] of this.#holders) if (holder === transaction) this.#holders.delete(name)
  }
}

type Point = Readonly<{ name: string; changes: number; effects: number; idx: number; annotations: Json }>

/** An open transaction: what it did, with savepoints to go back to. */
export class OpenTransaction {
  /** names it, in the table of outcomes too */
  readonly number: number
  /** of tables that are captured */
  readonly changes: Change[] = []
  readonly #effects: [name: string, row: Row | null][] = []
  readonly #points: Point[] = []
  #idx = 0
  annotations: Json = null

  constructor(number: number) {
    this.number = number
  }

  get points(): readonly string[] {
    return this.#points.map((point) => point.name)
  }

  /** how many changes and messages it has so far */
  get size(): number {
    return this.#idx
  }

  /** @returns null: deleted here; undefined: not touched here */
  row(name: string): Row | null | undefined {
    return this.#effects.findLast(([touched]) => touched === name)?.[1]
  }

  rows(): ReadonlyMap<string, Row | null> {
    return new Map(this.#effects)
  }

  /** @param effects the row after the change under each key it touched */
  record(table: Table, change: Omit<Change, 'idx' | 'annotations' | 'table'>, effects: readonly (readonly [Key, Row | null])[]): void {
    if (table.captured) this.changes.push({ ...change, table: table.name, idx: this.#idx, annotations: this.annotations })
    this.#idx++
    for (const [key, row] of effects) this.#effects.push([nameOf(table, key), row])
  }

  /** A logical message: it takes an index. */
  message(annotations: Json): void {
    this.#idx++
    this.annotations = annotations
  }

  save(name: string): void {
    this.#points.push({ name, changes: this.changes.length, effects: this.#effects.length, idx: this.#idx, annotations: this.annotations })
  }

  rollbackTo(name: string): void {
    const at = this.#points.findIndex((point) => point.name === name)
    const point = this.#points[at]
    if (!point) throw new Error(`no savepoint ${name}`)
    this.#points.length = at + 1
    this.changes.length = point.changes
    this.#effects.length = point.effects
    this.#idx = point.idx
    this.annotations = point.annotations
  }
}

export const textKey = (key: Key): string[] => key.map(String)
const nameOf = (table: Table, key: Key): string => groupOf(table.name, textKey(key))
