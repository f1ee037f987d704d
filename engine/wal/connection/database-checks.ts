/**
 * Everything about a database, its publication and its slot that keeps a source from working, or will: each check with what is wrong and the
 * SQL that mends it. It only looks, on a session of its own, and reads no row of any table.
 */
import { Client, escapeIdentifier } from 'pg'
import { EngineError, ERRORS, errorText } from '../../errors.ts'
import type { Connection } from '../../postgres/client-config.ts'
import { isPooled } from '../../postgres/pooler.ts'
import type { Query } from '../../postgres/query.ts'
import { rowsOf } from '../../postgres/rows.ts'
import { judgeSlot, readSlotFacts } from './slot.ts'
import { sourceClient } from './source-client.ts'
import { toSourceError } from './source-error.ts'

/** What was found of one thing. @property remedy what mends it: SQL, or words */
export type DatabaseCheck = Readonly<{ name: string; status: 'ok' | 'warning' | 'error'; message: string; remedy?: string }>
/** What is checked. @property slot absent, as the publication: what is of it is left out */
export type CheckedDatabase = Readonly<{ connection: Connection; slot?: string | undefined; publication?: string | undefined }>

const OLDEST_VERSION = 140_000
const QUERY_LIMIT_MS = 15_000
/** A clock that is further off makes ages and times of replays wrong. */
const CLOCK_MS = 5_000
/** Write-ahead log that a slot keeps for longer than a moment is told. */
const MUCH_WAL_BYTES = 2.5e9
const LONG_TRANSACTION = '10 minutes'
/** Tables are named up to so many, the others counted. */
const NAMED_TABLES = 10

const ok = (name: string, message: string): DatabaseCheck => ({ name, status: 'ok', message })
const warning = (name: string, message: string, remedy: string): DatabaseCheck => ({ name, status: 'warning', message, remedy })
const error = (name: string, message: string, remedy: string): DatabaseCheck => ({ name, status: 'error', message, remedy })

/** Checks a database. What can't be reached is a check that failed; nothing is thrown for it. @param clock milliseconds since the epoch */
export async function checkDatabase(
  { connection, slot, publication }: CheckedDatabase,
  clock: () => number = Date.now,
): Promise<readonly DatabaseCheck[]> {
  const { hostname, port, database, username } = connection
  const client = new Client(sourceClient(connection, 'tailrace doctor', { statement_timeout: QUERY_LIMIT_MS }))
  client.on('error', () => {}) // the query under way tells it
  try {
    await client.connect()
  } catch (cause) {
    const { code, message } = toSourceError(cause, 'connecting')
    return [error('Reachability', `${database} at ${hostname}:${port}: ${message}`, ERRORS[code].remedy)]
  }
  const query: Query = (sql, params = []) => client.query(sql, [...params])
  const reached = ok('Reachability', `${database} at ${hostname}:${port} answers ${username}`)
  try {
    const parts: readonly (() => Promise<DatabaseCheck[]>)[] = [
      () => checkPooler(client),
      () => checkServer(query, clock),
      () => checkSlots(query, slot),
      () => checkRole(query),
      ...(publication === undefined ? [] : [() => checkPublication(query, publication), () => checkTables(query, publication)]),
      ...(slot === undefined ? [] : [() => checkSlot(query, slot, publication), () => checkSlotSize(query, slot)]),
      () => checkTransactions(query, slot),
    ]
    const checks = [reached]
    for (const part of parts) {
      const failed = (cause: unknown) => [error('Checks', errorText(cause), 'Run it again; the user may lack a right.')]
      checks.push(...(await part().catch(failed)))
    }
    return checks
  } finally {
    await client.end().catch(() => undefined)
  }
}

async function checkPooler(client: Client): Promise<DatabaseCheck[]> {
  if (!(await isPooled(client))) return [ok('Pooler', 'the server answers itself')]
  const message = 'a connection pooler answers: most of them pass no replication on, and share sessions'
  return [warning('Pooler', message, 'Give the address of the server itself.')]
}

