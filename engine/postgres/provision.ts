/**
 * Looks after what a source needs on its server: logical WAL, a user that may replicate, a publication and, made after it, a slot.
 * What is missing is made when the user asked for it, and told with the exact SQL otherwise. Of a standby the publication is made on
 * its primary, and the slot on the standby itself.
 */
import { Client } from 'pg'
import { EngineError, errorText, codeOf } from '../errors.ts'
import { accountClient, type Connection } from './client-config.ts'
import { refusePoolerName, refusePoolerWithoutReplication } from './pooler.ts'
import { sqlstateOf } from './sqlstate.ts'
import { tlsRefusal } from './tls-refusal.ts'

type Provision = Readonly<{
  slot: Readonly<{ name: string; create: boolean }>
  publication: Readonly<{ name: string; create: boolean; initSql?: string }>
  /** of the primary, where the database is a standby */
  primary?: Connection | null | undefined
  /** it is only looked at what would be made */
  isTrial?: boolean
}>
/** Tells what was made; `undo` drops it again, when the rest of a configuration fails to apply. */
export type Provisioned = Readonly<{ slotCreated: boolean; publicationCreated: boolean; undo: () => Promise<void> }>

/** A slot waits for transactions that were open when it was asked for. */
const SLOT_LIMIT_MS = 15_000
/** A slot of a standby waits for a line of its primary's log, which that writes by itself every 15 seconds. */
const STANDBY_SLOT_LIMIT_MS = 45_000
const SNAPSHOT_EVERY_MS = 500
const QUERY_CANCELED = '57014'
const CONNECTING = 'connecting'
/** Logical decoding on a standby. */
const READS_STANDBYS = 160_000
/** Slots that standbys keep for their promotion. */
const HAS_FAILOVER_SLOTS = 170_000

/**
 * Makes what a source needs, or says what is missing. @throws EngineError SOURCE_UNREACHABLE, TLS_REFUSED, SOURCE_POOLED,
 * WAL_LEVEL_TOO_LOW, SOURCE_REFUSED, SOURCE_IN_RECOVERY, PUBLICATION_MISSING, SLOT_MISSING, SLOT_BLOCKED
 */
export async function provision(connection: Connection, wanted: Provision): Promise<Provisioned> {
  const { isTrial = false } = wanted
  await using database = await session(connection)
  await refusePoolerWithoutReplication(connection, database.client)
  const { version, isInRecovery } = await requireReplication(database.client)
  await using primary = isInRecovery ? await primarySession(database.client, version, wanted.primary) : undefined
  const writer = primary ?? database
  const publicationCreated = await ensurePublication(writer.client, wanted.publication, isTrial)
  let slotCreated = false
  const undo = async () => {
    if (isTrial) return
    if (slotCreated) await dropped(connection, (client) => client.query('select pg_drop_replication_slot($1)', [wanted.slot.name]))
    if (publicationCreated)
      await dropped(writer.connection, (client) =>
        client.query(`drop publication if exists ${client.escapeIdentifier(wanted.publication.name)}`),
      )
  }
  try {
    slotCreated = await ensureSlot(database.client, wanted.slot, { isTrial, version, primary: primary?.client })
  } catch (error) {
    await undo()
    throw error
  }
  return { slotCreated, publicationCreated, undo }
}

/**
 * Tells whether an error is of connecting: the server could not be reached, or let nobody in. Which of the two it is would tell a
 * stranger what stands in a network.
 */
export const isOfConnecting = (error: unknown): error is EngineError => error instanceof EngineError && error.context['step'] === CONNECTING

/** A session for as long as something is set up. */
type Session = AsyncDisposable & Readonly<{ client: Client; connection: Connection }>

/** @throws EngineError SOURCE_UNREACHABLE, SOURCE_REFUSED, SOURCE_POOLED, TLS_REFUSED, EGRESS_REFUSED */
async function session(connection: Connection): Promise<Session> {
  refusePoolerName(connection.hostname)
  const client = new Client(accountClient(connection, 'tailrace set-up'))
  client.on('error', () => {}) // the query under way tells it
  try {
    await client.connect()
  } catch (cause) {
    const { hostname, port, database } = connection
    const where = `the database ${database} at ${hostname}:${port}`
    const untrusted = tlsRefusal(cause, where)
    const own = untrusted ?? (cause instanceof EngineError ? cause : undefined)
    throw new EngineError(
      own?.code ?? (isRefusal(cause) ? 'SOURCE_REFUSED' : 'SOURCE_UNREACHABLE'),
      untrusted?.message ?? `${where}: ${own?.message ?? reasonOf(cause)}`,
      { hostname, port, database, step: CONNECTING },
      { cause },
    )
  }
  return { client, connection, [Symbol.asyncDispose]: () => client.end() }
}

