/**
 * A sink that has some tables only at times, because they are taken out of it and put back while it is in use. The API's
 * answer to such an edit says that the cut is made: at one position of the write-ahead log, between where that stood before
 * the request and where it stands after the answer. Everything before it is delivered as it was, everything after it as it
 * is, whoever streams. Here is kept what was asked; the positions of the cuts are read from the state database.
 */
import assert from 'node:assert/strict'
import { parseLsn, type Lsn } from '../../engine/lsn.ts'
import type { TestDatabase } from '../services/postgres.ts'
import type { Transaction } from './journal.ts'
import type { Commits } from './verdict.ts'

type Query = TestDatabase['query']
type Edit = Readonly<{ taken: boolean; from: Lsn; to: Lsn }>
type Cut = Readonly<{ lsn: Lsn; taken: boolean }>

export class Cuts {
  readonly #sink: string
  /** without schema */
  readonly tables: readonly string[]
  readonly #edits: Edit[] = []

  constructor(sink: string, tables: readonly string[]) {
    this.#sink = sink
    this.tables = tables
  }

  get edits(): number {
    return this.#edits.length
  }

  /** whether the last edit has put the tables in; they are in at the beginning */
  get taken(): boolean {
    return this.#edits.at(-1)?.taken ?? true
  }

  /** Makes the edit, and keeps between which positions it has to take effect. @param edit settles with the API's answer */
  async make(source: Query, edit: (taken: boolean) => Promise<void>): Promise<void> {
    const taken = !this.taken
    const from = await written(source)
    await edit(taken)
    this.#edits.push({ taken, from, to: await written(source) })
  }

  /**
   * What the sink has to deliver.
   * @param commits of everything that was committed
   * @throws AssertionError an edit took effect elsewhere than the answer said
   */
  async expected(state: Query, commits: Commits): Promise<Commits> {
    const cuts = await this.#cuts(state)
    for (const { taken, from, to } of this.#edits)
      assert.ok(
        cuts.some((cut) => cut.taken === taken && cut.lsn >= from && cut.lsn < to),
        `sink ${this.#sink}: an edit between ${from} and ${to} took effect elsewhere: ${cuts.map(({ lsn }) => lsn).join(', ')}`,
      )
    const isTaken = (lsn: Lsn) => cuts.findLast((cut) => cut.lsn < lsn)?.taken ?? true
    const reduced = ([lsn, transaction]: readonly [Lsn, Transaction]): [Lsn, Transaction] => {
      const changes = transaction.changes.filter(({ table }) => !this.tables.includes(table) || isTaken(lsn))
      return [lsn, { ...transaction, changes }]
    }
    return new Map([...commits].map(reduced))
  }

  async #cuts(state: Query): Promise<Cut[]> {
    const rows = await state<{ lsn: string; tables: string[] }>(
      `select v.lsn::text as lsn, s -> 'source' -> 'include_tables' as tables
       from tailrace.routing_version v, jsonb_array_elements(v.readers) r join tailrace.sink k on k.id::text = r ->> 'sinkId',
         jsonb_array_elements(v.streams) s
       where s ->> 'topic' = r ->> 'topic' and k.name = $1 and v.lsn is not null order by v.version`,
      [this.#sink],
    )
    return rows.map(({ lsn, tables }) => ({ lsn: parseLsn(lsn), taken: tables.includes(`public.${this.tables[0]}`) }))
  }
}

async function written(source: Query): Promise<Lsn> {
  const [row] = await source<{ lsn: string }>('select pg_current_wal_insert_lsn()::text as lsn')
  return parseLsn(row!.lsn)
}