async function checkServer(query: Query, clock: () => number): Promise<DatabaseCheck[]> {
  const [server] = rowsOf(
    { version: 'int', name: 'text', level: 'text', now: 'number', standby: 'boolean' },
    await query(
      `select current_setting('server_version_num')::int as version, current_setting('server_version') as name, current_setting('wal_level') as level,
         extract(epoch from clock_timestamp())::float8 * 1000 as now, pg_is_in_recovery() as standby`,
    ),
  )
  if (!server) return []
  const apartMs = Math.abs(server.now - clock())
  return [
    server.version >= OLDEST_VERSION
      ? ok('Version', `PostgreSQL ${server.name}`)
      : error('Version', `PostgreSQL ${server.name} is too old`, 'Upgrade to PostgreSQL 14 or later.'),
    server.level === 'logical'
      ? ok('wal_level', 'logical')
      : error(
          'wal_level',
          `it is "${server.level}": changes can't be decoded`,
          'alter system set wal_level = logical; -- and restart the server',
        ),
    ...(server.standby
      ? [warning('Standby', 'the server replays another one', 'Give the address of the primary, or name it as `primary`.')]
      : []),
    apartMs <= CLOCK_MS
      ? ok('Clock', 'the same as here')
      : warning(
          'Clock',
          `it is ${Math.round(apartMs / 1_000)} s apart from that of this machine`,
          'Let both machines follow a time server.',
        ),
  ]
}

/** Whether a slot and a sender are there for the source. @param slot one that exists already needs no other */
async function checkSlots(query: Query, slot: string | undefined): Promise<DatabaseCheck[]> {
  const [found] = rowsOf(
    { slots: 'int', used: 'int', senders: 'int', sending: 'int', own: 'int' },
    await query(
      `select current_setting('max_replication_slots')::int as slots, (select count(*)::int from pg_replication_slots) as used,
         current_setting('max_wal_senders')::int as senders, (select count(*)::int from pg_stat_replication) as sending,
         (select count(*)::int from pg_replication_slots where slot_name = $1) as own`,
      [slot ?? ''],
    ),
  )
  if (!found) return []
  const { slots, used, senders, sending, own } = found
  return [
    own > 0 || used < slots
      ? ok('max_replication_slots', `${used} of ${slots} are in use`)
      : error('max_replication_slots', `all ${slots} are in use`, `alter system set max_replication_slots = ${slots + 5}; -- and restart the server; or drop one of pg_replication_slots`), // prettier-ignore
    own > 0 || sending < senders
      ? ok('max_wal_senders', `${sending} of ${senders} are in use`)
      : error(
          'max_wal_senders',
          `all ${senders} are in use`,
          `alter system set max_wal_senders = ${senders + 5}; -- and restart the server`,
        ),
  ]
}

async function checkRole(query: Query): Promise<DatabaseCheck[]> {
  const [role] = rowsOf(
    { name: 'text', may: 'boolean' },
    await query(
      `select quote_ident(current_user) as name, rolreplication or rolsuper or
         exists (select from pg_roles r where r.rolname = 'rds_replication' and pg_has_role(current_user, r.oid, 'member')) as may
       from pg_roles where rolname = current_user`,
    ),
  )
  if (!role || role.may) return [ok('Right to replicate', `${role?.name ?? 'the user'} has it`)]
  return [error('Right to replicate', `the user ${role.name} lacks it`, `alter role ${role.name} replication; -- on RDS: grant rds_replication to ${role.name};`)] // prettier-ignore
}

