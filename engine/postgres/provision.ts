/**
 * Looks after what a source needs on its server: logical WAL, a user that may replicate, a publication and, made after it, a slot.
 * What is missing is made when the user asked for it, and told with the exact SQL otherwise.
 */
import { Client } from 'pg'
import { EngineError, errorText, codeOf } from '../errors.ts'
import { accountClient, type Connection } from './client-config.ts'
import { tlsRefusal } from './tls-refusal.ts'

type Provision = Readonly<{
  slot: Readonly<{ name: string; create: boolean }>
  publication: Readonly<{ name: string; create: boolean; initSql?: string }>
  /** it is only looked at what would be made */
  isTrial?: boolean
}>
/** Tells what was made; `undo` drops it again, when the rest of a configuration fails to apply. */
export type Provisioned = Readonly<{ slotCreated: boolean; publicationCreated: boolean; undo: () => Promise<void> }>

/** A slot waits for transactions that were open when it was asked for. */
const SLOT_LIMIT_MS = 15_000
const QUERY_CANCELED = '57014'
const CONNECTING = 'connecting'

/**
 * Makes what a source needs, or says what is missing. @throws EngineError SOURCE_UNREACHABLE, TLS_REFUSED, WAL_LEVEL_TOO_LOW,
 * SOURCE_REFUSED, PUBLICATION_MISSING, SLOT_MISSING, SLOT_BLOCKED
 */
export async function provision(connection: Connection, wanted: Provision): Promise<Provisioned> {
  const { isTrial = false } = wanted
  const client = new Client(accountClient(connection, 'tailrace set-up'))
  client.on('error', () => {}) // the query under way tells it
  try {
    await client.connect()
  } catch (cause) {
    const { hostname, port, database } = connection
    const where = `the database ${database} at ${hostname}:${port}`
    const untrusted = tlsRefusal(cause, where)
    const text = errorText(cause)
    const own = untrusted ?? (cause instanceof EngineError ? cause : undefined)
    throw new EngineError(
      own?.code ?? (isRefusal(cause) ? 'SOURCE_REFUSED' : 'SOURCE_UNREACHABLE'),
      untrusted?.message ?? `${where}: ${text}`,
      { hostname, port, database, step: CONNECTING },
      { cause },
    )
  }
  try {
    await requireReplication(client)
    const publicationCreated = await ensurePublication(client, wanted.publication, isTrial)
    let slotCreated = false
    const undo = async () =>
      isTrial
        ? undefined
        : undoOn(connection, {
            ...(slotCreated && { slot: wanted.slot.name }),
            ...(publicationCreated && { publication: wanted.publication.name }),
          })
    try {
      slotCreated = await ensureSlot(client, wanted.slot, isTrial)
    } catch (error) {
      await undo()
      throw error
    }
    return { slotCreated, publicationCreated, undo }
  } finally {
    await client.end()
  }
}

/**
 * Tells whether an error is of connecting: the server could not be reached, or let nobody in. Which of the two it is would tell a
 * stranger what stands in a network.
 */
export const isOfConnecting = (error: unknown): error is EngineError => error instanceof EngineError && error.context['step'] === CONNECTING

/** Login, database or right: waiting does not mend it. */
const isRefusal = (error: unknown): boolean => /^28|^3D000$|^42501$/.test(codeOf(error) ?? '')

async function requireReplication(client: Client): Promise<void> {
  const { rows } = await client.query<{ level: string; may: boolean; name: string }>(
    `select current_setting('wal_level') as level, rolreplication or rolsuper or
       exists (select from pg_roles r where r.rolname = 'rds_replication' and pg_has_role(current_user, r.oid, 'member')) as may,
       quote_ident(current_user) as name
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

async function ensureSlot(client: Client, { name, create }: Provision['slot'], isTrial: boolean): Promise<boolean> {
  const { rows } = await client.query('select from pg_replication_slots where slot_name = $1', [name])
  if (rows.length > 0) return false // whether it fits is looked at by the source that streams it
  const sql = `select pg_create_logical_replication_slot('${name.replaceAll("'", "''")}', 'pgoutput')`
  if (!create) throw new EngineError('SLOT_MISSING', `the slot "${name}" does not exist; run: ${sql};`, { slot: name })
  if (isTrial) return true
  await client.query(`set statement_timeout = ${SLOT_LIMIT_MS}`)
  try {
    await client.query(`select pg_create_logical_replication_slot($1, 'pgoutput')`, [name])
    return true
  } catch (cause) {
    if (codeOf(cause) !== QUERY_CANCELED) throw cause
    throw new EngineError(
      'SLOT_BLOCKED',
      `the slot "${name}" can't be created while a transaction is open: ${await oldestTransaction(client)}`,
      { slot: name },
      { cause },
    )
  }
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

async function undoOn(connection: Connection, made: Readonly<{ slot?: string; publication?: string }>): Promise<void> {
  if (made.slot === undefined && made.publication === undefined) return
  const client = new Client(accountClient(connection, 'tailrace set-up'))
  client.on('error', () => {})
  await client.connect()
  try {
    if (made.slot !== undefined) await client.query('select pg_drop_replication_slot($1)', [made.slot])
    if (made.publication !== undefined) await client.query(`drop publication if exists ${client.escapeIdentifier(made.publication)}`)
  } finally {
    await client.end()
  }
}
