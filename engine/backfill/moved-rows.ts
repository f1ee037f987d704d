/**
 * Rows that a change brings to where their backfill has been, while the sink does not get the change, for its `actions` leave it out, or
 * gets it without a large value. While pages are read their windows find such rows, and they are read again. But what windows know
 * ends with the run. So the keys are stored too, before Postgres is told that it need not send the change again, and a run that goes on
 * behind a page first reads what has moved since. A backfill is followed from its first page on, also while it is paused or has failed.
 *
 *  V1. What has moved since a page that is stored is stored, or comes again by the stream, or is still to be saved here.
 */
import type { ChangePlace } from '../wal/change-packer.ts'
import type { Change } from '../wal/decode/change.ts'
import type { Lsn } from '../lsn.ts'
import { MAX_MOVED, type FollowedTable, type MovedRow } from '../state/moved-rows.ts'
import { isEnough, RowKeys, type Windows } from './windows.ts'

type Followed = Readonly<{ id: string; sinkId: string }>

/** Knows which rows have moved, of the backfills of one source. */
export class MovedRows {
  readonly #windows: Windows
  readonly #save: (moved: readonly MovedRow[]) => Promise<void>
  /** by backfill */
  readonly #followed = new Map<string, FollowedRows>()
  #saved: Promise<void> = Promise.resolve()

  /** @param save stores them */
  constructor(windows: Windows, save: (moved: readonly MovedRow[]) => Promise<void>) {
    this.#windows = windows
    this.#save = save
  }

  /** A run of the source begins, and comes again to what was not confirmed. */
  begin(): void {
    for (const id of [...this.#followed.keys()]) this.forget(id)
    this.#saved = Promise.resolve()
  }

  /** From here on the rows of a backfill are followed. */
  follow({ id, sinkId }: Followed, table: FollowedTable): void {
    const former = this.#followed.get(id)
    if (former?.is(table)) return
    const rows = new FollowedRows(sinkId, table, former?.take())
    if (former) this.#windows.close(former)
    this.#windows.open(rows)
    this.#followed.set(id, rows)
  }

  /** The backfills that are followed. */
  get followed(): readonly string[] {
    return [...this.#followed.keys()]
  }

  /** A backfill is over. */
  forget(id: string): void {
    const rows = this.#followed.get(id)
    if (rows) this.#windows.close(rows)
    this.#followed.delete(id)
  }

  /** Settles when what has moved so far is stored. Once that has failed it fails until the next run begins. */
  save(): Promise<void> {
    this.#saved = this.#saved.then(async () => {
      const moved = [...this.#followed].flatMap(([backfill, rows]) => [...rows.take()].map(([key, lsn]) => ({ backfill, lsn, key })))
      if (moved.length > 0) await this.#save(moved)
    })
    this.#saved.catch(() => undefined) // whoever asks is told
    return this.#saved
  }
}

/** The rows of one backfill that have moved and are not stored yet. */
class FollowedRows {
  readonly relation: number
  readonly #sinkId: string
  readonly #table: FollowedTable
  readonly #keys: RowKeys
  /** by key, which is empty for more than are kept: where they moved last */
  #moved: Map<string, Lsn>

  constructor(sinkId: string, table: FollowedTable, moved: Map<string, Lsn> = new Map()) {
    this.relation = table.relation
    this.#sinkId = sinkId
    this.#table = table
    this.#keys = new RowKeys({ columns: table.columns })
    this.#moved = moved
  }

  is(table: FollowedTable): boolean {
    return JSON.stringify(table) === JSON.stringify(this.#table)
  }

  /** Forgets them. @returns them */
  take(): Map<string, Lsn> {
    const moved = this.#moved
    this.#moved = new Map()
    return moved
  }

  changed(change: Change, action: number, place: ChangePlace): void {
    if (change.action !== 'update') return // what is inserted was not there, and what is deleted is no more
    const actions = place.actionsOf(this.#sinkId, change.relation)
    if (isEnough(actions, action, true) && isEnough(actions, action, false)) return
    if (!this.#keys.fits(change.relation)) return this.#add('', place.lsn) // its definition has changed meanwhile
    const now = this.#keys.of(change, 'new')
    const isMoved = now !== this.#keys.of(change, 'old')
    if ((isMoved || this.#table.anyMoves) && !isEnough(actions, action, isMoved))
      this.#add(Buffer.from(now, 'latin1').toString('utf8'), place.lsn)
  }

  truncated(): void {} // what was there is no more

  #add(key: string, lsn: Lsn): void {
    if (this.#moved.size >= MAX_MOVED || this.#moved.has('') || key === '') this.#moved = new Map([['', lsn]])
    else this.#moved.set(key, lsn)
  }
}
