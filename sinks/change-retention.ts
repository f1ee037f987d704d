/**
 * Change retentions: each change becomes a row of a table in a database of the account. An insert tells of a change that is there
 * already by its position, so that what is sent again makes no second row: `seq` is the LSN of its commit and its index in the transaction,
 * added, and stands with the time of the commit for this change alone. Rows older than `retention` are deleted, a batch at a time.
 */
import { Client, escapeIdentifier } from 'pg'
import { Type, type Static } from 'typebox'
import type { Batch, Message } from '../engine/dispatch/batch.ts'
import { DURATION_PATTERN, durationMs } from '../engine/duration.ts'
import { codeOf, EngineError, errorText } from '../engine/errors.ts'
import { fieldsOf, parseExact } from '../engine/json.ts'
import { accountClient, type Connection } from '../engine/postgres/client-config.ts'
import { cut } from '../engine/postgres/client-cut.ts'
import type { Query } from '../engine/postgres/query.ts'
import { rowsOf } from '../engine/postgres/rows.ts'
import { sqlstateOf } from '../engine/postgres/sqlstate.ts'
import { RETENTION_TYPE } from '../engine/state/change-retentions.ts'
import type { Destination } from '../engine/state/destinations.ts'
import { ColumnFilter, passes } from './column-filters.ts'
import type { Answer, Blame, Failure, Outcome, PushOptions, PushType, PushWire } from './push.ts'
import { Verbatim } from './verbatim.ts'

const text = (description: string) => Type.String({ minLength: 1, maxLength: 63, description })

/** Where the changes of a table are kept. */
export const RetentionDestination = Type.Object(
  {
    type: Type.Literal(RETENTION_TYPE),
    destination_database: text('name of the database that has the table'),
    destination_table_schema: text('schema of the table that gets a row for each change'),
    destination_table_name: text('name of that table'),
    filters: Type.Array(ColumnFilter, { default: [], maxItems: 100, description: 'all of them must hold for a change to be kept' }),
    retention: Type.Optional(
      Type.Union([Type.Integer({ minimum: 1000, description: 'milliseconds' }), Type.String({ pattern: DURATION_PATTERN }), Type.Null()], {
        description: 'how long rows are kept, such as 30d; absent or null: for ever',
      }),
    ),
  },
  { additionalProperties: false },
)
/** Says where the changes of a table are kept. */
export type RetentionDestination = Static<typeof RetentionDestination>

/** Most messages of one insert. */
const MAX_MESSAGES = 1000
const MAX_BYTES = 16 * 1024 * 1024
/** What each message has beside its body. */
const OVERHEAD_BYTES = 80
const LIMIT_MS = 60_000
/** Rows that one statement deletes. */
const DELETED_AT_ONCE = 1000
const CLEAN_EVERY_MS = 60_000

/** Sinks that keep changes in a table. Those of a partition are inserted one batch after the other, in their order. */
export const changeRetention: PushType = {
  type: RETENTION_TYPE,
  settings: RetentionDestination,
  keyed: false,
  concurrency: 1,
  batchSize: MAX_MESSAGES,
  open: (options) => new RetentionWire(options),
}

/** Gives the SQL that makes a table for changes. */
export function retentionTableSql(schema: string, table: string): string {
  const name = `${escapeIdentifier(schema)}.${escapeIdentifier(table)}`
  return `create table ${name} (id bigserial primary key, seq bigint not null, source_database_id uuid not null, source_table_oid bigint not null, source_table_schema text not null, source_table_name text not null, record_pk text not null, record jsonb not null, changes jsonb, action text not null, committed_at timestamptz not null, inserted_at timestamptz not null, transaction_annotations jsonb); ${uniqueSql(name)}; create index on ${name} (committed_at)`
}

const uniqueSql = (name: string): string => `create unique index on ${name} (seq, committed_at, source_database_id, record_pk)`

