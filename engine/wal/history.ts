/**
 * Decides which incarnation of the source a position belongs to, and whether a run may go on where the last one ended
 * (docs/rules.md, rules 2 and 7). LSNs are reused after a failover or a restore, so each timeline switch and each other system
 * identifier begins a new `history`: what commits below the switch keeps its number, what commits above gets the next.
 * Everything here is decided from facts that others read; nothing does I/O.
 */
import { EngineError } from '../errors.ts'
import { formatLsn, type Lsn, parseLsn } from '../lsn.ts'

/** Describes one life of a source: from an LSN on its server has this identifier and timeline. */
export type Incarnation = Readonly<{
  history: number
  systemIdentifier: string
  timeline: number
  /** LSN from which transactions belong to it */
  beginsAt: Lsn
}>

/** Says who the server is, as IDENTIFY_SYSTEM and TIMELINE_HISTORY tell it. */
export type System = Readonly<{
  systemIdentifier: string
  timeline: number
  /** end of the log as flushed */
  flushedLsn: Lsn
  /** the timelines this one descends from, oldest first, each with the LSN where it was left */
  ancestors: readonly Readonly<{ timeline: number; endsAt: Lsn }>[]
}>

/** `forkedAt`: where the server's past leaves the one we know; `foreign`: the two have nothing in common that we know of. */
type Succession = Readonly<{ added: readonly Incarnation[]; forkedAt: Lsn | undefined; foreign: boolean }>

const FIRST: Lsn = 0n

/** Finds the history of a transaction that committed at `lsn`. @param incarnations oldest first */
export function historyAt(incarnations: readonly Incarnation[], lsn: Lsn): number {
  const [first] = incarnations
  return (incarnations.findLast(({ beginsAt }) => lsn >= beginsAt) ?? first)?.history ?? 0
}

/** Finds how the server's past continues the one we know. @param known oldest first */
export function succession(known: readonly Incarnation[], system: System): Succession {
  const newest = known.at(-1)
  const { systemIdentifier, timeline } = system
  if (!newest) return { added: [{ history: 0, systemIdentifier, timeline, beginsAt: FIRST }], forkedAt: undefined, foreign: false }
  if (newest.systemIdentifier !== systemIdentifier) {
    return { added: [{ history: newest.history + 1, systemIdentifier, timeline, beginsAt: FIRST }], forkedAt: FIRST, foreign: true }
  }
  if (newest.timeline === timeline) return { added: [], forkedAt: undefined, foreign: false }

  // the server's past as segments of timelines; the last one is still open
  const segments: readonly Readonly<{ timeline: number; endsAt: Lsn | undefined }>[] = [
    ...system.ancestors,
    { timeline, endsAt: undefined },
  ]
  let ourEnd: Lsn | undefined
  for (const ours of known.toReversed()) {
    if (ours.systemIdentifier !== systemIdentifier) break
    const shared = segments.findIndex((segment) => segment.timeline === ours.timeline)
    if (shared < 0) {
      ourEnd = lower(ourEnd, ours.beginsAt)
      continue
    }
    const theirEnd = segments[shared]?.endsAt
    const fork = lower(ourEnd, theirEnd)
    if (fork === undefined)
      throw new EngineError(
        'INTERNAL',
        'the timelines of the server and of the state database have the same number, and neither has an end',
      ) // else they would be the same
    const added: Incarnation[] = []
    let from = fork
    for (const segment of segments.slice(shared)) {
      const isOpen = segment.endsAt === undefined || segment.endsAt > from
      if (isOpen) added.push({ history: newest.history + added.length + 1, systemIdentifier, timeline: segment.timeline, beginsAt: from })
      if (segment.endsAt !== undefined && segment.endsAt > from) from = segment.endsAt
    }
    return { added, forkedAt: fork, foreign: false }
  }
  return { added: [{ history: newest.history + 1, systemIdentifier, timeline, beginsAt: FIRST }], forkedAt: FIRST, foreign: true }
}

function lower(a: Lsn, b: Lsn | undefined): Lsn
function lower(a: Lsn | undefined, b: Lsn | undefined): Lsn | undefined
function lower(a: Lsn | undefined, b: Lsn | undefined): Lsn | undefined {
  return a === undefined || (b !== undefined && b < a) ? b : a
}

/** Holds what is known when a run is about to start. */
export type StartFacts = Readonly<{
  /** name of the database, for the remedy */
  database: string
  slot: string
  /** what was confirmed as saved; undefined before the first run */
  saved: Lsn | undefined
  /** confirmed_flush_lsn of the slot */
  slotConfirmed: Lsn
  known: readonly Incarnation[]
  system: System
  /** what had been confirmed by what the log remembers, in the newest known history */
  logConfirmed?: Lsn | undefined
  /** greatest LSN that the log holds of the newest known history */
  durableLsn: Lsn | undefined
  /** the slot is of another database than what was read before, or may be */
  isElsewhere: boolean
  /** the slot position up to which a user accepted a gap */
  acceptedGap: Lsn | undefined
}>

