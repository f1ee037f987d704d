/**
 * Values of rows as they stand in the source now, for changes that left them out: an update doesn't send a large value that
 * it left alone (TOAST). They are asked for by primary key, many at a time, and rendered as those of the stream are.
 *
 *  I1. A row is read only when the transaction of its change is visible: a commit is streamed before it is, and the row of
 *      before may hold another value (commit-gate.ts). Of a change whose transaction is not known it is taken to be:
 *      it was long ago.
 *  I2. What is read may be newer than the change. Then the change that made it so is further behind in the same group.
 *  I3. What comes in for one question is bounded in bytes: where it is more, fewer rows are asked for. One row alone may be as large as
 *      a message may.
 *  I4. A row that the publication's filter leaves out is none: the stream has told that it is gone, or never told of it.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { Client, escapeIdentifier } from 'pg'
import { ByteWriter } from '../byte-writer.ts'
import { EngineError } from '../errors.ts'
import { askWithin, TooMuch } from '../postgres/client-cut.ts'
import type { Connection } from '../postgres/client-config.ts'
import { CommitGate, SNAPSHOT_COLUMNS } from './connection/commit-gate.ts'
import { describeRelation } from './decode/catalog.ts'
import { Relation, type RelationMessage } from './decode/relation.ts'
import type { TimestampFormat } from './decode/render.ts'
import type { Query } from '../postgres/query.ts'
import { sourceClient } from './connection/source-client.ts'
import { toSourceError } from './connection/source-error.ts'

/** A row whose values are asked for. */
export type WantedRow = Readonly<{
  /** the table's oid */
  relation: number
  /** values of the primary key as text, in the order of its columns */
  key: readonly (string | null)[]
  columns: readonly string[]
  /** of the transaction that changed it; 0: not known */
  xid: number
}>

/** JSON of the values by column; a column that is gone from the table is not in it. */
export type FoundRow = ReadonlyMap<string, Buffer>

/** Rows of one question. */
const MAX_ROWS = 100
/** The answer to one question may be so long, unless it is about one row. */
const MAX_BYTES = 32 * 1024 * 1024
/** So much may come in beside the values: of the table, and around each row. */
const OVERHEAD_BYTES = 1024 * 1024
/** More rows are asked for again when they had less than this share of what they may have. */
const SMALL = 1 / 4
const QUERY_LIMIT_MS = 30_000
/** A transaction may be streamed long before it is visible only while it waits for a synchronous standby. */
const VISIBLE_LIMIT_MS = 30_000
const VISIBLE_POLL_MS = [1, 2, 5, 10, 20, 50] as const
/** Without a question for so long the connection is given back. */
const IDLE_MS = 30_000

type LookupOptions = Readonly<{
  connection: Connection
  /** the publication whose rows are streamed */
  publication: string
  /** of the connection, as the source shows it */
  name: string
  /** a row whose values have more is too large */
  maxRowBytes: number
}>

/** Asks a source for values of its rows, over one connection that is made when it is needed. */
export class RowLookup {
  readonly #of: LookupOptions
  readonly #maxBytes: number
  readonly #gate = new CommitGate()
  #client: Promise<Client> | undefined
  #last: Promise<unknown> = Promise.resolve()
  #idle: NodeJS.Timeout | undefined
  /** so many are asked for at once */
  #rows = MAX_ROWS

  constructor(of: LookupOptions) {
    this.#of = of
    this.#maxBytes = Math.min(MAX_BYTES, of.maxRowBytes)
  }

  /**
   * @returns values of the wanted rows, from the first: of as many as can be held at once; undefined: there is no such row
   *   now. None at all: the first row is too large
   * @throws EngineError SOURCE_UNREACHABLE and others of a connection to the source
   */
  find(wanted: readonly WantedRow[], format: TimestampFormat, signal: AbortSignal): Promise<readonly (FoundRow | undefined)[]> {
    // one after the other: they share a connection
    const found = this.#last.then(() => this.#find(wanted, format, signal))
    this.#last = found.catch(() => undefined)
    return found
  }