/** Who is to blame, by SQLSTATE or its class; anything else is most likely one of the rows. */
const BLAME_OF: Readonly<Record<string, Blame>> = {
  '08': 'unavailable', // connection exception
  '25': 'unavailable', // a read-only transaction, as on a standby
  '28': 'refused', // login
  '40': 'unavailable', // rolled back
  '53': 'unavailable', // no connections, memory or disk left
  '55': 'unavailable', // not in the state that is needed, a lock
  '57': 'unavailable', // shutdown, starting up
  '58': 'unavailable', // files of the server
  XX: 'unavailable',
  '3D000': 'refused', // no such database
  '42': 'refused', // rights, the table or a column of it
}

/** The body of a message, its metadata and itself left open. */
const bodyOf = ({ view, place }: Message): string => view.buffer.toString('utf8', view.bodyStart(place), view.bodyEnd(place))

/** A message with what its row has beside it. */
function documentOf(message: Message): string {
  const { view, place } = message
  const { lsn, idx } = view.position(place)
  return `{${bodyOf(message)}},"seq":${lsn + BigInt(idx)},"oid":${view.relation(place)}}`
}

/** Holds what was found of a table. @property unique the columns of the index by which a change is known @property hasAnnotations older tables don't */
type FoundTable = Readonly<{ unique: readonly string[]; hasAnnotations: boolean }>
/** A connection, and the SQL that inserts into the table as it was found. */
type Connected = Readonly<{ client: Client; insert: string }>

/** Names the table of a change retention, as SQL has it. */
const tableSql = ({ destination_table_schema: schema, destination_table_name: table }: RetentionDestination): string =>
  `${escapeIdentifier(schema)}.${escapeIdentifier(table)}`

/** @throws EngineError VALIDATION_FAILED: the table is missing, or doesn't tell one change from another */
async function findTable(query: Query, settings: RetentionDestination): Promise<FoundTable> {
  const { destination_table_schema: schema, destination_table_name: table, destination_database: database } = settings
  const answer = await query(
    `select c.oid is not null as "isThere", coalesce((
       select names from pg_index i, lateral (select array_agg(a.attname::text) as names from pg_attribute a
         where a.attrelid = i.indrelid and a.attnum = any (i.indkey)) k
       where i.indrelid = c.oid and i.indisunique and i.indpred is null and 0 <> all (i.indkey) and names @> array['seq', 'committed_at', 'record_pk']
         and names <@ array['seq', 'committed_at', 'record_pk', 'source_database_id', 'source_table_oid', 'source_table_schema', 'source_table_name']
       limit 1), '{}') as "unique",
       exists (select from pg_attribute a where a.attrelid = c.oid and a.attname = 'transaction_annotations' and not a.attisdropped) as "hasAnnotations"
     from (values (to_regclass($1))) as c (oid)`,
    [tableSql(settings)],
  )
  const [found] = rowsOf({ isThere: 'boolean', unique: 'texts', hasAnnotations: 'boolean' }, answer)
  const named = `the table ${schema}.${table} of the database "${database}"`
  if (!found?.isThere) throw new EngineError('VALIDATION_FAILED', `${named} does not exist. Remedy: ${retentionTableSql(schema, table)}`)
  if (found.unique.length > 0) return found
  throw new EngineError(
    'VALIDATION_FAILED',
    `${named} has no unique index by which a change that is sent again is known. Remedy: ${uniqueSql(tableSql(settings))}`,
  )
}

/** So long a plan waits for a database to tell. */
const LOOK_LIMIT_MS = 3_000

/**
 * Says what is wrong with the table that a change retention is to write to, with the SQL that mends it; undefined: nothing, or the database
 * can't be asked.
 */
export async function wrongTable(connection: Connection, destination: Destination): Promise<string | undefined> {
  const limits = { connectionTimeoutMillis: LOOK_LIMIT_MS, query_timeout: LOOK_LIMIT_MS }
  const client = new Client({ ...accountClient(connection, 'tailrace set-up'), ...limits })
  client.on('error', () => {})
  try {
    await client.connect()
    await findTable((sql, params) => client.query<Record<string, unknown>>(sql, params && [...params]), destination as RetentionDestination) // as checked
    return undefined
  } catch (error) {
    return error instanceof EngineError && error.code === 'VALIDATION_FAILED' ? error.message : undefined
  } finally {
    await client.end().catch(() => undefined)
  }
}

