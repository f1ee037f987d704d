/**
 * Settles and saves what has to be known before a run may stream: whether the slot continues where the last run ended, which
 * incarnation the server is, where routing versions take effect, and the topics they name. Runs on facts of the
 * replication connection, before START_REPLICATION.
 */
import { atOnce } from '../at-once.ts'
import { EngineError, isRetryable } from '../errors.ts'
import { eachPartition, type Log, type Reached, readerOf, type TopicName, type Topic } from '../log/log.ts'
import { formatLsn, type Lsn } from '../lsn.ts'
import { PART, type Position } from '../position.ts'
import type { Database, RoutingVersion } from '../state/resources.ts'
import {
  acceptRemedy,
  decideStart,
  historyAt,
  type Incarnation,
  Landmark,
  type Start,
  type System,
  type TransactionName,
  wentBack,
} from './history.ts'
import type { RelationAt } from './decode/known-relations.ts'
import { ownTopic } from './routing/routing.ts'
import type { LeavingTopic } from './routing/routing-state.ts'
import type { FitSlot } from './connection/slot.ts'
import type { SourceObserver } from './source-settings.ts'
import type { PlacedVersion } from './routing/stored-versions.ts'
import type { SavedSource, SourceOrigin, SourceStore, TopicEnd } from './source-store.ts'
import { Pack } from '../log/pack.ts'

/** Says from where a run goes on. */
export type RunStart = Readonly<{
  /** oldest first, those that begin here included; saved */
  incarnations: readonly Incarnation[]
  versions: readonly PlacedVersion[]
  /** topics of generations that have ended, and whose markers may never have been appended */
  undrained: readonly LeavingTopic[]
  /** what is known of the tables, oldest first */
  relations: readonly RelationAt[]
  /** how far the log has everything */
  durable: Reached | undefined
  /** of the last transaction that the log has */
  landmark: Landmark
  /** everything below is confirmed or given up; saved */
  confirmed: Lsn
}>
type Facts = Readonly<{
  database: Database
  log: Log
  store: SourceStore
  saved: SavedSource
  slot: FitSlot
  observer: SourceObserver
  system: System
}>

/**
 * Settles from where a run goes on, and saves what has to be saved before. @throws EngineError SLOT_GAP, SOURCE_WENT_BACK,
 * STATE_WENT_BACK, SOURCE_FENCED, STATE_UNAVAILABLE
 */
export async function prepareRun(facts: Facts): Promise<RunStart> {
  const { database, log, store, saved, slot, observer, system } = facts
  await log.beginRun(database.id)
  const reached = await log.progress(database.id)
  const isFirst = (await store.routingVersions()).every(isUnplaced)
  const durable = isFirst ? undefined : reached
  const { databaseOid, publicationOid } = slot
  const origin = { slotName: database.slot.name, databaseOid, publicationOid }
  const known = log.remembered(database.id)
  const former = saved.incarnations.at(-1)?.history ?? 0
  const start = decideStart({
    database: database.name,
    slot: database.slot.name,
    saved: saved.confirmed,
    slotConfirmed: slot.confirmedLsn,
    known: saved.incarnations,
    system,
    // what the state has forgotten in a failover of its own, the log may know: it was saved before it was confirmed
    logConfirmed: known?.history === former ? known.confirmed : undefined,
    durableLsn: durable?.position.history === former ? durable.position.lsn : undefined,
    isElsewhere: saved.origin !== undefined && isElsewhere(saved.origin, origin),
    acceptedGap: saved.acceptedGap,
  })
  if (saved.confirmed !== undefined && known?.history === former && known.confirmed > saved.confirmed)
    facts.observer.notice?.(
      `the state database went back: it had LSN ${formatLsn(known.confirmed)} as confirmed, and has LSN ${formatLsn(saved.confirmed)} now. The log has all changes. Messages that were parked or discarded in between may be missing, and so may edits`,
    )
  if (saved.confirmed === undefined && slot.transactionsRead > 0)
    observer.notice?.(
      `slot "${database.slot.name}" has been read before, and this state database does not know of that: changes that were received then and not delivered are missing. To get them, touch their rows by an UPDATE`,
    )
  const incarnations = [...saved.incarnations, ...start.added]
  const current = incarnations.at(-1)?.history ?? 0
  if (reached && reached.position.history > current) throw stateBehind(database.name, reached.position, current)
  // only now that it has shown nothing, and until a version has its place: what is read and never appended would be lost
  if (isFirst) await log.forgetProgress(database.id)
  // what is told of the change comes first: once the start is saved, no run finds it again
  const phantoms = await countPhantoms(facts, start, former)
  const wasPublished = start.gapAccepted ? undefined : saved.origin?.publicationOid
  if (wasPublished !== undefined && wasPublished !== publicationOid) observer.republished?.(true)
  await store.saveStart(start, origin, { identity: log.identity, appends: log.appendCount(database.id) }, phantoms)
  if (start.phantomsFrom !== undefined) observer.phantoms?.(start.phantomsFrom, phantoms)
  const history = historyAt(incarnations, start.confirmed)
  await log.remember(database.id, { term: store.term, history, confirmed: start.confirmed })
  await store.pruneRelationKeys({ history, lsn: start.confirmed, idx: 0, part: PART.row })
  const versions = await placeVersions(facts, start, history)
  const undrained = await store.undrained()
  await store.makeTopics(log, undrained) // with a lost log they are gone
  const landmark = new Landmark(comesAgain(durable, incarnations, start.confirmed), (found) =>
    wentBack({ database: database.name, slot: database.slot.name, slotConfirmed: slot.confirmedLsn }, found),
  )
  return { incarnations, versions, undrained, relations: await store.relations(), durable, landmark, confirmed: start.confirmed }
}