/** Login, database or right: waiting does not mend it. */
const isRefusal = (error: unknown): boolean => /^28|^3D000$|^42501$/.test(codeOf(error) ?? '')

/** Says why no session came about: nobody listens, nobody is known by that name, nobody answers, or what the server says. */
function reasonOf(error: unknown): string {
  const code = codeOf(error) ?? ''
  const text = errorText(error)
  if (code === 'ECONNREFUSED') return `${text}: nothing listens there`
  if (code === 'ENOTFOUND' || code === 'EAI_AGAIN') return `${text}: the host name is not known`
  if (code === 'ETIMEDOUT' || TIMED_OUT.includes(text)) return `no answer within 10 s (${text})`
  const sqlstate = sqlstateOf(error)
  return sqlstate === undefined ? text : `${text} (${sqlstate})`
}
/** pg's own words, which come without a code. */
const TIMED_OUT: readonly string[] = ['timeout expired', 'Connection terminated due to connection timeout']

type ServerFacts = Readonly<{ version: number; isInRecovery: boolean }>

async function requireReplication(client: Client): Promise<ServerFacts> {
  const { rows } = await client.query<ServerFacts & { level: string; may: boolean; name: string }>(
    `select current_setting('wal_level') as level, rolreplication or rolsuper or
       exists (select from pg_roles r where r.rolname = 'rds_replication' and pg_has_role(current_user, r.oid, 'member')) as may,
       quote_ident(current_user) as name, current_setting('server_version_num')::int as version, pg_is_in_recovery() as "isInRecovery"
     from pg_roles where rolname = current_user`,
  )
  const [server] = rows
  if (server?.level !== 'logical') {
    throw new EngineError(
      'WAL_LEVEL_TOO_LOW',
      `wal_level of the server is "${server?.level}"; run: alter system set wal_level = 'logical'; and restart it`,
    )
  }
  if (!server.may)
    throw new EngineError(
      'SOURCE_REFUSED',
      `the user ${server.name} lacks the right REPLICATION; run: alter role ${server.name} replication;`,
    )
  return server
}

/** Connects to the primary of a standby. @throws EngineError SOURCE_IN_RECOVERY: there is none that would do */
async function primarySession(standby: Client, version: number, primary: Connection | null | undefined): Promise<Session> {
  if (version < READS_STANDBYS)
    throw new EngineError(
      'SOURCE_IN_RECOVERY',
      'the server is a standby, and standbys can be read from PostgreSQL 16 on: give the address of the primary',
    )
  if (!primary)
    throw new EngineError(
      'SOURCE_IN_RECOVERY',
      'the server is a standby: give the connection of its primary as "primary", for what has to be written, or the address of the primary instead',
    )
  const writer = await session(primary)
  try {
    const [ours, theirs] = await Promise.all([standby, writer.client].map(identityOf))
    if (theirs?.isInRecovery) throw new EngineError('SOURCE_IN_RECOVERY', 'the server of "primary" is a standby too')
    if (ours?.system !== theirs?.system)
      throw new EngineError('SOURCE_REFUSED', 'the server of "primary" is not the one that the standby follows: they have different system identifiers') // prettier-ignore
    if (theirs?.level !== 'logical')
      throw new EngineError(
        'WAL_LEVEL_TOO_LOW',
        `wal_level of the primary is "${theirs?.level}"; run there: alter system set wal_level = 'logical'; and restart it`,
      )
    return writer
  } catch (error) {
    await writer[Symbol.asyncDispose]()
    throw error
  }
}

async function identityOf(client: Client): Promise<Readonly<{ system: string; level: string; isInRecovery: boolean }> | undefined> {
  const { rows } = await client.query<{ system: string; level: string; isInRecovery: boolean }>(
    `select system_identifier::text as system, current_setting('wal_level') as level, pg_is_in_recovery() as "isInRecovery"
     from pg_control_system()`,
  )
  return rows[0]
}