class RetentionWire implements PushWire {
  readonly maxMessages: number
  readonly maxBytes = MAX_BYTES
  readonly overheadBytes = OVERHEAD_BYTES
  readonly judgesEach = false
  readonly #settings: RetentionDestination
  readonly #connection: Connection
  readonly #databaseId: string
  /** of the table, as SQL has it */
  readonly #table: string
  readonly #verbatim: Verbatim
  readonly #cleaning: NodeJS.Timeout | undefined
  readonly #source: readonly [schema: string, table: string]
  #client: Client | undefined
  /** the same, when the table has been looked at */
  #open: Connected | undefined
  /** the error for which there is no connection: nothing was sent */
  #unconnected: unknown
  /** statements come one after the other */
  #last: Promise<unknown> = Promise.resolve()
  #isClosed = false

  /** @throws EngineError NOT_FOUND: there is no such database */
  constructor({ sink, database, target, warn }: PushOptions) {
    const settings = sink.destination as RetentionDestination
    if (!target) throw new EngineError('NOT_FOUND', `the database "${settings.destination_database}" does not exist`)
    this.#settings = settings
    this.#connection = target.connection
    this.#databaseId = database.id
    this.#table = tableSql(settings)
    this.#verbatim = new Verbatim([target.connection.password])
    this.maxMessages = sink.batch_size
    const [table = ''] = sink.source.include_tables ?? []
    this.#source = [table.slice(0, table.indexOf('.')), table.slice(table.indexOf('.') + 1)]
    const keepMs = settings.retention === undefined || settings.retention === null ? undefined : durationMs(settings.retention)
    if (keepMs === undefined) return
    const every = Math.max(1000, Math.min(CLEAN_EVERY_MS, keepMs / 4))
    const failed = (error: unknown) => warn(`rows beyond its retention could not be deleted: ${this.#failure(error).answer.message}`)
    this.#cleaning = setInterval(() => void this.#deleteOlder(keepMs).catch(failed), every).unref()
  }

  async send({ messages }: Batch, signal: AbortSignal): Promise<Outcome> {
    const kept = messages.filter((message) => this.#keeps(message))
    if (kept.length === 0) return { kind: 'delivered', status: 200 }
    const onAbort = () => this.#drop()
    try {
      await this.#inTurn(async () => {
        signal.throwIfAborted()
        signal.addEventListener('abort', onAbort, { once: true })
        const { client, insert } = await this.#connected()
        await client.query(insert, [`[${kept.map(documentOf).join(',')}]`, this.#databaseId])
      })
      return { kind: 'delivered', status: 200 }
    } catch (error) {
      return signal.aborted ? { kind: 'aborted' } : { kind: 'failed', failure: this.#failure(error) }
    } finally {
      signal.removeEventListener('abort', onAbort)
    }
  }

  async test(signal: AbortSignal): Promise<Answer | undefined> {
    const onAbort = () => this.#drop()
    signal.addEventListener('abort', onAbort, { once: true })
    try {
      await this.#inTurn(async () => {
        const { client, insert } = await this.#connected()
        await client.query(insert, ['[]', this.#databaseId])
      })
      return undefined
    } catch (error) {
      return this.#failure(error).answer
    } finally {
      signal.removeEventListener('abort', onAbort)
    }
  }

  async close(): Promise<void> {
    this.#isClosed = true
    clearInterval(this.#cleaning)
    await this.#inTurn(async () => {
      const client = this.#client
      this.#client = undefined
      await client?.end()
    }).catch(() => undefined)
  }

  #inTurn<T>(work: () => Promise<T>): Promise<T> {
    const done = this.#last.then(work)
    this.#last = done.catch(() => undefined)
    return done
  }

