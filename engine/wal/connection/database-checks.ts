/**
 * The checks of a database, its publication and its slot, as `tailrace doctor` shows them: what was found, and what is as it should be. It only
 * looks, on a session of its own, and reads no row of any table.
 */
import { Client } from 'pg'
import { sizeText } from '../../amounts.ts'
import { ERRORS, errorText } from '../../errors.ts'
import type { Connection } from '../../postgres/client-config.ts'
import { oldestTransaction } from '../../postgres/oldest-transaction.ts'
import { isPooled } from '../../postgres/pooler.ts'
import type { Query } from '../../postgres/query.ts'
import { sourceTables } from '../source-tables.ts'
import {
  failoverFindings,
  OLD_TRANSACTION_TEXT,
  POOLED,
  publicationFindings,
  readFailover,
  readPublication,
  readServer,
  serverFindings,
  standingFindings,
  transactionFindings,
} from './database-findings.ts'
import { remedyOf, shownOf, type CheckName, type Finding } from './finding.ts'
import { asIfUnread } from './slot-check.ts'
import { readSlotFacts, readSlotState, slotFindings } from './slot.ts'
import { sourceClient } from './source-client.ts'
import { toSourceError } from './source-error.ts'

/** The result of one check. @property code of what is wrong, as in health and among errors @property remedy what mends it: SQL, or words */
export type DatabaseCheck = Readonly<{
  name: string
  status: 'ok' | 'warning' | 'error'
  code?: string
  message: string
  remedy?: string
}>
/** What is checked. @property slot absent, as the publication: what is of it is left out */
export type CheckedDatabase = Readonly<{ connection: Connection; slot?: string | undefined; publication?: string | undefined }>
type Asked = Readonly<{ slot: string | undefined; publication: string | undefined; now: () => number }>

/** The findings of several checks. @property fine the text of each check that found nothing wrong */
type Looked = Readonly<{ found: readonly Finding[]; fine: readonly (readonly [check: CheckName, message: string])[] }>

const QUERY_LIMIT_MS = 15_000

/** Checks a database. What can't be reached is a check that failed; nothing is thrown for it. @param now milliseconds since the epoch */
export async function checkDatabase(
  { connection, slot, publication }: CheckedDatabase,
  now: () => number = Date.now,
): Promise<readonly DatabaseCheck[]> {
  const { hostname, port, database, username } = connection
  const where = `${database} at ${hostname}:${port}`
  const client = new Client(sourceClient(connection, 'tailrace doctor', { statement_timeout: QUERY_LIMIT_MS }))
  client.on('error', () => {}) // the query under way tells it
  try {
    await client.connect()
  } catch (cause) {
    const { code, message } = toSourceError(cause, 'connecting')
    return [{ name: 'Reachability', status: 'error', code, message: `${where}: ${message}`, remedy: ERRORS[code].remedy }]
  }
  const query: Query = (sql, params = []) => client.query(sql, [...params])
  const asked = { slot, publication, now }
  const looks: readonly (() => Promise<Looked>)[] = [
    () => lookAtPooler(client),
    () => lookAtServer(query, asked),
    ...(publication === undefined ? [] : [() => lookAtPublication(query, publication)]),
    () => lookAtStanding(query, slot),
  ]
  const checks: DatabaseCheck[] = [{ name: 'Reachability', status: 'ok', message: `${where} answers ${username}` }]
  try {
    for (const look of looks)
      try {
        checks.push(...checksOf(await look()))
      } catch (cause) {
        checks.push({ name: 'Checks', status: 'error', message: errorText(cause), remedy: 'Run it again; the user may lack a right.' })
      }
    return checks
  } finally {
    await client.end().catch(() => undefined)
  }
}

function checksOf({ found, fine }: Looked): readonly DatabaseCheck[] {
  const checks = found.flatMap((finding): DatabaseCheck[] => {
    const [name, status] = shownOf(finding.code).doctor ?? []
    return name && status ? [{ name, status, code: finding.code, message: finding.message, remedy: remedyOf(finding) }] : []
  })
  const sick = new Set(checks.map(({ name }) => name))
  return [...fine.flatMap(([name, message]): DatabaseCheck[] => (sick.has(name) ? [] : [{ name, status: 'ok', message }])), ...checks]
}

async function lookAtPooler(client: Client): Promise<Looked> {
  return { found: (await isPooled(client)) ? [POOLED] : [], fine: [['Pooler', 'the server answers itself']] }
}

/** Looks at the server, and at what keeps a source from starting there. */
async function lookAtServer(query: Query, { slot, publication, now }: Asked): Promise<Looked> {
  const server = await readServer(query)
  const { versionName, slots, usedSlots, senders, usedSenders, user } = server
  const facts = await readSlotFacts(query, slot ?? '', publication ?? '')
  const faults = slotFindings(asIfUnread(facts), { slot, publication })
  const isRead = facts.slot?.activePid != null
  const isIdle = slot !== undefined && facts.slot !== undefined && !isRead
  const idle: Finding = {
    code: 'slot_not_read',
    message: `"${slot}" is fit, and nobody reads from it`,
    remedy: 'Nothing, when its source is not meant to run; else GET /info says what holds it.',
  }
  return {
    found: [
      ...serverFindings(server, { now: now(), hasSlot: facts.slot !== undefined }),
      ...faults,
      ...(isIdle && !faults.some(({ code }) => code.startsWith('SLOT_')) ? [idle] : []),
      ...(slot === undefined ? [] : failoverFindings(slot, await readFailover(query, slot))),
    ],
    fine: [
      ['Version', `PostgreSQL ${versionName}`],
      ...(facts.walLevel === 'logical' ? ([['wal_level', 'logical']] as const) : []),
      ['Clock', 'the same as here'],
      ['max_replication_slots', `${usedSlots} of ${slots} are in use`],
      ['max_wal_senders', `${usedSenders} of ${senders} are in use`],
      ['Right to replicate', `${user} has it`],
      ...(isRead ? ([['Slot', `"${slot}" is fit, and is read from`]] as const) : []),
    ],
  }
}

async function lookAtPublication(query: Query, publication: string): Promise<Looked> {
  const facts = await readPublication(query, publication)
  if (!facts) return { found: [], fine: [] } // among what keeps a source from starting
  const tables = await sourceTables(query, publication)
  return {
    found: publicationFindings(publication, facts, tables),
    fine: [
      ['Publication', `"${publication}" has ${tables.filter(({ isPublished }) => isPublished).length} tables`],
      ['Replica identity', 'updates and deletes of all published tables name their row'],
      ['Right to read', 'all published tables'],
      ['Row security', 'it hides no published row from the user'],
    ],
  }
}

/** Looks at what the slot keeps at its server, or without one at what would keep it from being made. */
async function lookAtStanding(query: Query, slot: string | undefined): Promise<Looked> {
  const none: Looked['fine'][number] = ['Open transactions', `none holds anything up for more than ${OLD_TRANSACTION_TEXT}`]
  const state = slot === undefined ? undefined : await readSlotState(query, slot)
  if (!state) return { found: transactionFindings(await oldestTransaction(query), 'lets no slot be made meanwhile'), fine: [none] }
  const { retainedBytes, safeWalBytes } = state
  const left = safeWalBytes === null ? '' : `; ${sizeText(safeWalBytes)} more until it is lost`
  return {
    found: standingFindings(state),
    fine: [['Retained log', `the slot makes the server keep ${sizeText(retainedBytes)} of its log${left}`], none],
  }
}
