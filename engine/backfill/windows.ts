/**
 * Between its two marks a page has a window, which collects the keys of all changes of its table, before any filter (docs/rules.md, rule 31).
 * A change that the sink gets is newer than the page's row, which is then left out; so is a row that was deleted. A row whose change the
 * sink does not get, or gets without a large value that an update left alone, has to be read again, as it is by then. So
 * has, in a table without a key, each row that looks as one did that was changed: which of them it was nobody can say. No I/O.
 */
import { ByteWriter } from '../byte-writer.ts'
import type { ChangePlace, ChangeWatcher, OwnStream } from '../wal/change-packer.ts'
import { type Change, type ChangeAction, groupHash, writeKeys, type Side } from '../wal/decode/change.ts'
import type { Relation } from '../wal/decode/relation.ts'
import { ACTION_BIT } from '../wal/routing/routing.ts'

/** Keys that one window may hold; one that had more is void, and its page is read again. */
const MAX_KEYS = 500_000

/**
 * What has become of a row since a page's low mark. 'newer': what the stream brings for it is enough, or it is gone; otherwise it has to be
 * read again: 'partly': the stream has brought something of it; 'unseen': nothing.
 */
export type Fate = 'newer' | 'partly' | 'unseen'

/** A change of the key is an update to some sinks, and a delete and an insert to others. */
const KEY_CHANGE = ACTION_BIT.update | ACTION_BIT.insert

/**
 * Whether a sink gets of an update what it has to know of its row. @param actions bits of what it takes; @param action as
 * ChangeWatcher.changed has it; @param isMoved the row got another key
 */
export const isEnough = (actions: number, action: number, isMoved: boolean): boolean => {
  const asked = isMoved ? KEY_CHANGE : action
  return action !== 0 && (actions & asked) === asked
}

/** The part of a sink's settings that decides what its stream brings of a change. */
type WindowStream = Pick<OwnStream, 'actions' | 'isShed'>

/** Says how it is known which row of a table a change is of: by columns of a key; or by all columns, which other rows may have alike. */
export type RowIdentity = Readonly<{ columns: readonly string[] }> | Readonly<{ rowsOf: readonly string[] }>

const namesIn = (identity: RowIdentity) => ('columns' in identity ? identity.columns : identity.rowsOf)

/** Writes by which key the windows know the row of a change, on one side of it. */
export class RowKeys {
  readonly #identity: RowIdentity
  readonly #bytes = new ByteWriter(256)
  #relation: Relation | undefined
  #columns: readonly number[] | undefined

  constructor(identity: RowIdentity) {
    this.#identity = identity
  }

