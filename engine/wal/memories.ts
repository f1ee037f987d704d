/**
 * Log and state database each keep a little of the other, compared before a source streams and before a partition of its
 * sinks is read (docs/rules.md, rule 37). The state knows which log it was and how often it was appended to; the log knows the terms
 * of its writers, which the state gave them, and what the state had confirmed. Where they don't fit, one of the two is
 * another one or an older copy: what is undelivered may be missing, and names may mean other messages.
 */
import { atOnce } from '../at-once.ts'
import { EngineError } from '../errors.ts'
import { formatLsn } from '../lsn.ts'
import { ask } from '../state/asking.ts'
import { BEGIN_ANEW, UNENDED } from '../state/backfills.ts'
import type { Query } from '../postgres/query.ts'
import { rowsOf } from '../postgres/rows.ts'
import { acceptRemedy } from './history.ts'
import { ownerOf } from './routing/routing.ts'
import { NEW_TOPIC } from './routing/stored-versions.ts'
import { ASKED_AT_ONCE, endsOf } from './run-start.ts'
import type { TopicEnd } from './source-store.ts'
import {
  eachPartition,
  generationRead,
  isCopy,
  readerOf,
  topicRead,
  type Commit,
  type Log,
  type ReaderName,
  type TopicName,
  type TopicPartition,
} from '../log/log.ts'

/** Holds what a state database keeps of a log. @property appends of the source, when it was last confirmed */
export type RememberedLog = Readonly<{ identity: string; appends: number }>

type Read = Readonly<{ reader: ReaderName; partition: number }>
type SourceMemory = Readonly<{ database: string; name: string; term: number; log: RememberedLog }>

/**
 * Refuses to stream where log and state don't fit, before its term is raised. @throws EngineError LOG_CHANGED, LOG_WENT_BACK,
 * STATE_WENT_BACK
 */
export async function mustFitSource(query: Query, log: Log, databaseId: string): Promise<void> {
  const source = await savedSource(query, 's.database_id = $1::uuid', databaseId)
  if (!source) return
  await mustFit(query, log, source)
  await mustHaveCopies(query, log, source)
  const written = await writtenTerms(log, await knownReaders(query, databaseId))
  const rows = await ask(query, `select key, term, parked from tailrace.term where kind = 'partition' and key = any ($1)`, [
    written.map(({ key }) => key),
  ])
  const known = new Map(rowsOf({ key: 'text', term: 'int', parked: 'int' }, rows).map((row) => [row.key, row]))
  for (const each of written) await mustKnow(query, log, source, each, known.get(each.key) ?? NOTHING_WRITTEN)
  const { readers } = await forgottenBy(query, log, databaseId)
  const [forgotten] = readers
  if (forgotten)
    throw await stateWentBack(query, log, source, `${forgotten.reader} has read from the log, and the state database does not know it`)
}

/** Refuses to read a partition where log and state don't fit, before its term is raised. @throws EngineError as mustFitSource */
export async function mustFitPartition(
  query: Query,
  log: Log,
  { sinkId, reader, partition }: Readonly<{ sinkId: string; reader: ReaderName; partition: number }>,
): Promise<void> {
  const committed = await log.committed(reader, partition) // first: a term is raised before it is written with
  const key = `${generationRead(reader)}/${partition}`
  const source = await savedSource(query, 's.database_id = (select database_id from tailrace.sink where id = $1::uuid)', sinkId, key)
  if (!source) return
  await mustFit(query, log, source, { topic: topicRead(reader), partition })
  if (committed) await mustKnow(query, log, source, writtenBy(key, committed), source.partition)
  const topic = topicRead(reader)
  if (isCopy(topic)) await mustHaveCopies(query, log, source, { topic, partition })
}

