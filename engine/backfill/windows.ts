/**
 * Between its two marks a page has a window, which collects the keys of all changes of its table, before any filter (docs/rules.md, rule 31).
 * A change that the sink gets is newer than the page's row, which is then left out; so is a row that was deleted. A row whose change the
 * sink does not get, or gets without a large value that an update left alone, has to be read again, as it is by then. No I/O.
 */
import type { KeyWatcher, OwnStream } from '../wal/change-packer.ts'
import { ACTION_BIT } from '../wal/routing/routing.ts'

/** Keys that one window may hold; one that had more is void, and its page is read again. */
const MAX_KEYS = 500_000

/** What a window has to know of the stream of its sink. */
type WindowStream = Pick<OwnStream, 'actions' | 'isShed'> & Readonly<{ target: Pick<OwnStream['target'], 'splitsKeyChanges'> }>

/** The changes of one table since a page's low mark. Keys are texts of latin1: a character for each byte of UTF-8. */
export class Window {
  readonly relation: number
  readonly #stream: WindowStream
  /** by key: whether what the stream brings for it is enough, or the row has to be read again */
  readonly #changed = new Map<string, 'newer' | 'again'>()
  /** rows whose place in the order was changed by what the sink does not get: they may have come from where the backfill has not been yet */
  readonly #moved = new Set<string>()
  readonly #anyMoves: boolean
  /** the table was emptied, or more was changed than a window holds: nothing of the page holds any more */
  isVoid = false

  /** @param anyMoves every change may bring a row to where the backfill has been: the rows are not ordered by the primary key alone */
  constructor(relation: number, stream: WindowStream, anyMoves = false) {
    this.relation = relation
    this.#stream = stream
    this.#anyMoves = anyMoves
  }

  /** What has become of a row since it was read, or may have; undefined: nothing. */
  of(key: string): 'newer' | 'again' | undefined {
    return this.#changed.get(key)
  }

  /** No row was changed since it opened. */
  get isUntouched(): boolean {
    return this.#changed.size === 0
  }

  /** The keys of rows that have to be read again, wherever they were before. */
  *moved(): Iterable<string> {
    for (const key of this.#moved) if (this.#changed.get(key) === 'again') yield key
  }

  /** A row was changed. @param action @param oldKey @param newKey as KeyWatcher.changed has them */
  changed(action: number, oldKey: Buffer | undefined, newKey: Buffer | undefined): void {
    if (this.isVoid) return
    const now = newKey && newKey.toString('latin1')
    const old = oldKey && oldKey.toString('latin1')
    const isMoved = old !== undefined && now !== undefined && old !== now
    const { actions, target, isShed } = this.#stream
    const asked = isMoved && target.splitsKeyChanges && action !== 0 ? ACTION_BIT.insert : action
    const isEnough = (actions & asked) !== 0 && !isShed()
    if (old !== undefined && old !== now) this.#changed.set(old, 'newer') // there is no such row any more, until another change makes one
    if (now !== undefined) this.#changed.set(now, isEnough ? 'newer' : 'again')
    if (!isEnough && now !== undefined && (isMoved || this.#anyMoves)) this.#moved.add(now)
    if (this.#changed.size > MAX_KEYS) this.truncated()
  }

  /** Nothing that was read holds any more. */
  truncated(): void {
    this.isVoid = true
    this.#changed.clear()
    this.#moved.clear()
  }
}

/** The open windows of a source. */
export class Windows implements KeyWatcher {
  readonly #open = new Map<number, Set<Window>>()
  /** streamed, and perhaps not visible yet */
  #streamed: number[] = []

  open(window: Window): void {
    const open = this.#open.get(window.relation) ?? new Set()
    this.#open.set(window.relation, open.add(window))
  }

  close(window: Window): void {
    const open = this.#open.get(window.relation)
    open?.delete(window)
    if (open?.size === 0) this.#open.delete(window.relation)
  }

  watches(relation: number): boolean {
    return this.#open.size > 0 && this.#open.has(relation)
  }

  changed(relation: number, action: number, oldKey: Buffer | undefined, newKey: Buffer | undefined): void {
    for (const window of this.#open.get(relation) ?? []) window.changed(action, oldKey, newKey)
  }

  truncated(relation: number): void {
    for (const window of this.#open.get(relation) ?? []) window.truncated()
  }

  committed(xid: number): void {
    this.#streamed.push(xid)
    if (this.#streamed.length > MAX_STREAMED * 2) this.#streamed = this.#streamed.slice(-MAX_STREAMED)
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

/** A transaction that so many others have followed is visible: at most one of each connection waits to be. */
const MAX_STREAMED = 65_536