  #keeps(message: Message): boolean {
    const { filters } = this.#settings
    if (filters.length === 0) return true
    return passes(fieldsOf(fieldsOf(parseExact(`{${bodyOf(message)}}}`))['record']), filters)
  }

  /** Gives SQL that takes messages as a list in JSON. */
  #insert({ unique, hasAnnotations }: FoundTable): string {
    const [column, value] = hasAnnotations
      ? [', transaction_annotations', `, nullif((m #> '{metadata,transaction_annotations}')::jsonb, 'null')`]
      : ['', '']
    return `insert into ${this.#table} (seq, source_database_id, source_table_oid, source_table_schema, source_table_name, record_pk,
        record, changes, action, committed_at, inserted_at${column})
      select (m ->> 'seq')::bigint, $2::uuid, (m ->> 'oid')::bigint, m #>> '{metadata,table_schema}', m #>> '{metadata,table_name}',
        array_to_string(array(select json_array_elements_text(m #> '{metadata,record_pks}')), ','),
        (m -> 'record')::jsonb, nullif((m -> 'changes')::jsonb, 'null'), m ->> 'action',
        (m #>> '{metadata,commit_timestamp}')::timestamptz, now()${value}
      from json_array_elements($1::json) with ordinality as e (m, n) order by n
      on conflict (${unique.map((name) => escapeIdentifier(name)).join(', ')}) do nothing`
  }

  /** Gives a connection on which the table was found to be as it must be. */
  async #connected(): Promise<Connected> {
    if (this.#open) return this.#open
    const client = new Client({ ...accountClient(this.#connection, 'tailrace change retention'), query_timeout: LIMIT_MS })
    client.on('error', () => this.#forget(client))
    client.on('end', () => this.#forget(client))
    this.#client = client
    try {
      await client.connect().catch((error: unknown) => {
        this.#unconnected = error
        throw error
      })
      this.#open = {
        client,
        insert: this.#insert(
          await findTable((sql, params) => client.query<Record<string, unknown>>(sql, params && [...params]), this.#settings),
        ),
      }
      return this.#open
    } catch (error) {
      this.#drop()
      throw error
    }
  }

  /** Deletes the rows of this table's changes that are too old. */
  async #deleteOlder(keepMs: number): Promise<void> {
    for (let deleted = DELETED_AT_ONCE; deleted === DELETED_AT_ONCE && !this.#isClosed;)
      deleted = await this.#inTurn(async () => {
        if (this.#isClosed) return 0
        const { client } = await this.#connected()
        const { rowCount } = await client.query(
          `delete from ${this.#table} where id = any (array(
             select id from ${this.#table} where source_database_id = $1::uuid and committed_at < now() - $2 * interval '1 millisecond'
               and (source_table_schema, source_table_name) = ($3, $4)
             order by committed_at limit ${DELETED_AT_ONCE} for update skip locked))
             and committed_at < now() - $2 * interval '1 millisecond'`,
          [this.#databaseId, keepMs, ...this.#source],
        )
        return rowCount ?? 0
      })
  }

  #forget(client: Client): void {
    if (this.#client !== client) return
    this.#client = undefined
    this.#open = undefined
  }

  #drop(): void {
    const client = this.#client
    this.#client = undefined
    this.#open = undefined
    if (client) cut(client)
  }

  #failure(error: unknown): Failure {
    const sqlstate = sqlstateOf(error)
    if (error instanceof EngineError && error.code === 'VALIDATION_FAILED') return this.#verbatim.said('refused', error.message)
    if (sqlstate === undefined) {
      this.#drop() // it may be in the midst of an answer
      const code = codeOf(error) ?? 'CONNECTION_LOST'
      return this.#verbatim.unanswered({ phase: error === this.#unconnected ? 'connect' : 'broken', code, message: errorText(error) })
    }
    const blame = BLAME_OF[sqlstate] ?? BLAME_OF[sqlstate.slice(0, 2)] ?? 'rejected'
    return this.#verbatim.said(blame, `${sqlstate}: ${errorText(error)}`)
  }
}