/** Copies are counted by no append: the state knows where each ended. @param only this partition, else all of the source's */
async function mustHaveCopies(query: Query, log: Log, { database, name }: SourceMemory, only?: TopicPartition): Promise<void> {
  const rows = await ask(
    query,
    `select g.sink_id || '.' || g.generation as name, g.topic, l.partition, l.copied_to as "copiedTo"
     from tailrace.reader_line l join tailrace.generation g on g.sink_id = l.sink_id and g.generation = l.generation
     join tailrace.sink s on s.id = g.sink_id
     where s.database_id = $1 and l.copied_to is not null and (g.dropped_at is null or g.drained_at is null)
       and ($2::text is null or (g.topic = $2 and l.partition = $3))`,
    [database, only?.topic ?? null, only?.partition ?? null],
  )
  const copies = rowsOf({ name: 'text', topic: 'text', partition: 'int', copiedTo: 'int' }, rows)
  if (copies.length === 0) return
  const topics = new Set((await log.topics()).map(({ topic }) => topic))
  for (const { name: reader, topic, partition, copiedTo } of copies) {
    const next = topics.has(topic) ? (await log.stats(readerOf(topic, reader), partition)).next : 0
    if (next < copiedTo)
      throw logWentBack(name, `partition ${partition} of topic ${topic} ends at offset ${next}, and ended at offset ${copiedTo} before`)
  }
}

/** The last term that an owner of a partition got from the state database. @property parked how often owners had parked messages there */
type Owned = Readonly<{ term: number; parked: number }>
type Written = Owned & Readonly<{ key: string }>
const NOTHING_WRITTEN: Owned = { term: 0, parked: 0 }

const writtenBy = (key: string, { term, parked = 0 }: Commit): Written => ({ key, term, parked })

async function mustKnow(query: Query, log: Log, source: SourceMemory, { key, term, parked }: Written, known: Owned): Promise<void> {
  if (term > known.term)
    throw await stateWentBack(
      query,
      log,
      source,
      `term ${term} has written to ${key}, and the state database knows terms up to ${known.term}`,
    )
  if (parked > known.parked)
    throw await stateWentBack(
      query,
      log,
      source,
      `messages of ${key} were parked ${parked} times, and the state database knows of ${known.parked}`,
    )
}

type PartitionsRead = Readonly<{ reader: ReaderName; partitions: number }>

/** Of the generations of the source's sinks. */
async function knownReaders(query: Query, databaseId: string): Promise<readonly PartitionsRead[]> {
  const rows = await ask(
    query,
    `select g.sink_id || '.' || g.generation as name, coalesce(g.topic, g.sink_id || '.' || g.generation) as topic, (g.shape ->> 'partitions')::int as partitions
     from tailrace.generation g join tailrace.sink s on s.id = g.sink_id where s.database_id = $1`,
    [databaseId],
  )
  return rowsOf({ name: 'text', topic: 'text', partitions: 'int' }, rows).map(({ name, topic, partitions }) => ({
    reader: readerOf(topic, name),
    partitions,
  }))
}

/** Of each partition of readers, what has been committed there last; nothing for those whose topic is gone. */
async function committedBy(log: Log, readers: readonly PartitionsRead[]): Promise<readonly (Read & Readonly<{ commit: Commit }>)[]> {
  const topics = new Set((await log.topics()).map(({ topic }) => topic))
  const partitions = eachPartition(readers.filter(({ reader }) => topics.has(topicRead(reader))))
  const asked = await atOnce(ASKED_AT_ONCE, partitions, async ({ reader, partition }) => ({
    reader,
    partition,
    commit: await log.committed(reader, partition),
  }))
  return asked.flatMap(({ commit, ...read }) => (commit ? [{ ...read, commit }] : []))
}

/** The next offset of every partition of the topics that readers read; 0 where a topic is gone. */
async function endsRead(log: Log, readers: readonly PartitionsRead[]): Promise<readonly TopicEnd[]> {
  const read = new Map(readers.map(({ reader, partitions }) => [topicRead(reader), partitions]))
  const there = (await log.topics()).filter(({ topic }) => read.has(topic))
  const ends = await endsOf(log, there)
  for (const { topic } of there) read.delete(topic)
  const gone = [...read].map(([topic, partitions]) => ({ topic, partitions, next: 0 }))
  return [...ends, ...eachPartition(gone)]
}