async function checkPublication(query: Query, publication: string): Promise<DatabaseCheck[]> {
  const quoted = escapeIdentifier(publication)
  const [found] = rowsOf(
    { insert: 'boolean', update: 'boolean', delete: 'boolean', root: 'boolean', tables: 'int', parted: 'int' },
    await query(
      `select pubinsert as insert, pubupdate as update, pubdelete as delete, pubviaroot as root,
         (select count(*)::int from pg_publication_tables t where t.pubname = p.pubname) as tables,
         (select count(*)::int from pg_publication_tables t join pg_namespace n on n.nspname = t.schemaname
            join pg_class c on c.relnamespace = n.oid and c.relname = t.tablename where t.pubname = p.pubname and c.relispartition) as parted
       from pg_publication p where pubname = $1`,
      [publication],
    ),
  )
  const create = `create publication ${quoted} for all tables with (publish_via_partition_root = true);`
  if (!found) return [error('Publication', `there is no publication "${publication}"`, create)]
  const left = (['insert', 'update', 'delete'] as const).filter((action) => !found[action])
  return [
    found.tables > 0
      ? ok('Publication', `"${publication}" has ${found.tables} tables`)
      : warning('Publication', `"${publication}" has no tables: nothing comes`, `alter publication ${quoted} add table …;`),
    ...(left.length > 0
      ? [warning('Publication actions', `it leaves out ${left.join(', ')}`, `alter publication ${quoted} set (publish = 'insert, update, delete, truncate');`)] // prettier-ignore
      : []),
    ...(found.parted > 0 && !found.root
      ? [warning('Partitions', `${found.parted} partitions are published under their own names`, `alter publication ${quoted} set (publish_via_partition_root = true);`)] // prettier-ignore
      : []),
  ]
}

/** What a table needs so that its changes can be made, streamed whole, and its rows be read. */
async function checkTables(query: Query, publication: string): Promise<DatabaseCheck[]> {
  const tables = rowsOf(
    { name: 'text', quoted: 'text', identity: 'text', keyed: 'boolean', readable: 'boolean', secured: 'boolean', role: 'text' },
    await query(
      `select n.nspname || '.' || c.relname as name, format('%I.%I', n.nspname, c.relname) as quoted, c.relreplident::text as identity,
         exists (select from pg_index i where i.indrelid = c.oid and (i.indisprimary and c.relreplident = 'd' or i.indisreplident and c.relreplident = 'i')) as keyed,
         has_schema_privilege(n.oid, 'usage') and has_table_privilege(c.oid, 'select') as readable,
         row_security_active(c.oid) as secured, quote_ident(current_user) as role
       from pg_publication_tables t join pg_namespace n on n.nspname = t.schemaname join pg_class c on c.relnamespace = n.oid and c.relname = t.tablename
       where t.pubname = $1 and n.nspname <> 'tailrace' order by 1`,
      [publication],
    ),
  )
  type Table = (typeof tables)[number]
  const told = (found: readonly Table[]) =>
    found.slice(0, NAMED_TABLES).map(({ name }) => name).join(', ') + (found.length > NAMED_TABLES ? ` and ${found.length - NAMED_TABLES} more` : '') // prettier-ignore
  const each = (found: readonly Table[], sql: (table: Table) => string) => found.slice(0, NAMED_TABLES).map(sql).join(' ')
  const unkeyed = tables.filter(({ identity, keyed }) => identity !== 'f' && !keyed)
  const unread = tables.filter(({ readable }) => !readable)
  const secured = tables.filter(({ readable, secured: isSecured }) => readable && isSecured)
  return [
    unkeyed.length === 0
      ? ok('Replica identity', 'updates and deletes of all published tables name their row')
      : error('Replica identity', `PostgreSQL refuses updates and deletes of published tables without a key: ${told(unkeyed)}`, each(unkeyed, ({ quoted }) => `alter table ${quoted} replica identity full; -- or give it a primary key`)), // prettier-ignore
    unread.length === 0
      ? ok('Right to read', 'all published tables')
      : error('Right to read', `backfills and look-ups can't read ${told(unread)}`, each(unread, ({ quoted, role }) => `grant select on ${quoted} to ${role};`)), // prettier-ignore
    secured.length === 0
      ? ok('Row security', 'it hides no published row from the user')
      : warning('Row security', `policies may hide rows of ${told(secured)} from backfills and look-ups, and hide nothing from the stream`, `alter role ${secured[0]?.role ?? 'the user'} bypassrls;`), // prettier-ignore
  ]
}

