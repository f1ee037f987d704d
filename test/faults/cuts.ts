/**
 * A sink that has some tables only at times, because they are taken out of it and put back while it is in use, or because it
 * is disabled, or deleted and made again. The API's answer to such an edit says that the cut is made: at one position of the
 * write-ahead log, between where that stood before the request and where it stands after the answer. Everything before it is
 * delivered as it was, everything after it as it is, whoever streams. Here is kept what was asked; the positions of the cuts
 * are read from the state database.
 */
import assert from 'node:assert/strict'
import { parseLsn, type Lsn } from '../../engine/lsn.ts'
import type { TestDatabase } from '../services/postgres.ts'
import type { Change } from './journal.ts'
import type { Row } from './json.ts'
import { reduced, type Commits } from './verdict.ts'

type Query = TestDatabase['query']
type Edit = Readonly<{ tables: string; from: Lsn; to: Lsn }>
/** @property tables with schema; none: it takes nothing from there on */
type Cut = Readonly<{ lsn: Lsn; tables: readonly string[]; splitsKeyChanges: boolean }>

export class Cuts {
  readonly #sink: string
  /** those that it doesn't always have, without schema */
  readonly tables: readonly string[]
  #edits: Edit[] = []

  constructor(sink: string, tables: readonly string[]) {
    this.#sink = sink
    this.tables = tables
  }

  get edits(): number {
    return this.#edits.length
  }

  /** Another sink has the name. */
  beginAnew(): void {
    this.#edits = []
  }

  /**
   * Makes an edit, and keeps between which positions it has to take effect.
   * @param tables with schema: those that it has afterwards. @param edit settles with the API's answer
   */
  async make(source: Query, tables: readonly string[], edit: () => Promise<void>): Promise<void> {
    const from = await written(source)
    await edit()
    this.#edits.push({ tables: textOf(tables), from, to: await written(source) })
  }

  /**
   * What the sink has to deliver.
   * @param commits of everything that was committed
   * @throws AssertionError an edit took effect elsewhere than the answer said
   */
  async expected(state: Query, commits: Commits): Promise<Commits> {
    const cuts = await this.#cuts(state)
    for (const { tables, from, to } of this.#edits)
      assert.ok(
        cuts.some((cut) => textOf(cut.tables) === tables && cut.lsn >= from && cut.lsn < to),
        `sink ${this.#sink}: an edit between ${from} and ${to} took effect elsewhere: ${cuts.map(({ lsn }) => lsn).join(', ')}`,
      )
    const cutAt = (lsn: Lsn) => cuts.findLast((cut) => cut.lsn < lsn)
    const taken = reduced(commits, ({ table }, lsn) => cutAt(lsn)?.tables.includes(`public.${table}`) ?? false)
    for (const [lsn, { changes, ...more }] of taken)
      if (cutAt(lsn)?.splitsKeyChanges) taken.set(lsn, { ...more, changes: changes.flatMap(split) })
    return taken
  }

  async #cuts(state: Query): Promise<Cut[]> {
    const rows = await state<{ lsn: string; tables: string[] | null; splits: boolean }>(
      `select v.lsn::text as lsn, s -> 'source' -> 'include_tables' as tables, coalesce((g.shape ->> 'splitsKeyChanges')::boolean, false) as splits
       from tailrace.sink k join tailrace.routing_version v on v.database_id = k.database_id
         left join tailrace.routed_reader r on r.sink_id = k.id and r.since <= v.version and (r.until is null or r.until > v.version)
         left join lateral jsonb_array_elements(coalesce(v.sinks, v.streams)) s on s ->> 'topic' = r.topic or s ->> 'sinkId' = k.id::text
         left join tailrace.generation g on g.sink_id = k.id and g.generation = coalesce(r.generation, (s ->> 'generation')::int)
       where k.name = $1 and v.lsn is not null order by v.version`,
      [this.#sink],
    )
    return rows.map(({ lsn, tables, splits }) => ({ lsn: parseLsn(lsn), tables: tables ?? [], splitsKeyChanges: splits }))
  }
}

/** An update that moved a row, as a delete of the old one and an insert of the new one. */
function split(change: Change): Change[] {
  const { oldKey, mayRepeat, changes, ...insert } = change
  if (!oldKey) return [change]
  const old = mayRepeat
    ? { ...Object.fromEntries(Object.keys(change.record).map((column) => [column, null])), ...mayRepeat }
    : { ...change.record, ...changes }
  return [
    { ...insert, action: 'delete', key: oldKey, record: old as Row, changes: null, unchanged: [] },
    { ...insert, action: 'insert', changes: null },
  ]
}

const textOf = (tables: readonly string[]): string => tables.toSorted().join()

async function written(source: Query): Promise<Lsn> {
  const [row] = await source<{ lsn: string }>('select pg_current_wal_insert_lsn()::text as lsn')
  return parseLsn(row!.lsn)
}