/** Another slot of one database goes on where the former one was; of which database that was, an older version didn't save. */
function isElsewhere(saved: SourceOrigin, now: SourceOrigin): boolean {
  return saved.databaseOid === undefined ? saved.slotName !== now.slotName : saved.databaseOid !== now.databaseOid
}

/** @returns the log's last transaction, if a slot at `confirmed` sends it again and it is of this server's past */
function comesAgain(durable: Reached | undefined, incarnations: readonly Incarnation[], confirmed: Lsn): TransactionName | undefined {
  if (!durable?.transaction) return undefined
  const { history, lsn } = durable.position
  return lsn >= confirmed && historyAt(incarnations, lsn) === history ? { lsn, ...durable.transaction } : undefined
}

/** Lists the topics of the streams that a version names. */
export const topicsOf = ({ streams }: Pick<RoutingVersion, 'streams'>) => streams.map(({ topic, partitions }) => ({ topic, partitions }))

/** Reads where the partitions of topics end now: whoever begins to read them needs nothing before. */
export function endsOf(log: Log, topics: readonly Topic[]): Promise<readonly TopicEnd[]> {
  return atOnce(ASKED_AT_ONCE, eachPartition(topics), async ({ topic, partition }) => ({
    topic,
    partition,
    next: (await log.stats(topic, partition)).next,
  }))
}

/**
 * Makes the topics of a version that is to take effect, and says in the log who begins to read them with it.
 * @returns where the topics end that somebody begins to read
 */
export async function beginTopics(
  store: Pick<SourceStore, 'makeTopics'>,
  log: Log,
  { from, to, position }: Readonly<{ from: RoutingVersion; to: RoutingVersion; position: Position }>,
): Promise<readonly TopicEnd[]> {
  const topics = topicsOf(to)
  await store.makeTopics(log, topics)
  const known = new Set(from.readers.map(ownTopic))
  const readers = to.readers.filter((reader) => !known.has(ownTopic(reader)))
  const joined = new Set(readers.map(({ topic }) => topic))
  const ends = await endsOf(
    log,
    topics.filter(({ topic }) => joined.has(topic)),
  )
  await joinReaders(log, { ...to, readers }, position, ends)
  return ends
}

/**
 * Says in the log who will read from a position on, before the state database has it: should that be put back to an older copy,
 * the log knows whose the topics are.
 * @param ends of the topics; 0 for partitions that are not named
 */