  /** Whether rows of a table, as it is described, have all columns that the key is made of. */
  fits(relation: Relation): boolean {
    if (this.#relation !== relation) {
      this.#relation = relation
      const names = namesIn(this.#identity)
      const columns = relation.columnIndexes(names)
      const isWhole = 'columns' in this.#identity || relation.names.length === names.length
      this.#columns = columns.length === names.length && isWhole ? columns : undefined
    }
    return this.#columns !== undefined
  }

  /** The key of a row of a table that fits: a text of latin1, a character for each byte of UTF-8. */
  of(change: Change, side: Side): string {
    const columns = this.#columns ?? []
    if (!('columns' in this.#identity)) return String(groupHash(change, columns, side)) // rows may be long; two of one hash are read again in vain
    this.#bytes.reset()
    writeKeys(this.#bytes, change, side, columns)
    return this.#bytes.view().toString('latin1')
  }
}

/** The changes of one table since a page's low mark. Keys are those of RowKeys. */
export class Window {
  readonly relation: number
  readonly identity: RowIdentity
  readonly #keys: RowKeys
  readonly #stream: WindowStream
  readonly #changed = new Map<string, Fate>()
  /** rows whose place in the order was changed by what the sink does not get: they may have come from where the backfill has not been yet */
  readonly #moved = new Set<string>()
  readonly #anyMoves: boolean
  /** the table was emptied, or more was changed than a window holds: nothing of the page holds any more */
  isVoid = false

  /** @param anyMoves every change may bring a row to where the backfill has been: the rows are not ordered by the columns of `identity` alone */
  constructor(relation: number, stream: WindowStream, identity: RowIdentity, anyMoves = false) {
    this.relation = relation
    this.identity = identity
    this.#keys = new RowKeys(identity)
    this.#stream = stream
    this.#anyMoves = anyMoves
  }

  /** The fate of a row since it was read; undefined: nothing has changed it. */
  of(key: string): Fate | undefined {
    return this.#changed.get(key)
  }

  /** No row was changed since it opened. */
  get isUntouched(): boolean {
    return this.#changed.size === 0
  }

  /** The keys of rows that have to be read again, wherever they were before. */
  *moved(): Iterable<string> {
    for (const key of this.#moved) if (this.#changed.get(key) !== 'newer') yield key
  }

  /** A row was changed. @param change @param action as ChangeWatcher.changed has them */
  changed(change: Change, action: number): void {
    if (this.isVoid) return
    if (!this.#keys.fits(change.relation)) return this.truncated() // its definition has changed meanwhile
    const old = change.action === 'insert' ? undefined : this.#keys.of(change, 'old')
    if ('columns' in this.identity)
      this.#keyChanged(action, change.action, old, change.action === 'delete' ? undefined : this.#keys.of(change, 'new'))
    else if (old !== undefined) this.#changed.set(old, 'partly')
    if (this.#changed.size > MAX_KEYS) this.truncated()
  }

  #keyChanged(action: number, kind: ChangeAction, old: string | undefined, now: string | undefined): void {
    const isMoved = old !== undefined && now !== undefined && old !== now
    const { actions, isShed } = this.#stream
    const taken = isShed() ? 0 : actions
    const brought = taken & (isMoved ? KEY_CHANGE : action === 0 ? ACTION_BIT[kind] : action)
    const isWhole = isEnough(taken, action, isMoved)
    // there is no such row any more, until another change makes one; but in one transaction another row may have got the key before
    if (old !== undefined && old !== now && !(isMoved && this.#changed.has(old))) this.#changed.set(old, 'newer')
    const less = brought !== 0 || (now !== undefined && this.#isSeen(now)) ? 'partly' : 'unseen'
    if (now !== undefined) this.#changed.set(now, isWhole ? 'newer' : less)
    if (!isWhole && now !== undefined && (isMoved || this.#anyMoves)) this.#moved.add(now)
  }

  #isSeen(key: string): boolean {
    const fate = this.#changed.get(key)
    return fate !== undefined && fate !== 'unseen'
  }

  /** Nothing that was read holds any more. */
  truncated(): void {
    this.isVoid = true
    this.#changed.clear()
    this.#moved.clear()
  }
}

/** What sees the changes of a table while it is open. */
type OpenWindow = Readonly<{
  relation: number
  changed: (change: Change, action: number, place: ChangePlace) => void
  truncated: () => void
}>

/** The open windows of a source. */
export class Windows implements ChangeWatcher {
  readonly #open = new Map<number, Set<OpenWindow>>()
  /** streamed, and perhaps not visible yet */
  #streamed: number[] = []
  #isPastKnown = false

  /** A run of the source begins: what was streamed before may have been streamed elsewhere. */
  begin(): void {
    this.#isPastKnown = false
  }

  /** Whether `streamed` has all that was streamed and is not visible yet, also of before the run. */
  get isPastKnown(): boolean {
    return this.#isPastKnown
  }

  /** Tells which transactions of before the run are not visible yet. */
  tellPast(xids: readonly number[]): void {
    for (const xid of xids) this.committed(xid)
    this.#isPastKnown = true
  }

  open(window: OpenWindow): void {
    const open = this.#open.get(window.relation) ?? new Set()
    this.#open.set(window.relation, open.add(window))
  }

  close(window: OpenWindow): void {
    const open = this.#open.get(window.relation)
    open?.delete(window)
    if (open?.size === 0) this.#open.delete(window.relation)
  }

  watches(relation: number): boolean {
    return this.#open.size > 0 && this.#open.has(relation)
  }

  changed(change: Change, action: number, place: ChangePlace): void {
    for (const window of this.#open.get(change.relation.oid) ?? []) window.changed(change, action, place)
  }

  truncated(relation: number): void {
    for (const window of this.#open.get(relation) ?? []) window.truncated()
  }

  committed(xid: number): void {
    this.#streamed.push(xid)
    if (this.#streamed.length <= MAX_STREAMED * 2) return
    this.#streamed = this.#streamed.slice(-MAX_STREAMED)
    this.#isPastKnown = false
  }

  /** The transactions that were streamed lately, for a look whether they are visible. */
  get streamed(): readonly number[] {
    return [...this.#streamed]
  }

  /** Those that were looked at and are visible are forgotten. @param looked as `streamed` had them; @param hidden of them that are not visible yet */
  visible(looked: readonly number[], hidden: readonly number[]): void {
    const [seen, stay] = [new Set(looked), new Set(hidden)]
    this.#streamed = this.#streamed.filter((xid) => !seen.has(xid) || stay.has(xid)) // others look at the same time
  }
}

/** So many transactions are kept: of earlier ones the server is asked which of them wait. */
const MAX_STREAMED = 65_536
