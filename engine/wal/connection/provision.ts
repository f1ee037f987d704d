/**
 * Looks after what a source needs on its server: logical WAL, a user that may replicate, a publication and, made after it, a slot.
 * What is missing is made when the user asked for it, and told with the exact SQL otherwise. Of a standby the publication is made on
 * its primary, and the slot on the standby itself.
 */
import { Client } from 'pg'
import { EngineError, errorText, codeOf } from '../../errors.ts'
import { accountClient, type Connection } from '../../postgres/client-config.ts'
import { ending, oldestTransaction } from '../../postgres/oldest-transaction.ts'
import { refusePoolerName, refusePoolerWithoutReplication } from '../../postgres/pooler.ts'
import type { Query } from '../../postgres/query.ts'
import { sqlstateOf } from '../../postgres/sqlstate.ts'
import { tlsRefusal } from '../../postgres/tls-refusal.ts'
import { durationText } from '../../amounts.ts'
import { readServer, replicationRightFinding, type ServerFacts } from './database-findings.ts'
import { wordsOf } from './finding.ts'
import { creatingPublication, creatingSlot, faultOf, missingPublication, missingSlot, READS_STANDBYS, walLevelFinding } from './slot.ts'

type Provision = Readonly<{
  slot: Readonly<{ name: string; create: boolean }>
  publication: Readonly<{ name: string; create: boolean; initSql?: string }>
  /** of the primary, where the database is a standby */
  primary?: Connection | null | undefined
  /** it is only looked at what would be made */
  isTrial?: boolean
  /** is told what is about to be made */
  beginning?: Beginning | undefined
}>
/** Names a slot or a publication, and how its server is reached. */
export type ServerPart = Readonly<{ kind: 'slot' | 'publication'; name: string; connection: Connection }>
/** Puts down what is about to be made on a server, so that it is known whatever happens next. */
export type Beginning = (part: ServerPart) => Promise<void>
/** Tells what was made; `undo` drops it again, when the rest of a configuration fails to apply. */
export type Provisioned = Readonly<{ slotCreated: boolean; publicationCreated: boolean; undo: () => Promise<void> }>

/** A slot waits for transactions that were open when it was asked for. */
const SLOT_LIMIT_MS = 15_000
/** A slot of a standby waits for a line of its primary's log, which that writes by itself every 15 seconds. */
const STANDBY_SLOT_LIMIT_MS = 45_000
const SNAPSHOT_EVERY_MS = 500
const DROP_LIMIT_MS = 30_000
const QUERY_CANCELED = '57014'
const CONNECTING = 'connecting'

/**
 * Makes what a source needs, or says what is missing. @throws EngineError SOURCE_UNREACHABLE, TLS_REFUSED, SOURCE_POOLED,
 * WAL_LEVEL_TOO_LOW, SOURCE_REFUSED, SOURCE_IN_RECOVERY, PUBLICATION_MISSING, SLOT_MISSING, SLOT_BLOCKED
 */
