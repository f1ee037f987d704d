/**
 * One change of a row, read from its pgoutput message and completed: a TOASTed value that was not sent is taken from the
 * old row where Postgres sent that. Scratch: one object serves a whole run, and says nothing any more once the next
 * change is read or the chunk is gone.
 */
import { malformed, KIND, readTuple, sameText, Tuple } from './tuple.ts'
import type { Chunk } from './chunk.ts'
import { OLD, type OldKind } from './pgoutput.ts'
import type { Relation } from './relation.ts'

type ChangeAction = 'insert' | 'update' | 'delete'

export class Change {
  relation!: Relation
  action: ChangeAction = 'insert'
  /** index among all messages of its transaction */
  idx = 0
  /** the new row; of no use for a delete */
  readonly row = new Tuple()
  /** the row before, as far as `oldKind` says: nothing, the columns of the replica identity, all */
  readonly old = new Tuple()
  oldKind: OldKind = OLD.none
  /** an update after which the row has another primary key */
  keyChanged = false

  /** @param newAt as the handler of `decode` got it. @throws EngineError MESSAGE_MALFORMED */
  readInsert(relation: Relation, idx: number, chunk: Chunk, newAt: number): this {
    this.#begin(relation, 'insert', idx, OLD.none)
    this.#read(chunk, newAt, this.row)
    return this
  }

  readUpdate(relation: Relation, idx: number, chunk: Chunk, old: OldKind, oldAt: number, newAt: number): this {
    this.#begin(relation, 'update', idx, old)
    if (old !== OLD.none) this.#read(chunk, oldAt, this.old)
    this.#read(chunk, newAt, this.row)
    if (old !== OLD.none) this.#compare()
    return this
  }

  readDelete(relation: Relation, idx: number, chunk: Chunk, old: OldKind, oldAt: number): this {
    this.#begin(relation, 'delete', idx, old)
    this.#read(chunk, oldAt, this.old)
    return this
  }

  /** Whether Postgres told what the column held before. */
  knowsOld(column: number): boolean {
    if (this.oldKind === OLD.none || (this.oldKind === OLD.key && this.relation.identity[column] === 0)) return false
    return this.old.kind[column] !== KIND.unchanged
  }

  #begin(relation: Relation, action: ChangeAction, idx: number, old: OldKind): void {
    this.relation = relation
    this.action = action
    this.idx = idx
    this.oldKind = old
    this.keyChanged = false
  }

  #read(chunk: Chunk, at: number, tuple: Tuple): void {
    readTuple(chunk, at, tuple)
    if (tuple.count !== this.relation.names.length) {
      throw malformed(`a row of ${tuple.count} columns for a table of ${this.relation.names.length}`, at)
    }
  }

  #compare(): void {
    const { row, old, relation } = this
    for (let i = 0; row.unchanged > 0 && i < row.count; i++) {
      if (row.kind[i] !== KIND.unchanged || !this.knowsOld(i)) continue
      row.kind[i] = old.kind[i] as number
      row.start[i] = old.start[i] as number
      row.end[i] = old.end[i] as number
      row.unchanged--
    }
    for (const column of relation.key) {
      if (row.kind[column] === KIND.text && this.knowsOld(column) && !this.sameAsOld(column)) this.keyChanged = true
    }
  }

  /** Whether an update left the column as it was. What isn't known counts as the same. */
  sameAsOld(column: number): boolean {
    const kind = this.row.kind[column]
    if (kind === KIND.unchanged || !this.knowsOld(column)) return true
    return kind === this.old.kind[column] && (kind !== KIND.text || sameText(this.row, column, this.old, column))
  }
}