/** Reads who owned each partition of these readers at its last commit in the log, and how often messages had been parked by then. */
async function writtenTerms(log: Log, readers: readonly PartitionsRead[]): Promise<readonly Written[]> {
  const committed = await committedBy(log, readers)
  return committed.map(({ reader, partition, commit }) => writtenBy(`${generationRead(reader)}/${partition}`, commit))
}

/** @param partition of which it is asked for beside it what its owners have had */
async function savedSource(
  query: Query,
  which: string,
  id: string,
  partition?: string,
): Promise<(SourceMemory & Readonly<{ partition: Owned }>) | undefined> {
  const rows = await ask(
    query,
    `select s.database_id as database, d.name, s.log_identity as identity, s.log_appends as appends, coalesce(t.term, 0) as term,
       coalesce(p.term, 0) as "partitionTerm", coalesce(p.parked, 0) as parked
     from tailrace.source s join tailrace.source_database d on d.id = s.database_id
     left join tailrace.term p on p.kind = 'partition' and p.key = $2::text
     left join tailrace.term t on t.kind = 'source' and t.key = s.database_id::text
     where ${which}`,
    [id, partition ?? null],
  )
  const [row] = rowsOf(
    { database: 'text', name: 'text', identity: 'text', appends: 'int', term: 'int', partitionTerm: 'int', parked: 'int' },
    rows,
  )
  if (!row) return undefined
  const { database, name, identity, appends, term, partitionTerm, parked } = row
  return { database, name, term, partition: { term: partitionTerm, parked }, log: { identity, appends } }
}

async function mustFit(query: Query, log: Log, source: SourceMemory, only?: TopicPartition): Promise<void> {
  const { database, name, term, log: saved } = source
  if (saved.identity !== log.identity)
    throw new EngineError(
      'LOG_CHANGED',
      `the source "${name}" has been writing to log ${saved.identity}, and this is log ${log.identity}: it lacks the undelivered messages of the former log. ` +
        `To go on without these, ${acceptRemedy(name)}`,
      { database: name, saved: saved.identity, found: log.identity },
    )
  const owner = log.remembered(database)
  if (owner && owner.term > term)
    throw await stateWentBack(
      query,
      log,
      source,
      `term ${owner.term} has written to the log, and the state database knows terms up to ${term}`,
    )
  const lacking = await log.lacks(database, saved.appends, only)
  if (lacking !== undefined) throw logWentBack(name, lacking)
}

const logWentBack = (name: string, lacking: string) =>
  new EngineError(
    'LOG_WENT_BACK',
    `the log is an older copy of the one that the source "${name}" has been writing to: ${lacking}. Messages that were appended later and not delivered are missing in it, ` +
      `and messages in it may already be delivered. Put the newer log back. If the newer log is lost, ${acceptRemedy(name)}`,
    { database: name },
  )

async function stateWentBack(query: Query, log: Log, { database, name }: SourceMemory, why: string): Promise<EngineError> {
  const { readers, unread } = await forgottenBy(query, log, database)
  const unknown = [...new Set([...readers, ...unread].map(({ topic }) => topic))]
  const topics =
    unknown.length === 0 ? '' : `; the state database does not know the generations of the topics ${unknown.slice(0, 5).join(', ')}`
  return new EngineError(
    'STATE_WENT_BACK',
    `the state database is an older copy, for the source "${name}": ${why}${topics}. Messages that were parked or discarded since may be missing, acknowledged ones of them may come again, ` +
      `and edits made since are lost. Put the newer state database back. If it is lost, ${acceptRemedy(name)}`,
    { database: name },
  )
}

type Forgotten = Readonly<{ topic: TopicName; partitions: number; reader: ReaderName; sinkId: string; generation: number }>

/**
 * What the source's sinks have in the log and the state has forgotten: readers that have committed, in topics that are still there,
 * of newer generations than the state knows or of streams that it has no record of; and topics that were made for one such
 * generation alone and that it has not come to.
 */
