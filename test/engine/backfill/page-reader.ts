/** Reads the pages of a table as a backfill does, one after the other, without a stream beside them. */
import { PageRows } from '../../../engine/backfill/page-rows.ts'
import { endOf, pageQuery, type After } from '../../../engine/backfill/page-query.ts'
import { estimateRows, refuseHeavyPages } from '../../../engine/backfill/page-plan.ts'
import { PageSession } from '../../../engine/backfill/page-session.ts'
import { describeSource, type SourceTable, type TableAsked } from '../../../engine/backfill/source-table.ts'
import { Windows } from '../../../engine/backfill/windows.ts'
import type { TimestampFormat } from '../../../engine/wal/decode/render.ts'
import type { Connection } from '../../../engine/postgres/client-config.ts'
import type { TestDatabase } from '../../services/postgres.ts'

export const NEVER = new AbortController().signal
const uncut = () => Promise.reject(new Error('nothing is cut short here'))

export const asked = (over: Partial<TableAsked> = {}): TableAsked => ({
  ...{ table: 'public.t', sortColumn: null, startPosition: null, condition: null },
  ...over,
})

export class PageReader implements AsyncDisposable {
  readonly session: PageSession
  readonly #publication: string

  private constructor(session: PageSession, publication: string) {
    this.session = session
    this.#publication = publication
  }

  static async open(
    db: TestDatabase,
    { publication = 'p', as }: Readonly<{ publication?: string; as?: Partial<Connection> }> = {},
  ): Promise<PageReader> {
    return new PageReader(await PageSession.open({ ...db.connection, ...as }, 'test pages', 30_000), publication)
  }

  /** The table as it is now, and the work of one transaction with it. */
  async with<T>(over: Partial<TableAsked>, work: (table: SourceTable) => Promise<T>): Promise<T> {
    await this.session.begin(new Windows(), NEVER)
    try {
      return await work(await describeSource(this.session.query, this.#publication, asked(over)))
    } finally {
      await this.session.end()
    }
  }

  describe(over: Partial<TableAsked> = {}): Promise<SourceTable> {
    return this.with(over, (table) => Promise.resolve(table))
  }

  /** About how many rows there are to read. */
  planned(over: Partial<TableAsked> = {}): Promise<number> {
    return this.with(over, async (table) => {
      await refuseHeavyPages(this.session, table, asked(over))
      return estimateRows(this.session, table)
    })
  }

  /** Messages of all rows, page by page, without the place of a commit. */
  async pages(over: Partial<TableAsked> = {}, limit = 2, timestampFormat: TimestampFormat = 'iso8601'): Promise<string[][]> {
    const pages: string[][] = []
    let after: After = null
    for (;;) {
      const { rows, last } = await this.with(over, (table) => this.#page(table, after, limit, timestampFormat))
      if (rows.length > 0) pages.push(rows)
      if (rows.length < limit) return pages
      after = last
    }
  }

  /** Records of all rows. */
  async records(over: Partial<TableAsked> = {}, limit = 2): Promise<Record<string, unknown>[]> {
    const pages = await this.pages(over, limit)
    return pages.flat().map((text) => (JSON.parse(text) as { record: Record<string, unknown> }).record)
  }

  async #page(table: SourceTable, after: After, limit: number, timestampFormat: TimestampFormat) {
    const target = {
      ...{ topic: 'topic', partitions: 1, actions: 255, grouping: true, groupColumns: undefined },
      ...{ timestampFormat, splitsKeyChanges: false, only: undefined },
    }
    const stream = { target, groupColumns: table.relation.key, hasOwnGroup: false, actions: 255, isShed: () => false }
    const rows = new PageRows({ backfill: 'backfill', table, stream, maxMessageBytes: 2 ** 30 })
    const end = endOf(table, after)
    let last = after
    const add = (bytes: Uint8Array, view: DataView, from: number, to: number): true => {
      const { row } = rows.add(bytes, view, from, to)
      const place = rows.place(rows.count - 1)
      last = place === undefined ? table.order.map(({ index }) => row.text(index) ?? '') : [place, end]
      return true
    }
    await this.session.copy(pageQuery(table, after, limit), add, uncut)
    const texts = Array.from({ length: rows.count }, (_, n) => {
      const { bytes, start, keyLength, groupKeyLength, place, end: to } = rows.row(n, n)
      const body = bytes.view()
      const head = body.toString('utf8', start + keyLength + groupKeyLength, place)
      return `{${head}"${body.toString('utf8', place, to)}}}`
    })
    return { rows: texts, last }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.session.close()
    await Promise.resolve()
  }
}