/** Says how a run starts. */
export type Start = Readonly<{
  /** everything below is confirmed or given up */
  confirmed: Lsn
  /** incarnations to save before the first append */
  added: readonly Incarnation[]
  gapAccepted: boolean
  /** what was received of the former history from here on never happened for this server */
  phantomsFrom: Lsn | undefined
}>

/**
 * Decides whether the slot continues where the last run ended.
 * @throws EngineError SLOT_GAP: changes between the saved and the slot's position are out of reach, or the slot is of another
 *   database;
 *   SOURCE_WENT_BACK: the server's log ends below what it had sent, and no timeline switch explains it; one that was written
 *   past that end shows by its landmark (below)
 */
export function decideStart(facts: StartFacts): Start {
  const { slotConfirmed, known, system, logConfirmed = FIRST } = facts
  const { added, forkedAt, foreign } = succession(known, system)
  const isAccepted = facts.acceptedGap === slotConfirmed
  if (facts.saved === undefined) return { confirmed: slotConfirmed, added, gapAccepted: false, phantomsFrom: undefined }
  const saved = logConfirmed > facts.saved ? logConfirmed : facts.saved

  if (facts.isElsewhere && !foreign) {
    if (!isAccepted) throw elsewhere(facts, saved)
    const next = nextOf([...known, ...added], slotConfirmed)
    return { confirmed: slotConfirmed, added: [...added, ...next], gapAccepted: true, phantomsFrom: undefined }
  }
  const seen = facts.durableLsn !== undefined && facts.durableLsn > saved ? facts.durableLsn : saved
  const phantomsFrom = forkedAt !== undefined && !foreign && forkedAt < seen ? forkedAt : undefined
  if (foreign || forkedAt !== undefined) {
    const limit = foreign ? undefined : lower(saved, forkedAt)
    if ((limit === undefined || slotConfirmed > limit) && !isAccepted) throw gap(facts, facts.saved, limit)
    return { confirmed: slotConfirmed, added, gapAccepted: isAccepted, phantomsFrom }
  }
  // accepted below what was saved: no gap is there, the run before has found another past
  if (system.flushedLsn < seen || (isAccepted && slotConfirmed <= saved)) {
    if (!isAccepted)
      throw wentBack(
        facts,
        `its write-ahead log ends at LSN ${formatLsn(system.flushedLsn)}, and it had sent changes up to LSN ${formatLsn(seen)}`,
      )
    return { confirmed: slotConfirmed, added: nextOf(known, slotConfirmed), gapAccepted: true, phantomsFrom: slotConfirmed }
  }
  if (slotConfirmed > saved && !isAccepted) throw gap(facts, saved, saved)
  // a slot below what was saved forgot it in a crash: what comes again is known to the log, and confirmed as it comes
  return { confirmed: slotConfirmed, added, gapAccepted: slotConfirmed > saved, phantomsFrom: undefined }
}

/** The newest incarnation begins another time, at `beginsAt`. */
const nextOf = (known: readonly Incarnation[], beginsAt: Lsn): readonly Incarnation[] =>
  known.slice(-1).map((newest) => ({ ...newest, history: newest.history + 1, beginsAt }))

/** Gives the command by which a user accepts that changes are missing; the source starts again by it. */
export const acceptRemedy = (database: string): string =>
  `accept that changes are missing: npx tailrace source accept-gap ${database} (or POST /api/postgres_databases/${database}/accept_gap); then touch the rows of its tables by an UPDATE`

/** @param limit what is durable of this server; undefined: it is another one */
function gap(facts: StartFacts, saved: Lsn, limit: Lsn | undefined): EngineError {
  const slotAt = formatLsn(facts.slotConfirmed)
  const savedAt = formatLsn(limit ?? saved)
  const why =
    limit === undefined
      ? `this is another server (system identifier ${facts.system.systemIdentifier}, timeline ${facts.system.timeline}); of the former server, changes up to LSN ${savedAt} are durable`
      : `changes up to LSN ${savedAt} are durable, and the slot has lost those from there to LSN ${slotAt}`
  return new EngineError('SLOT_GAP', `slot "${facts.slot}" is at LSN ${slotAt}: ${why}. To go on, ${acceptRemedy(facts.database)}`, {
    slot: facts.slot,
    saved: savedAt,
    slotConfirmed: slotAt,
  })
}