async function forgottenBy(query: Query, log: Log, databaseId: string) {
  const named = await log.readers() // first: a generation is saved before it is read
  const newest = await newestGenerations(query, databaseId)
  const isNewer = ({ sinkId, generation }: Readonly<{ sinkId: string; generation: number }>) =>
    generation > (newest.get(sinkId) ?? Infinity)
  const ours = named
    .map((reader) => ({ reader, topic: topicRead(reader), ...ownerOf(generationRead(reader)) }))
    .filter(({ sinkId }) => newest.has(sinkId))
  const known = await knownTopics(
    query,
    log,
    ours.map(({ topic }) => topic),
  )
  const topics = await log.topics()
  const partitionsOf = new Map(topics.map(({ topic, partitions }) => [topic, partitions]))
  const readers = ours.flatMap((each): Forgotten[] => {
    const partitions = partitionsOf.get(each.topic)
    const isForgotten = isNewer(each) || (each.topic !== each.reader && !known.has(each.topic))
    return isForgotten && partitions !== undefined ? [{ ...each, partitions }] : []
  })
  const read = new Set(readers.map(({ reader }) => reader))
  const unread = topics
    .map((each): Forgotten => ({ ...each, reader: each.topic, ...ownerOf(each.topic) }))
    .filter((each) => isNewer(each) && !read.has(each.reader))
  return { readers, unread, newest }
}

/** Those that this state has made, or has a generation for. */
async function knownTopics(query: Query, log: Log, topics: readonly TopicName[]): Promise<ReadonlySet<TopicName>> {
  const { rows } = await ask(
    query,
    `select topic from unnest($2::text[]) as t (topic) where exists (select from tailrace.log_topic l where l.log = $1 and l.topic = t.topic)
       or exists (select from tailrace.generation g where coalesce(g.topic, g.sink_id || '.' || g.generation) = t.topic)`,
    [log.identity, [...new Set(topics)]],
  )
  return new Set(rows.map(({ topic }) => String(topic)))
}

async function newestGenerations(query: Query, databaseId: string): Promise<ReadonlyMap<string, number>> {
  const rows = await ask(
    query,
    `select s.id, (select coalesce(max(generation), 0) from tailrace.generation g where g.sink_id = s.id) as newest
     from tailrace.sink s where s.database_id = $1`,
    [databaseId],
  )
  return new Map(rowsOf({ id: 'text', newest: 'int' }, rows).map(({ id, newest }) => [id, newest]))
}

/** Gives each forgotten generation a number that is free: its own, unless the state has given that again. */
function renumbered(forgotten: readonly Forgotten[], newest: ReadonlyMap<string, number>): readonly Forgotten[] {
  const highest = new Map(newest)
  for (const { sinkId, generation } of forgotten) highest.set(sinkId, Math.max(highest.get(sinkId) ?? 0, generation))
  return forgotten.map((each) => {
    if (each.generation > (newest.get(each.sinkId) ?? 0)) return each
    const generation = (highest.get(each.sinkId) ?? 0) + 1
    highest.set(each.sinkId, generation)
    return { ...each, generation }
  })
}

/**
 * A user takes it that messages are missing, of another log or of what log or state were before they were set back. Each
 * sink of the source begins another generation, so that no name of what is missing (of parked and discarded messages, of
 * replay points, in ack ids) ever means a new message. The former generations end: they deliver what the log has of them,
 * also those that the state has forgotten, and what is parked, under the old names. One version routes to the new ones,
 * from where the next run starts, and all that comes is appended: what the log has of it already, it has under the old names.
 * What readers have committed beyond the end of a partition is forgotten: the next topic of the name may soon have as many records, and
 * such a reader would begin behind the record that ends its generation.
 * Backfills that have not ended begin anew: rows that they have read may be among what is missing.
 * What was found of tables above what is confirmed is found again: the versions are gone that began generations by it.
 * What has written to the log stays below whoever writes next, and incarnations that the state has forgotten count, so that
 * no number of theirs is given again: in the same step, for by these a state that went back is known. How far the log has come
 * shows it too, so that is forgotten by the run that gives the version its place (run-start.ts), whichever process it is in.
 */
