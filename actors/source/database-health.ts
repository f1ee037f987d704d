/**
 * The health of a database and its slot: what its source, its slot and the look at its set-up say, each check with what is wrong and what
 * to do. Pure.
 */
import { durationText } from '../../engine/amounts.ts'
import { ERRORS, isErrorCode } from '../../engine/errors.ts'
import { redactText } from '../../engine/redaction.ts'
import type { Database } from '../../engine/state/resources.ts'
import { worst, type CheckStatus, type Health, type HealthCheck, type SlotState } from '../../engine/status.ts'
import { standingFindings } from '../../engine/wal/connection/database-findings.ts'
import { shownOf, wordsOf, type Finding, type HealthName } from '../../engine/wal/connection/finding.ts'
import type { Seen } from './source-sight.ts'

/**
 * Tells how a source is. @property state of its machine @property error why it does not stream @property slotError why the slot could not be
 * asked @property heartbeatMs since the last message that it wrote came back; undefined: none has, in this run
 */
export type SourceCondition = Readonly<{
  state: string
  sinceMs: number
  error: Readonly<{ code: string; message: string; course: string }> | undefined
  slot: SlotState | undefined
  slotError: Readonly<{ code: string; message: string }> | undefined
  seen: Seen | undefined
  heartbeatMs: number | undefined
}>

/** A finding of one health check: how grave it is, its code, and what to do. */
type Problem = Readonly<{ status: 'notice' | 'warning' | 'error'; code: string; message: string }>

/** A heartbeat is written every 15 s, and comes back at once where the source is not behind. */
const HEARTBEAT_LATE_MS = 120_000
/** Failures that say that the server was not reached, or let nobody in. */
const UNREACHED: ReadonlySet<string> = new Set([
  ...['SOURCE_UNREACHABLE', 'SOURCE_UNABLE', 'SOURCE_LOGIN_REFUSED', 'SOURCE_REFUSED'],
  ...['TLS_REFUSED', 'EGRESS_REFUSED', 'SOURCE_IN_RECOVERY'],
])

/** Says how a database is whose source runs in no process that answers. */
export function idleDatabaseHealth({ slot }: Database): Health {
  const isOff = slot.status === 'disabled'
  const checks: HealthCheck[] = [{ name: 'Replication slot connection', status: isOff ? 'paused' : 'initializing' }]
  return { name: 'Database health', status: worst(checks), checks }
}

/** Says how a database and its slot are. */
export function databaseHealth(database: Database, now: SourceCondition): Health {
  const { state, slot, seen } = now
  const found = [...(seen?.findings ?? []), ...(slot ? standingFindings(slot) : [])]
  const isKnown = slot !== undefined || seen !== undefined || state === 'streaming'
  const checkOf = (name: HealthName, problems: readonly Problem[], otherwise: CheckStatus) =>
    healthCheck(name, [...problems, ...found.flatMap((finding) => problemOf(finding, name))], otherwise)
  const checks = [
    checkOf('Database reachability', reachability(database, now), isKnown ? 'healthy' : 'waiting'),
    checkOf('Replication slot configuration', [], seen ? 'healthy' : 'waiting'),
    healthCheck('Replication slot connection', connection(now), state === 'streaming' ? 'healthy' : 'initializing'),
    checkOf('Replication slot messages', heartbeat(now), slot ? 'healthy' : 'waiting'),
  ]
  return { name: 'Database health', status: worst(checks), checks }
}

const RANK: readonly CheckStatus[] = ['notice', 'warning', 'error']

/** Makes one check of all that is wrong. @param otherwise where nothing is */
function healthCheck(name: string, problems: readonly Problem[], otherwise: CheckStatus): HealthCheck {
  const [first, ...others] = problems.toSorted((a, b) => RANK.indexOf(b.status) - RANK.indexOf(a.status))
  if (!first) return { name, status: otherwise }
  const message = [first, ...others].map((problem) => problem.message).join(' · ')
  return { name, status: first.status, error: { code: first.code, message: redactText(message) } }
}

/** A finding as a check of the health shows it; nothing, where another one does. */
function problemOf(finding: Finding, name: HealthName): readonly Problem[] {
  const { code, isUrgent } = finding
  const [check, status] = shownOf(code).health ?? []
  if (check !== name || !status) return []
  return [{ status: isUrgent ? 'error' : status, code, message: withRemedy({ code, message: wordsOf(finding) }) }]
}

const withRemedy = ({ code, message }: Readonly<{ code: string; message: string }>): string =>
  isErrorCode(code) ? `${message}${message.endsWith(';') ? '' : '.'} ${ERRORS[code].remedy}` : message

function reachability({ connection: { withoutTls } }: Database, { error, state, slotError }: SourceCondition): readonly Problem[] {
  const stopped = state === 'waiting' || state === 'failed' ? error : undefined
  const unreached = [stopped, slotError].find((one) => one && UNREACHED.has(one.code))
  return [
    ...(unreached ? [{ status: 'error', code: unreached.code, message: withRemedy(unreached) } as const] : []),
    ...(withoutTls
      ? [
          {
            status: 'notice',
            code: 'without_tls',
            message: 'the connection is not encrypted: ssl is not set, and the server offers no TLS. Switch TLS on there and set ssl: true, or set ssl: false if the way to it is safe', // prettier-ignore
          } as const,
        ]
      : []),
  ]
}

function connection({ state, error }: SourceCondition): readonly Problem[] {
  if (!error || (state !== 'waiting' && state !== 'failed')) return []
  const status = state === 'waiting' && error.course === 'soon' ? 'warning' : 'error'
  return [{ status, code: error.code, message: withRemedy(error) }]
}

function heartbeat({ state, sinceMs, heartbeatMs }: SourceCondition): readonly Problem[] {
  const late = heartbeatMs ?? sinceMs
  if (state !== 'streaming' || late <= HEARTBEAT_LATE_MS) return []
  const message = `the last heartbeat that came back is ${durationText(late / 1000)} old: the source is behind, or its heartbeats can't be written. GET /info shows what it waits for`
  return [{ status: 'warning', code: 'heartbeat_late', message }]
}