async function ensurePublication(client: Client, { name, create, initSql }: Provision['publication'], isTrial: boolean): Promise<boolean> {
  const found = await client.query('select from pg_publication where pubname = $1', [name])
  if (found.rows.length > 0) return false
  const sql = initSql ?? `create publication ${client.escapeIdentifier(name)} for all tables with (publish_via_partition_root = true)`
  if (!create) throw new EngineError('PUBLICATION_MISSING', `the publication "${name}" does not exist; run: ${sql};`, { publication: name })
  if (isTrial) return true
  try {
    await client.query(sql)
  } catch (cause) {
    if (!isRefusal(cause)) throw cause
    throw new EngineError(
      'SOURCE_REFUSED',
      `the user may not create the publication (${errorText(cause)}); as a superuser run: ${sql};`,
      { publication: name },
      { cause },
    )
  }
  const made = await client.query('select from pg_publication where pubname = $1', [name])
  if (made.rows.length > 0) return true
  throw new EngineError('PUBLICATION_MISSING', `init_sql did not create the publication "${name}"`, { publication: name })
}

type SlotHome = Readonly<{ isTrial: boolean; version: number; primary: Client | undefined }>

async function ensureSlot(client: Client, { name, create }: Provision['slot'], { isTrial, version, primary }: SlotHome): Promise<boolean> {
  const { rows } = await client.query('select from pg_replication_slots where slot_name = $1', [name])
  if (rows.length > 0) return false // whether it fits is looked at by the source that streams it
  const options = version >= HAS_FAILOVER_SLOTS && !primary ? ', failover => true' : '' // a standby's own slot can't be one
  const sql = `select pg_create_logical_replication_slot('${name.replaceAll("'", "''")}', 'pgoutput'${options})`
  if (!create) throw new EngineError('SLOT_MISSING', `the slot "${name}" does not exist; run: ${sql};`, { slot: name })
  if (isTrial) return true
  const timer = primary && setInterval(() => void showRunning(primary), SNAPSHOT_EVERY_MS)
  await client.query(`set statement_timeout = ${primary ? STANDBY_SLOT_LIMIT_MS : SLOT_LIMIT_MS}`)
  try {
    await client.query(sql)
    return true
  } catch (cause) {
    if (codeOf(cause) !== QUERY_CANCELED) throw cause
    throw new EngineError(
      'SLOT_BLOCKED',
      `the slot "${name}" can't be created while a transaction is open: ${await oldestTransaction(primary ?? client)}`,
      { slot: name },
      { cause },
    )
  } finally {
    clearInterval(timer)
    await client.query('reset statement_timeout').catch(() => undefined)
  }
}

/** Has a primary write which transactions are open, which a slot of its standby begins with. Where the right is missing, it does so by itself. */
async function showRunning(primary: Client): Promise<void> {
  await primary.query('select pg_log_standby_snapshot()').catch(async () => {
    await primary.query(`select pg_logical_emit_message(true, 'tailrace:heartbeat', '')`).catch(() => undefined) // without a change it writes none
  })
}

async function oldestTransaction(client: Client): Promise<string> {
  const { rows } = await client.query<{ pid: number; xid: string; since: string | null }>(
    `select pid, backend_xid::text as xid, date_trunc('second', now() - xact_start)::text as since
     from pg_stat_activity where backend_xid is not null and pid <> pg_backend_pid() order by age(backend_xid) desc limit 1`,
  )
  const [oldest] = rows
  const since = oldest?.since ? `, open for ${oldest.since}` : '' // of others it is not shown to every user
  return oldest
    ? `the transaction ${oldest.xid} of process ${oldest.pid}${since}; end it, or run: select pg_terminate_backend(${oldest.pid});`
    : 'a transaction that was open when it was asked for (a prepared one: see pg_prepared_xacts)'
}

async function dropped(connection: Connection, drop: (client: Client) => Promise<unknown>): Promise<void> {
  const client = new Client(accountClient(connection, 'tailrace set-up'))
  client.on('error', () => {})
  await client.connect()
  try {
    await drop(client)
  } finally {
    await client.end()
  }
}