  async close(): Promise<void> {
    clearTimeout(this.#idle)
    const client = this.#client
    this.#client = undefined
    await client?.then((one) => one.end()).catch(() => undefined)
  }

  async #find(wanted: readonly WantedRow[], format: TimestampFormat, signal: AbortSignal): Promise<readonly (FoundRow | undefined)[]> {
    clearTimeout(this.#idle)
    try {
      for (;;) {
        const some = wanted.slice(0, this.#rows)
        const found = await this.#read(some, format, signal)
        if (found) return found
        if (some.length === 1) return []
        this.#rows = Math.floor(some.length / 2)
      }
    } catch (error) {
      void this.close()
      throw toSourceError(error, 'streaming')
    }
  }

  /** @returns undefined: they are too much */
  async #read(
    wanted: readonly WantedRow[],
    format: TimestampFormat,
    signal: AbortSignal,
  ): Promise<readonly (FoundRow | undefined)[] | undefined> {
    const maxBytes = wanted.length === 1 ? this.#of.maxRowBytes : this.#maxBytes
    const client = await this.#connected()
    const query: Query = (sql, params) => client.query({ text: sql, values: params && [...params], types: AS_TEXT })
    await untilVisible(query, this.#gate, new Set(wanted.map(({ xid }) => xid)), signal)
    try {
      const found = await askWithin(client, maxBytes + OVERHEAD_BYTES, () => this.#readTables(query, wanted, format))
      if (wanted.length === this.#rows && bytesOf(found) < this.#maxBytes * SMALL) this.#rows = Math.min(MAX_ROWS, 2 * this.#rows)
      this.#idle = setTimeout(() => void this.close(), IDLE_MS).unref()
      return found
    } catch (error) {
      if (!(error instanceof TooMuch)) throw error
      this.#client = undefined
      return undefined
    }
  }

  async #readTables(query: Query, wanted: readonly WantedRow[], format: TimestampFormat): Promise<readonly (FoundRow | undefined)[]> {
    const found: (FoundRow | undefined)[] = wanted.map(() => undefined)
    for (const [oid, some] of Map.groupBy(wanted.entries(), ([, { relation }]) => relation)) {
      const table = await describeTable(query, oid, this.#of.publication)
      if (!table) continue
      const asked = some.map(([, row]) => row)
      const rows = await readRows(query, table, asked, format)
      for (const [n, [place]] of some.entries()) found[place] = rows[n]
    }
    return found
  }

  #connected(): Promise<Client> {
    if (this.#client) return this.#client
    const client = new Client({ ...sourceClient(this.#of.connection, this.#of.name), query_timeout: QUERY_LIMIT_MS })
    const connected = client.connect().then(() => client)
    client.on('error', () => {
      if (this.#client === connected) this.#client = undefined // else there is another by now
    })
    this.#client = connected
    return connected
  }
}

/** Values as Postgres prints them: they are rendered by us. */
const AS_TEXT = { getTypeParser: () => (value: string) => value }

/** Waits until a fresh snapshot shows what these transactions did. */
async function untilVisible(query: Query, gate: CommitGate, xids: ReadonlySet<number>, signal: AbortSignal): Promise<void> {
  const until = performance.now() + VISIBLE_LIMIT_MS
  for (let poll = 0; ; poll++) {
    const { rows } = await query(`select ${SNAPSHOT_COLUMNS}`)
    if (gate.hidden(rows[0] ?? {}, xids).length === 0) return
    if (performance.now() > until)
      throw new EngineError(
        'SOURCE_UNREACHABLE',
        `a transaction that Postgres has streamed is still not visible to queries after ${VISIBLE_LIMIT_MS} ms`,
      )
    await delay(VISIBLE_POLL_MS[Math.min(poll, VISIBLE_POLL_MS.length - 1)], undefined, { signal })
  }
}

type Table = Readonly<{ relation: Relation; from: string; key: readonly Readonly<{ name: string; type: string }>[] }>

/** @returns undefined: it is gone, or has no primary key */
async function describeTable(query: Query, oid: number, publication: string): Promise<Table | undefined> {
  const { rows } = await query(
    `select n.nspname as schema, c.relname as table, c.relkind as kind, a.attname as name, a.atttypid as type, format_type(a.atttypid, a.atttypmod) as type_name
     from pg_class c join pg_namespace n on n.oid = c.relnamespace join pg_attribute a on a.attrelid = c.oid
     where c.oid = $1::oid and a.attnum > 0 and not a.attisdropped order by a.attnum`,
    [String(oid)],
  )
  const [first] = rows
  if (!first) return undefined
  const columns = rows.map(({ name, type }) => ({ name: String(name), typeOid: Number(type), typmod: -1, key: false }))
  const message: RelationMessage = { oid, schema: String(first['schema']), table: String(first['table']), replicaIdentity: 'n', columns }
  const relation = new Relation(message, await describeRelation(query, message))
  if (relation.key.length === 0) return undefined
  const name = `${escapeIdentifier(message.schema)}.${escapeIdentifier(message.table)}`
  const all = first['kind'] === 'r' ? `only ${name}` : name // a partitioned table has its rows in others
  const filter = await rowFilter(query, oid, publication)
  return {
    relation,
    from: filter === undefined ? all : `(select * from ${all} where ${filter})`,
    key: relation.key.map((i) => ({ name: columns[i]?.name ?? '', type: String(rows[i]?.['type_name']) })),
  }
}

/** What the publication lets through of a table, as SQL; undefined: every row. Postgres 14 knows no such filters. */
async function rowFilter(query: Query, oid: number, publication: string): Promise<string | undefined> {
  const { rows: known } = await query(
    `select from pg_attribute where attrelid = 'pg_catalog.pg_publication_rel'::regclass and attname = 'prqual'`,
  )
  if (known.length === 0) return undefined
  const { rows } = await query(
    `select pg_get_expr(r.prqual, r.prrelid) as filter
     from pg_publication p join pg_publication_rel r on r.prpubid = p.oid join pg_class c on c.oid = r.prrelid
     where p.pubname = $1 and c.oid = $2::oid and r.prqual is not null and not p.puballtables
       and not exists (select from pg_publication_namespace n where n.pnpubid = p.oid and n.pnnspid = c.relnamespace)`,
    [publication, String(oid)],
  )
  const filter = rows[0]?.['filter']
  return typeof filter === 'string' ? filter : undefined
}

async function readRows(
  query: Query,
  { relation, from, key }: Table,
  wanted: readonly WantedRow[],
  format: TimestampFormat,
): Promise<readonly (FoundRow | undefined)[]> {
  const known = new Map(relation.message.columns.map(({ name }, i) => [name, relation.renderers(format)[i]]))
  const columns = [...new Set(wanted.flatMap((row) => row.columns))].filter((name) => known.has(name))
  const found: (FoundRow | undefined)[] = wanted.map(() => undefined)
  const askable = wanted.flatMap((row, i) => (row.key.length === key.length ? [i] : [])) // else it has another primary key by now
  if (askable.length === 0) return found
  const parts = key.map((_, k) => askable.map((i) => wanted[i]?.key[k] ?? null))
  const { rows } = await query(
    `select k.n - 1 as place${columns.map((name, c) => `, t.${escapeIdentifier(name)} as v${c}`).join('')}
     from unnest(${key.map((_, k) => `$${k + 1}::text[]`).join(', ')}) with ordinality as k(${key.map((_, k) => `k${k}`).join(', ')}, n)
     join ${from} t on ${key.map(({ name, type }, k) => `t.${escapeIdentifier(name)} = k.k${k}::${type}`).join(' and ')}`,
    parts,
  )
  for (const row of rows) {
    const place = askable[Number(row['place'])]
    if (place !== undefined) found[place] = new Map(columns.map((name, c) => [name, jsonOf(row[`v${c}`], known.get(name))]))
  }
  return found
}

const bytesOf = (found: readonly (FoundRow | undefined)[]): number =>
  found.reduce((sum, row) => sum + (row ? [...row.values()].reduce((bytes, value) => bytes + value.length, 0) : 0), 0)

function jsonOf(text: unknown, render: ReturnType<Relation['renderers']>[number] | undefined): Buffer {
  if (typeof text !== 'string' || !render) return Buffer.from('null')
  const bytes = Buffer.from(text)
  const out = new ByteWriter(bytes.length + 16)
  render(out, new DataView(bytes.buffer, bytes.byteOffset, bytes.length), 0, bytes.length)
  return Buffer.from(out.view())
}