export async function joinReaders(
  log: Log,
  { streams, readers }: Pick<RoutingVersion, 'streams' | 'readers'>,
  position: Position,
  ends: readonly TopicEnd[],
): Promise<void> {
  const partitions = new Map(streams.map((stream) => [stream.topic, stream.partitions]))
  const next = new Map(ends.map((end) => [`${end.topic}/${end.partition}`, end.next]))
  const all = eachPartition(
    readers.map((reader) => ({ topic: reader.topic, name: ownTopic(reader), partitions: partitions.get(reader.topic) ?? 0 })),
  )
  await atOnce(JOINED_AT_ONCE, all, ({ topic, name, partition }) => {
    const begin = { offset: next.get(`${topic}/${partition}`) ?? 0, index: 0 }
    return log.join(readerOf(topic, name), partition, { next: begin, accepted: position, finished: [], handedOut: begin, term: 0 })
  })
}

/** Written side by side, so that a log on disk has them in few flushes. */
const JOINED_AT_ONCE = 256
/** Partitions that are asked side by side. */
export const ASKED_AT_ONCE = 16

const isUnplaced = ({ position }: PlacedVersion): boolean => position === undefined

/** Gives the first version its place, if none has one, and makes the topics of those that may be met. */
async function placeVersions({ store, log }: Facts, { confirmed }: Start, history: number): Promise<readonly PlacedVersion[]> {
  let versions = await store.routingVersions()
  if (versions.every(isUnplaced)) {
    const first = versions[0]?.routing
    // ahead of the first message of the first transaction, which may begin right at the confirmed position
    const position: Position = { history, lsn: confirmed, idx: -1, part: PART.row }
    if (first === undefined) await store.addEmptyVersion(position)
    else {
      await store.makeTopics(log, topicsOf(first))
      await joinReaders(log, first, position, [])
      await store.placeVersion(first.version, position, [])
    }
    versions = await store.routingVersions()
  }
  const placed = versions.filter((version) => version.position !== undefined)
  const below = placed.findLastIndex(({ position }) => position !== undefined && position.lsn <= confirmed)
  await store.makeTopics(
    log,
    placed.slice(Math.max(below, 0)).flatMap(({ routing }) => topicsOf(routing)),
  )
  return versions
}

/**
 * What was received above a timeline switch never happened for the new primary: counted, and told (docs/rules.md, rule 2).
 * @returns how many messages it is; 0 where the log can't be read there, which is no reason not to start
 */
async function countPhantoms({ store, log, observer }: Facts, { phantomsFrom, added }: Start, former: number): Promise<number> {
  const first = added[0]
  if (phantomsFrom === undefined || !first) return 0
  const topics = new Set((await store.routingVersions()).flatMap(({ routing }) => routing.streams.map(({ topic }) => topic)))
  let messages = 0
  let many: string
  try {
    messages = await countMessagesFrom(log, topics, { history: former, lsn: phantomsFrom, idx: -1, part: PART.row })
    many = `${messages} messages`
  } catch (error) {
    if (!(error instanceof EngineError) || isRetryable(error)) throw error
    many = `messages (they could not be counted: ${error.message})`
  }
  const at = formatLsn(phantomsFrom)
  observer.notice?.(
    `${many} received from LSN ${at} on are unknown to the server that is the primary now (history ${first.history}). To send its rows as they are, touch them by an UPDATE`,
  )
  return messages
}

/** The log knows a later incarnation than the state database. */
const stateBehind = (database: string, durable: Position, current: number): EngineError =>
  new EngineError(
    'STATE_WENT_BACK',
    `the state database is an older copy: the log has changes of history ${durable.history}, and the state database knows histories up to ${current}. Put the newer state database back. If it is lost, ${acceptRemedy(database)}`,
    { logHistory: durable.history, stateHistory: current },
  )

/** @returns messages of `from.history` at or above `from`, as far as the topics still keep them */
async function countMessagesFrom(log: Log, named: ReadonlySet<TopicName>, from: Position): Promise<number> {
  let messages = 0
  for (const { topic, partition } of eachPartition(await log.topics()))
    if (named.has(topic)) messages += await countIn(log, topic, partition, from)
  return messages
}

async function countIn(log: Log, topic: TopicName, partition: number, from: Position): Promise<number> {
  const { next } = await log.stats(topic, partition)
  const offset = await log.offsetFor(topic, partition, { position: from })
  if (offset >= next) return 0
  let messages = 0
  for await (const record of log.read(topic, partition, offset, NEVER, next)) {
    const pack = Pack.decode(record.pack)
    for (let i = 0; i < pack.count; i++) if (pack.header.history === from.history && pack.compare(i, from) > 0) messages++
  }
  return messages
}

const NEVER = new AbortController().signal