function elsewhere(facts: StartFacts, saved: Lsn): EngineError {
  const slotAt = formatLsn(facts.slotConfirmed)
  return new EngineError(
    'SLOT_GAP',
    `slot "${facts.slot}" is at LSN ${slotAt} and belongs to another database than the one that was read until now, up to LSN ${formatLsn(saved)}: ` +
      `later changes of the former database would be missing. Point the source back to the former database. Or, to go on with this one from the position of its slot, ${acceptRemedy(facts.database)}`,
    { slot: facts.slot, saved: formatLsn(saved), slotConfirmed: slotAt },
  )
}

/** The server has another past than the one that was received. @param why what shows it */
export function wentBack(facts: Pick<StartFacts, 'database' | 'slot' | 'slotConfirmed'>, why: string): EngineError {
  return new EngineError(
    'SOURCE_WENT_BACK',
    `the server lacks transactions that were received from it: ${why}. To go on with a new history, ${acceptRemedy(facts.database)}`,
    { slot: facts.slot, slotConfirmed: formatLsn(facts.slotConfirmed) },
  )
}

/** Reads a timeline history file, a line for each: parent timeline, LSN of the switch, reason; comments begin with "#". */
export function parseTimelineHistory(content: string): System['ancestors'] {
  const ancestors: { timeline: number; endsAt: Lsn }[] = []
  for (const line of content.split('\n')) {
    const [, timeline, lsn] = /^\s*(\d+)\s+([0-9A-Fa-f]+\/[0-9A-Fa-f]+)/.exec(line) ?? []
    if (timeline && lsn) ancestors.push({ timeline: Number(timeline), endsAt: parseLsn(lsn) })
  }
  return ancestors
}

/** Asks the server who it is. @param query on a replication connection, before START_REPLICATION */
export async function identifySystem(query: (sql: string) => Promise<readonly Readonly<Record<string, unknown>>[]>): Promise<System> {
  const row = (await query('IDENTIFY_SYSTEM'))[0] ?? {}
  const timeline = Number(row.timeline)
  const history = timeline > 1 ? (await query(`TIMELINE_HISTORY ${timeline}`))[0] : undefined // timeline 1 has no past
  return {
    systemIdentifier: String(row.systemid),
    timeline,
    flushedLsn: parseLsn(String(row.xlogpos)),
    ancestors: history ? parseTimelineHistory(String(history.content)) : [],
  }
}

/** Names a transaction as its Begin does. */
export type TransactionName = Readonly<{ lsn: Lsn; xid: number; commitTimeUs: number }>

/**
 * Finds out whether the server's past is the one that the log knows. A slot that stands below the log's last transaction sends that
 * transaction again: its commit must come at the same LSN, with the same xid and commit time. A server that was put back
 * to an earlier state and written to since has another one there, or none (docs/rules.md, rule 37).
 *
 *  L1. Until it came nothing is appended, because it all stands below, and nothing is confirmed: a past that turns out to
 *      be another one is still whole in the slot.
 */
export class Landmark {
  readonly #expected: TransactionName | undefined
  readonly #otherPast: (found: string) => EngineError
  #isAhead: boolean

  /**
   * @param expected undefined: the slot stands above all that the log has, or what the log has is not known by name
   * @param otherPast makes the error of what was found instead
   */
  constructor(expected: TransactionName | undefined, otherPast: (found: string) => EngineError) {
    this.#expected = expected
    this.#otherPast = otherPast
    this.#isAhead = expected !== undefined
  }

  /** The transaction has yet to come. */
  get isAhead(): boolean {
    return this.#isAhead
  }

  /** A transaction begins. @throws EngineError that of `otherPast` */
  begin({ lsn, xid, commitTimeUs }: TransactionName): void {
    const expected = this.#expected
    if (!this.#isAhead || !expected || lsn < expected.lsn) return
    if (lsn > expected.lsn) throw this.#missed(expected)
    if (xid !== expected.xid || commitTimeUs !== expected.commitTimeUs)
      throw this.#otherPast(`LSN ${formatLsn(lsn)} has transaction ${named({ xid, commitTimeUs })}, and had transaction ${named(expected)}`)
    this.#isAhead = false
  }

  /** Everything that committed below `lsn` has been sent. @throws EngineError that of `otherPast` */
  pass(lsn: Lsn): void {
    if (this.#isAhead && this.#expected && lsn > this.#expected.lsn) throw this.#missed(this.#expected)
  }

  #missed(expected: TransactionName): EngineError {
    return this.#otherPast(`LSN ${formatLsn(expected.lsn)} has no transaction ${named(expected)} any more`)
  }
}

const named = ({ xid, commitTimeUs }: Omit<TransactionName, 'lsn'>): string => `${xid} of ${new Date(commitTimeUs / 1000).toISOString()}`