export async function acceptMemories(query: Query, log: Log, databaseId: string): Promise<void> {
  await log.beginRun(databaseId) // what it has not saved yet of where partitions end would be saved after they are forgotten
  const owner = log.remembered(databaseId)
  const { readers, unread, newest } = await forgottenBy(query, log, databaseId)
  const unknown = renumbered([...readers, ...unread], newest)
  const known = await knownReaders(query, databaseId)
  const written = await writtenTerms(log, [...known, ...unknown])
  const ends = await endsRead(log, known)
  const terms = written.map((each) => ({ kind: 'partition', ...each }))
  if (owner) terms.push({ kind: 'source', key: databaseId, term: owner.term, parked: 0 })
  const reached = (await log.progress(databaseId))?.position
  const committed = await committedBy(log, unknown)
  const lines = unknown.flatMap(({ reader, sinkId, generation }) =>
    committed
      .filter((each) => each.reader === reader)
      .map(({ partition, commit }) => ({ sinkId, generation, partition, line: commit.next.offset })),
  )
  await ask(
    query,
    `with held as materialized (select id from tailrace.source_database where id = $1::uuid for no key update),
     accepted as (
       update tailrace.source s set log_identity = $2, log_appends = 0, updated_at = now() from held where s.database_id = held.id
       returning s.database_id, s.confirmed_lsn
     ),
     locked as materialized (select s.id from tailrace.sink s, accepted a where s.database_id = a.database_id order by s.id for no key update of s),
     newest as (
       select distinct on (g.sink_id) g.sink_id, g.generation, g.shape from tailrace.generation g join locked on locked.id = g.sink_id
       order by g.sink_id, g.generation desc
     ),
     ended as (update tailrace.generation g set dropped_at = coalesce(g.dropped_at, now()) from locked where g.sink_id = locked.id),
     forgotten as (
       insert into tailrace.generation (sink_id, generation, shape, topic, history, lsn, idx, dropped_at)
       select n.sink_id, u.generation, n.shape || jsonb_build_object('partitions', u.partitions), u.topic, 0, '0/0', -1, now()
       from newest n join unnest($3::uuid[], $4::int[], $5::int[], $11::text[]) as u (sink_id, generation, partitions, topic) on u.sink_id = n.sink_id
       returning sink_id, generation, topic, shape
     ),
     lined as (
       insert into tailrace.reader_line (sink_id, generation, partition, begins, line)
       select f.sink_id, f.generation, p, coalesce(l.line, 0), coalesce(l.line, 0)
       from forgotten f cross join lateral generate_series(0, (f.shape ->> 'partitions')::int - 1) p
       left join unnest($12::uuid[], $13::int[], $14::int[], $15::bigint[]) as l (sink_id, generation, partition, line)
         on l.sink_id = f.sink_id and l.generation = f.generation and l.partition = p
       where f.topic <> f.sink_id || '.' || f.generation
     ),
     version as (select version, streams, sinks from tailrace.routing_version where database_id = $1::uuid order by version desc limit 1),
     renewed as materialized (
       select s ->> 'topic' as topic, ${NEW_TOPIC} as now from version, jsonb_array_elements(version.streams) s
     ),
     begun as (
       insert into tailrace.generation (sink_id, generation, shape, topic)
       select n.sink_id, 1 + greatest(n.generation, (select max(f.generation) from forgotten f where f.sink_id = n.sink_id)), n.shape, (
         select r.now from tailrace.routed_reader e join renewed r on r.topic = e.topic
         where e.database_id = $1::uuid and e.until is null and e.sink_id = n.sink_id)
       from newest n
       returning sink_id, generation
     ),
     begun_anew as (${BEGIN_ANEW} from locked where b.sink_id = locked.id and ${UNENDED}),
     points as (delete from tailrace.replay_point p using locked where p.sink_id = locked.id),
     rewound as (delete from tailrace.rewound_partition r using locked where r.sink_id = locked.id),
     ends as (delete from tailrace.log_end e using accepted a where e.log = $2 and e.source = a.database_id::text),
     ends_now as (select * from unnest($16::text[], $17::int[], $18::bigint[]) as e (topic, partition, next)),
     unread as (
       delete from tailrace.log_checkpoint c using accepted, ends_now e
       where c.log = $2 and split_part(c.topic, '@', 1) = e.topic and c.partition = e.partition and (c.content -> 'next' ->> 'offset')::bigint > e.next
     ),
     lines_back as (
       update tailrace.reader_line l set copied_to = null,
         begins = case when l.line > e.next then least(l.begins, e.next) else l.begins end, line = least(l.line, e.next)
       from accepted, ends_now e, tailrace.generation g
       where g.topic = e.topic and l.sink_id = g.sink_id and l.generation = g.generation and l.partition = e.partition
         and (l.line > e.next or l.copied_to is not null)
     ),
     raised as (
       insert into tailrace.term as t (kind, key, term, holder, parked)
       select r.kind, r.key, r.term, 'accepted', r.parked from accepted, unnest($6::text[], $7::text[], $8::bigint[], $19::bigint[]) as r (kind, key, term, parked)
       on conflict (kind, key) do update set term = greatest(t.term, excluded.term), parked = greatest(t.parked, excluded.parked),
         holder = excluded.holder, taken_at = now() where t.term < excluded.term or t.parked < excluded.parked
     ),
     found as (delete from tailrace.relation_key r using accepted a where r.database_id = a.database_id and r.lsn >= a.confirmed_lsn),
     incarnations as (
       insert into tailrace.source_history (database_id, history, system_identifier, timeline, begins_at)
       select h.database_id, $9::int, h.system_identifier, h.timeline, $10::pg_lsn from tailrace.source_history h join accepted using (database_id)
       where h.history < $9::int
         and not exists (select from tailrace.source_history n where n.database_id = h.database_id and n.history > h.history)
     ),
     former as (
       delete from tailrace.routing_version v using accepted a where v.database_id = a.database_id
     ),
     former_readers as (delete from tailrace.routed_reader r using accepted a where r.database_id = a.database_id),
     readers as (
       insert into tailrace.routed_reader (database_id, sink_id, generation, topic, actions, since)
       select $1::uuid, e.sink_id, coalesce(b.generation, e.generation), r.now, e.actions, version.version + 1
       from version, tailrace.routed_reader e join renewed r on r.topic = e.topic left join begun b using (sink_id)
       where e.database_id = $1::uuid and e.until is null
     )
     insert into tailrace.routing_version (database_id, version, streams, sinks)
     select $1::uuid, v.version + 1, (
       select coalesce(jsonb_agg(s || jsonb_build_object('topic', r.now) order by nth), v.streams)
       from jsonb_array_elements(v.streams) with ordinality as e (s, nth) join renewed r on r.topic = s ->> 'topic'
     ), (
       select coalesce(jsonb_agg(case when b.generation is null then s else s || jsonb_build_object('generation', b.generation) end order by nth), v.sinks)
       from jsonb_array_elements(v.sinks) with ordinality as e (s, nth) left join begun b on b.sink_id::text = s ->> 'sinkId'
     ) from version v`,
    [
      databaseId,
      log.identity,
      unknown.map(({ sinkId }) => sinkId),
      unknown.map(({ generation }) => generation),
      unknown.map(({ partitions }) => partitions),
      terms.map(({ kind }) => kind),
      terms.map(({ key }) => key),
      terms.map(({ term }) => term),
      reached?.history ?? null,
      reached ? formatLsn(reached.lsn) : null,
      unknown.map(({ topic }) => topic),
      lines.map(({ sinkId }) => sinkId),
      lines.map(({ generation }) => generation),
      lines.map(({ partition }) => partition),
      lines.map(({ line }) => line),
      ends.map(({ topic }) => topic),
      ends.map(({ partition }) => partition),
      ends.map(({ next }) => next),
      terms.map(({ parked }) => parked),
    ],
  )
}
