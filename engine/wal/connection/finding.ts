/**
 * Everything that can be wrong with a database that is read, its publication and its slot: one list. Whoever finds something gives it a code of
 * this list. The list says where it is shown, and how bad it is there: among the checks of `tailrace doctor`, which look at what is set up, and
 * in the health of a source that runs.
 */
import { ERRORS, isErrorCode, type ErrorCode } from '../../errors.ts'

/** The checks of a database by `tailrace doctor`, by name. */
export type CheckName =
  | 'Pooler'
  | 'Version'
  | 'wal_level'
  | 'Standby'
  | 'Clock'
  | 'max_replication_slots'
  | 'max_wal_senders'
  | 'Right to replicate'
  | 'Publication'
  | 'Publication actions'
  | 'Partitions'
  | 'Replica identity'
  | 'Right to read'
  | 'Row security'
  | 'Slot'
  | 'Failover'
  | 'Retained log'
  | 'Spilled transactions'
  | 'Open transactions'

/** The checks in the health of a database that show findings. */
export type HealthName = 'Database reachability' | 'Replication slot configuration' | 'Replication slot messages'

/** @property doctor absent: it is not told there @property health absent: a source that runs says it better, or nothing comes of it */
type Shown = Readonly<{
  doctor?: readonly [check: CheckName, status: 'warning' | 'error']
  health?: readonly [check: HealthName, status: 'notice' | 'warning' | 'error']
}>

const REACHABILITY = 'Database reachability'
const CONFIGURATION = 'Replication slot configuration'
const MESSAGES = 'Replication slot messages'

const FINDINGS = {
  pooled: { doctor: ['Pooler', 'warning'], health: [REACHABILITY, 'warning'] },
  // the server
  server_too_old: { doctor: ['Version', 'error'] },
  WAL_LEVEL_TOO_LOW: { doctor: ['wal_level', 'error'], health: [CONFIGURATION, 'error'] },
  standby: { doctor: ['Standby', 'warning'] },
  clock_apart: { doctor: ['Clock', 'warning'] },
  no_free_slot: { doctor: ['max_replication_slots', 'error'] },
  no_free_sender: { doctor: ['max_wal_senders', 'error'] },
  no_replication_right: { doctor: ['Right to replicate', 'error'] },
  // the publication and its tables
  PUBLICATION_MISSING: { doctor: ['Publication', 'error'], health: [CONFIGURATION, 'error'] },
  nothing_published: { doctor: ['Publication', 'warning'], health: [CONFIGURATION, 'notice'] },
  actions_left_out: { doctor: ['Publication actions', 'warning'] },
  partition_root_not_published: { doctor: ['Partitions', 'warning'], health: [CONFIGURATION, 'notice'] },
  no_replica_identity: { doctor: ['Replica identity', 'error'], health: [CONFIGURATION, 'warning'] },
  replica_identity_not_full: { health: [CONFIGURATION, 'notice'] },
  no_select: { doctor: ['Right to read', 'error'], health: [CONFIGURATION, 'notice'] },
  row_level_security: { doctor: ['Row security', 'warning'], health: [CONFIGURATION, 'notice'] },
  // the slot
  SOURCE_IN_RECOVERY: { doctor: ['Slot', 'error'], health: [CONFIGURATION, 'error'] },
  SLOT_MISSING: { doctor: ['Slot', 'error'], health: [CONFIGURATION, 'error'] },
  SLOT_WRONG_PLUGIN: { doctor: ['Slot', 'error'], health: [CONFIGURATION, 'error'] },
  SLOT_WRONG_DATABASE: { doctor: ['Slot', 'error'], health: [CONFIGURATION, 'error'] },
  SLOT_LOST: { doctor: ['Slot', 'error'], health: [CONFIGURATION, 'error'] },
  SLOT_TWO_PHASE: { doctor: ['Slot', 'error'], health: [CONFIGURATION, 'error'] },
  SLOT_IN_USE: { doctor: ['Slot', 'warning'], health: [CONFIGURATION, 'error'] },
  slot_not_read: { doctor: ['Slot', 'warning'] },
  no_failover_slot: { doctor: ['Failover', 'warning'], health: [CONFIGURATION, 'notice'] },
  // what the slot costs its server
  slot_about_to_be_lost: { doctor: ['Retained log', 'error'], health: [MESSAGES, 'error'] },
  slot_near_its_end: { doctor: ['Retained log', 'error'], health: [MESSAGES, 'warning'] },
  slot_behind: { doctor: ['Retained log', 'warning'], health: [MESSAGES, 'warning'] },
  old_transaction: { doctor: ['Open transactions', 'warning'], health: [MESSAGES, 'warning'] },
  decoding_spills: { doctor: ['Spilled transactions', 'warning'], health: [MESSAGES, 'notice'] },
} as const satisfies Readonly<Record<string, Shown>>

/** The codes of all that can be found; those in capitals also stop a source, as errors. */
export type FindingCode = keyof typeof FINDINGS

/**
 * Something that was found. @property message what is wrong, and what comes of it @property sql mends it; without a semicolon at its end
 * @property how when or where to run it, or what would do as well, such as "as a superuser" @property remedy what to do, in words
 * @property isUrgent it is an error also where others of its code are not
 */
export type Finding = Readonly<{
  code: FindingCode
  message: string
  sql?: string
  how?: string
  remedy?: string
  isUrgent?: boolean
}>

/** Says where a finding is shown, and how bad it is there. */
export const shownOf = (code: FindingCode): Shown => FINDINGS[code]

/** Puts a finding into a sentence or two: what is wrong, what to do, and the SQL. */
export function wordsOf({ message, sql, how, remedy }: Finding): string {
  const runs = sql === undefined ? undefined : `Run${how === undefined ? '' : `, ${how}`}: ${sql};`
  return [message, remedy, runs].filter((part) => part !== undefined).join('. ')
}

/** Says what mends a finding: the SQL, as it can be run, or words. */
export function remedyOf({ code, sql, how, remedy }: Finding): string {
  if (sql !== undefined) return `${sql};${how === undefined ? '' : ` -- ${how}`}`
  return remedy ?? (isErrorCode(code) ? ERRORS[code].remedy : '')
}

/** The codes of findings that keep a source from starting. */
export type FaultCode = FindingCode & ErrorCode
