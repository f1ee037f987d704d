/**
 * Writes a table at random while it is backfilled: rows are changed, get another key, are deleted and inserted again, and large values are
 * left alone. Each writer has rows of its own, so that the version of a row only grows.
 */
import type { Client } from 'pg'
import type { TestDatabase } from '../services/postgres.ts'
import { parseExact, type Row } from './json.ts'
import type { Random } from './random.ts'
import { pass } from '../waiting.ts'

/** Columns: a version that only grows; a name; a large value, of one row in eight. */
export const ITEM_DDL = `create table item (id int primary key, version bigint not null, name text, body text);
  alter table item alter body set storage external`

const LARGE = `case when i % 8 = 0 then repeat(md5(i::text || $1::text), 80) end`
const WRITERS = 3
const WEIGHTS = { update: 40, many: 10, move: 15, delete: 15, insert: 15, enlarge: 5 }

export type WritersOptions = Readonly<{ db: TestDatabase; random: Random; rows: number; perSecond: number }>

/** What a writer changes rows with. @property id any of its rows; @property went is told which row went, and at which version */
type Changing = Readonly<{ id: () => number; random: Random; went: (id: number, version: number) => void }>

export class ItemWriters {
  readonly #options: WritersOptions
  #over = new AbortController()
  #writing: Promise<unknown> | undefined
  /** by id: the versions at which a row of it went, deleted or with another key from then on */
  readonly gone = new Map<string, bigint[]>()
  #version = 1
  #changes = 0
  #failure: Error | undefined

  constructor(options: WritersOptions) {
    this.#options = options
  }

  /** The rows that are there before anybody streams. */
  async fill(): Promise<void> {
    const { db, rows } = this.#options
    await db.query(`insert into item select i, 1, 'n' || i, ${LARGE} from generate_series(1, ${rows}) i`, ['first'])
    await db.query('analyze item')
  }

  /** Begins to write, or goes on. */
  begin(): void {
    const { db, random } = this.#options
    this.#over = new AbortController()
    const write = async (nth: number) => {
      const client = await db.connect()
      try {
        await this.#write(client, nth, random.fork())
      } finally {
        await client.end()
      }
    }
    this.#writing = Promise.all(Array.from({ length: WRITERS }, (_, nth) => write(nth)))
    this.#writing.catch((error: Error) => (this.#failure = error))
  }

  /** How many rows were changed. @throws Error a writer has failed */
  soFar(): number {
    if (this.#failure) throw this.#failure
    return this.#changes
  }

  /** Settles when nothing is written any more. */
  async end(): Promise<void> {
    this.#over.abort()
    await this.#writing
  }

  /** The rows as the database renders them. */
  async table(): Promise<readonly Row[]> {
    const rows = await this.#options.db.query<{ row: string }>(
      `select jsonb_build_object('id', id, 'version', version, 'name', name, 'body', body)::text as row from item`,
    )
    return rows.map(({ row }) => parseExact(row) as Row)
  }

  async #write(client: Client, nth: number, random: Random): Promise<void> {
    const { rows, perSecond } = this.#options
    /** any of those of this writer: there is room for others behind the last row */
    const id = () => random.int(0, Math.floor((rows * 1.1) / WRITERS)) * WRITERS + nth
    let due = performance.now()
    while (!this.#over.signal.aborted) {
      await client.query('begin')
      let written = 0
      const gone: [id: number, version: number][] = []
      for (let left = random.int(1, 8); left > 0; left--)
        written += await this.#change(client, { id, random, went: (...row) => void gone.push(row) })
      const isKept = random.chance(0.95)
      await client.query(isKept ? 'commit' : 'rollback')
      if (isKept) {
        this.#changes += written
        for (const [id, version] of gone) this.#note(String(id), BigInt(version))
      }
      due = Math.max(due + (1_000 * WRITERS * written) / perSecond, performance.now() - 1_000)
      if (due > performance.now()) await pass(due - performance.now(), 'its pace')
    }
  }

  #note(id: string, version: bigint): void {
    const versions = this.gone.get(id) ?? []
    this.gone.set(id, versions)
    versions.push(version)
  }

  /** @returns how many rows it changed */
  async #change(client: Client, { id, random, went }: Changing): Promise<number> {
    const version = ++this.#version
    const run = async (sql: string, ...values: unknown[]) => (await client.query(sql, values)).rowCount ?? 0
    switch (random.weighted(WEIGHTS)) {
      case 'update':
        return run('update item set version = $2, name = $3 where id = $1', id(), version, random.text(6))
      case 'many':
        return run('update item set version = $2, name = $3 where id = any ($1)', Array.from({ length: 30 }, id), version, random.text(6))
      case 'enlarge':
        return run(`update item set version = $2::bigint, body = repeat(md5($2::bigint::text), 80) where id = $1`, id(), version)
      case 'delete': {
        const old = id()
        const deleted = await run('delete from item where id = $1', old)
        if (deleted > 0) went(old, version)
        return deleted
      }
      case 'insert':
        return run(
          `insert into item select i, $2::bigint, 'new', ${LARGE.replace('$1::text', '$2::bigint::text')} from unnest($1::int[]) i on conflict do nothing`,
          [id(), id()],
          version,
        )
      case 'move': {
        // with all values: of a row that moves Postgres would not send the large one (docs/messages.md)
        const [old, now] = [id(), id()]
        const moved = await run(
          `update item set id = $2::int, version = $3::bigint, body = case when body is not null then repeat(md5($3::bigint::text), 80) end
           where id = $1 and not exists (select from item where id = $2::int)`,
          old,
          now,
          version,
        )
        if (moved > 0 && now !== old) went(old, version)
        return moved
      }
    }
  }
}