export async function provision(connection: Connection, wanted: Provision): Promise<Provisioned> {
  const { isTrial = false, beginning } = wanted
  await using database = await session(connection)
  await refusePoolerWithoutReplication(connection, database.client)
  const { version, isInRecovery } = await requireReplication(database.client)
  await using primary = isInRecovery ? await primarySession(database.client, version, wanted.primary) : undefined
  const writer = primary ?? database
  const publicationCreated = await ensurePublication(writer, wanted.publication, { isTrial, beginning })
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
    slotCreated = await ensureSlot(database, wanted.slot, { isTrial, beginning, version, primary: primary?.client })
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

/** @throws EngineError WAL_LEVEL_TOO_LOW, SOURCE_REFUSED */
async function requireReplication(client: Client): Promise<ServerFacts> {
  const server = await readServer(queryOf(client))
  if (server.walLevel !== 'logical') throw faultOf(walLevelFinding(server.walLevel))
  if (!server.mayReplicate) throw new EngineError('SOURCE_REFUSED', wordsOf(replicationRightFinding(server.user)))
  return server
}

const queryOf =
  (client: Client): Query =>
  (sql, params = []) =>
    client.query<Record<string, unknown>>(sql, [...params])

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
    if (theirs?.level !== 'logical') throw faultOf(walLevelFinding(theirs?.level ?? 'unknown', 'the primary'))
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

/** A statement without the semicolons and spaces at its end: where it is shown, one is put behind it. */
function withoutEnd(sql: string): string {
  let end = sql.length
  while (end > 0 && ' \t\r\n;'.includes(sql.charAt(end - 1))) end--
  return sql.slice(0, end)
}

async function ensurePublication(
  { client, connection }: Session,
  { name, create, initSql }: Provision['publication'],
  { isTrial, beginning }: Making,
): Promise<boolean> {
  const found = await client.query('select from pg_publication where pubname = $1', [name])
  if (found.rows.length > 0) return false
  const sql = initSql === undefined ? creatingPublication(name) : withoutEnd(initSql)
  if (!create) throw faultOf(missingPublication(connection.database, name, sql), { publication: name })
  if (isTrial) return true
  await beginning?.({ kind: 'publication', name, connection })
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

type Making = Required<Pick<Provision, 'isTrial'>> & Pick<Provision, 'beginning'>
type SlotHome = Making & Readonly<{ version: number; primary: Client | undefined }>

async function ensureSlot(
  { client, connection }: Session,
  { name, create }: Provision['slot'],
  { isTrial, beginning, version, primary }: SlotHome,
): Promise<boolean> {
  const { rows } = await client.query('select from pg_replication_slots where slot_name = $1', [name])
  if (rows.length > 0) return false // whether it fits is looked at by the source that streams it
  const server = { serverVersion: version, isInRecovery: primary !== undefined, database: connection.database }
  if (!create) throw faultOf(missingSlot(name, server), { slot: name })
  if (isTrial) return true
  await beginning?.({ kind: 'slot', name, connection })
  const timer = primary && setInterval(() => void showRunning(primary), SNAPSHOT_EVERY_MS)
  await client.query(`set statement_timeout = ${primary ? STANDBY_SLOT_LIMIT_MS : SLOT_LIMIT_MS}`)
  try {
    await client.query(creatingSlot(name, server))
    return true
  } catch (cause) {
    if (codeOf(cause) !== QUERY_CANCELED) throw cause
    throw new EngineError(
      'SLOT_BLOCKED',
      `the slot "${name}" can't be created while a transaction is open: ${await blocking(queryOf(primary ?? client))}`,
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

/** Names the transaction that holds up a slot. */
async function blocking(query: Query): Promise<string> {
  const oldest = await oldestTransaction(query)
  if (!oldest) return 'a transaction that was open when it was asked for'
  const since = oldest.seconds === null ? '' : `, open for ${durationText(oldest.seconds)}`
  const where = oldest.pid === null ? ' (prepared)' : ` of process ${oldest.pid}`
  return `the transaction ${oldest.xid}${where}${since}. End it, or run: ${ending(oldest)};`
}

/**
 * Drops what was made for a database that was never stored. @returns whether it was there; `busy`: it is a slot that somebody reads, or
 * that is still being made
 */
export function dropPart({ kind, name, connection }: ServerPart): Promise<'dropped' | 'gone' | 'busy'> {
  return dropped(connection, async (client) => {
    if (kind === 'publication') {
      const { rows } = await client.query('select from pg_publication where pubname = $1', [name])
      if (rows.length === 0) return 'gone'
      await client.query(`drop publication if exists ${client.escapeIdentifier(name)}`)
      return 'dropped'
    }
    const found = 'from pg_replication_slots where slot_name = $1 and database = current_database()'
    const { rows } = await client.query<{ active: boolean }>(`select active ${found}`, [name])
    if (!rows[0]) return 'gone'
    if (rows[0].active) return 'busy'
    await client.query(`select pg_drop_replication_slot(slot_name) ${found} and not active`, [name])
    return 'dropped'
  })
}

async function dropped<T>(connection: Connection, drop: (client: Client) => Promise<T>): Promise<T> {
  const client = new Client({ ...accountClient(connection, 'tailrace set-up'), query_timeout: DROP_LIMIT_MS })
  client.on('error', () => {})
  await client.connect()
  try {
    return await drop(client)
  } finally {
    await client.end()
  }
}