async function checkSlot(query: Query, slot: string, publication: string | undefined): Promise<DatabaseCheck[]> {
  try {
    // without one the slot alone is looked at
    const facts = await readSlotFacts(query, slot, publication ?? '')
    judgeSlot({ ...facts, walLevel: 'logical', publicationOid: facts.publicationOid ?? 0 }, slot, publication ?? '', undefined)
    return [
      warning(
        'Slot',
        `"${slot}" is fit, and nobody reads from it`,
        'Nothing, when its source is not meant to run; else GET /info says what holds it.',
      ),
    ]
  } catch (cause) {
    if (!(cause instanceof EngineError)) throw cause
    if (cause.code === 'SLOT_IN_USE') return [ok('Slot', `"${slot}" is fit, and is read from`)]
    return [error('Slot', cause.message, ERRORS[cause.code].remedy)]
  }
}

async function checkSlotSize(query: Query, slot: string): Promise<DatabaseCheck[]> {
  const [found] = rowsOf(
    { kept: 'number', limit: 'text', safe: 'number?', spilled: 'number' },
    await query(
      `select coalesce(pg_wal_lsn_diff(case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_lsn() end, restart_lsn), 0)::float8 as kept,
         current_setting('max_slot_wal_keep_size') as limit, safe_wal_size::float8 as safe,
         coalesce((select spill_bytes from pg_stat_replication_slots t where t.slot_name = s.slot_name), 0)::float8 as spilled
       from pg_replication_slots s where slot_name = $1`,
      [slot],
    ),
  )
  if (!found) return []
  const { kept, limit, safe, spilled } = found
  const keeps = `the slot makes the server keep ${megabytes(kept)} of its log`
  const endangered = safe !== undefined && safe < kept
  const mends = 'See what the source waits for (GET /info); a transaction that is open for long keeps it too.'
  return [
    endangered
      ? error('Retained log', `${keeps}; after ${megabytes(safe)} more it is invalidated (max_slot_wal_keep_size is ${limit})`, `alter system set max_slot_wal_keep_size = '${Math.ceil((4 * (kept + safe)) / 2 ** 30)}GB'; select pg_reload_conf();`) // prettier-ignore
      : kept > MUCH_WAL_BYTES
        ? warning('Retained log', keeps, mends)
        : ok('Retained log', `${keeps}${safe === undefined ? '' : `; ${megabytes(safe)} more until it is invalidated`}`),
    ...(spilled > 0
      ? [warning('Spilled transactions', `${megabytes(spilled)} of large transactions were written to the server's disk to be decoded`, `alter system set logical_decoding_work_mem = '256MB'; select pg_reload_conf();`)] // prettier-ignore
      : []),
  ]
}

/** Transactions that are open for long keep log, and let no slot be made. */
async function checkTransactions(query: Query, slot: string | undefined): Promise<DatabaseCheck[]> {
  const [found] = rowsOf(
    { pid: 'int', since: 'text', who: 'text' },
    await query(
      `select pid, date_trunc('second', now() - xact_start)::text as since, coalesce(nullif(application_name, ''), usename, '') as who from pg_stat_activity
       where backend_xid is not null and pid <> pg_backend_pid() and now() - xact_start > interval '${LONG_TRANSACTION}' order by xact_start limit 1`,
    ),
  )
  const [prepared] = rowsOf(
    { gid: 'text' },
    await query(
      `select quote_literal(gid) as gid from pg_prepared_xacts where database = current_database() and now() - prepared > interval '${LONG_TRANSACTION}' limit 1`,
    ),
  )
  const keeps = slot === undefined ? 'no slot can be made meanwhile' : 'the slot keeps all log since then'
  return [
    ...(found ? [warning('Open transactions', `process ${found.pid} ("${found.who}") writes in one that is open for ${found.since}: ${keeps}`, `select pg_terminate_backend(${found.pid});`)] : []), // prettier-ignore
    ...(prepared ? [warning('Prepared transactions', `${prepared.gid} waits to be committed: ${keeps}`, `commit prepared ${prepared.gid}; -- or rollback prepared`)] : []), // prettier-ignore
    ...(found || prepared ? [] : [ok('Open transactions', `none is open for more than ${LONG_TRANSACTION}`)]),
  ]
}

const megabytes = (bytes: number): string => `${(bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0)} MB`
