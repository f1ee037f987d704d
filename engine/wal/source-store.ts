/**
 * Keeps in the state database what one source has to remember: its confirmed position, its incarnations, the keys of its relations and
 * where routing versions took effect. Every write carries the owner's term and is refused when a newer one exists
 * (docs/rules.md, rule 19); the row of the term is locked while a write lasts, so a take-over sees it or prevents it.
 */
import { EngineError } from '../errors.ts'
import { formatLsn, type Lsn } from '../lsn.ts'
import { PART, toPosition, type Position } from '../position.ts'
import type { Log } from '../log/log.ts'
import type { RememberedLog } from './memories.ts'
import { makeTopics } from '../log/own-topics.ts'
import { ask, UNIQUE_VIOLATION } from '../state/asking.ts'
import { BEGIN_ANEW, UNENDED } from '../state/backfills.ts'
import type { RoutingVersion } from '../state/resources.ts'
import type { Incarnation, Start } from './history.ts'
import type { RelationAt, SavedRelation } from './decode/known-relations.ts'
import type { Query } from '../postgres/query.ts'
import { rowsOf } from '../postgres/rows.ts'
import type { LeavingTopic } from './routing/routing-state.ts'
import { NEW_TOPIC, routingOf, StoredVersions, type PlacedVersion } from './routing/stored-versions.ts'

/** Holds what a run goes on from. */
export type SavedSource = Readonly<{
  /** undefined before the first run */
  confirmed: Lsn | undefined
  /** what was read; undefined before the first run */
  origin: SourceOrigin | undefined
  acceptedGap: Lsn | undefined
  /** oldest first */
  incarnations: readonly Incarnation[]
}>

/** Says what a source reads. The oids are undefined where a version saved it that didn't keep them. */
export type SourceOrigin = Readonly<{ slotName: string; databaseOid: number | undefined; publicationOid: number | undefined }>

/** Says where a partition of a topic ends. @property next the offset of the record that is appended next */
export type TopicEnd = Readonly<{ topic: string; partition: number; next: number }>

const OWNER = `with owner as (select from tailrace.term where kind = 'source' and key = $1::text and term = $2::bigint for share)`

/** The rows of one source, as its present owner reads and writes them. */
export class SourceStore {
  readonly databaseId: string
  readonly term: number
  readonly #query: Query
  readonly #versions: StoredVersions

  private constructor(query: Query, databaseId: string, term: number) {
    this.#query = query
    this.#versions = new StoredVersions(databaseId)
    this.databaseId = databaseId
    this.term = term
  }

  /** Makes this process the owner: every write of a former one is refused from here on. */
  static async takeOver(query: Query, databaseId: string, holder: string): Promise<SourceStore> {
    const { rows } = await ask(
      query,
      `insert into tailrace.term as t (kind, key, term, holder) values ('source', $1, 1, $2)
       on conflict (kind, key) do update set term = t.term + 1, holder = excluded.holder, taken_at = now() returning term`,
      [databaseId, holder],
    )
    return new SourceStore(query, databaseId, Number(rows[0]?.term))
  }

  /** @returns the holder of the term; undefined: nobody has owned it yet */
  static async owner(query: Query, databaseId: string): Promise<string | undefined> {
    const { rows } = await ask(query, `select holder from tailrace.term where kind = 'source' and key = $1`, [databaseId])
    return rows[0] && String(rows[0].holder)
  }

  /** Reads what the last run saved. */
  async load(): Promise<SavedSource> {
    const [row] = rowsOf(
      { slotName: 'text', databaseOid: 'int?', publicationOid: 'int?', confirmed: 'lsn', acceptedGap: 'lsn?' },
      await ask(
        this.#query,
        `select slot_name as "slotName", database_oid as "databaseOid", publication_oid as "publicationOid", confirmed_lsn as confirmed,
           accepted_gap as "acceptedGap"
         from tailrace.source where database_id = $1`,
        [this.databaseId],
      ),
    )
    const incarnations = await incarnationsOf(this.#query, this.databaseId)
    return { confirmed: row?.confirmed, origin: row, acceptedGap: row?.acceptedGap, incarnations }
  }

  /**
   * Saves from where a run goes on, with its new incarnations, in one step: before the first append. Where changes are missing,
   * backfills begin anew: rows that they have read may have changed meanwhile.
   * @param phantoms how many messages of the incarnation before never happened for the server that now leads
   */
  async saveStart(
    start: Start,
    { slotName, databaseOid, publicationOid }: SourceOrigin,
    log: RememberedLog,
    phantoms: number,
  ): Promise<void> {
    await this.#write(
      `, added as (
         insert into tailrace.source_history (database_id, history, system_identifier, timeline, begins_at, phantom_messages)
         select $1::text::uuid, h.history, h.system_identifier, h.timeline, h.begins_at, h.phantoms
         from owner, jsonb_to_recordset($9::jsonb) as h (history int, system_identifier text, timeline int, begins_at pg_lsn, phantoms bigint)
       ),
       begun_anew as (${BEGIN_ANEW} from owner, tailrace.sink s where $10::boolean and s.id = b.sink_id and s.database_id = $1::text::uuid and ${UNENDED})
       insert into tailrace.source as s (database_id, slot_name, database_oid, publication_oid, log_identity, log_appends, confirmed_lsn)
       select $1::text::uuid, $3, $4::bigint, $5::bigint, $6, $7::bigint, $8::pg_lsn from owner
       on conflict (database_id) do update
         set slot_name = excluded.slot_name, database_oid = excluded.database_oid, publication_oid = excluded.publication_oid,
             log_identity = excluded.log_identity, log_appends = excluded.log_appends,
             confirmed_lsn = excluded.confirmed_lsn, accepted_gap = null, updated_at = now()`,
      [
        slotName,
        databaseOid,
        publicationOid,
        log.identity,
        log.appends,
        formatLsn(start.confirmed),
        JSON.stringify(
          start.added.map((i, nth) => ({
            history: i.history,
            system_identifier: i.systemIdentifier,
            timeline: i.timeline,
            begins_at: formatLsn(i.beginsAt),
            phantoms: nth === 0 ? phantoms : 0,
          })),
        ),
        start.gapAccepted,
      ],
    )
  }

  /**
   * Forgets keys of relations that no run will ask for again: of those below the confirmed position the newest of each
   * relation stays.
   */
  async pruneRelationKeys(confirmed: Position): Promise<void> {
    await ask(
      this.#query,
      `delete from tailrace.relation_key r using tailrace.relation_key n
       where r.database_id = $1 and n.database_id = $1 and n.relation = r.relation
         and (n.history, n.lsn, n.idx) > (r.history, r.lsn, r.idx) and (n.history, n.lsn) < ($2::int, $3::pg_lsn)`,
      [this.databaseId, confirmed.history, formatLsn(confirmed.lsn)],
    )
  }

  /** @param appends how many the log has by now */
  async saveConfirmed(lsn: Lsn, appends: number): Promise<void> {
    await this.#write(
      `update tailrace.source set confirmed_lsn = $3::pg_lsn, log_appends = $4::bigint, updated_at = now() from owner where database_id = $1::text::uuid`,
      [formatLsn(lsn), appends],
    )
  }

  /** The descriptions saved for its relations, oldest first (docs/rules.md, rule 11). */
  async relations(): Promise<readonly RelationAt[]> {
    const rows = await ask(
      this.#query,
      'select relation, history, lsn, idx, columns from tailrace.relation_key where database_id = $1 order by history, lsn, idx',
      [this.databaseId],
    )
    return rowsOf({ relation: 'int', history: 'int', lsn: 'lsn', idx: 'int', columns: savedRelation }, rows).map(
      ({ relation, columns, ...at }) => ({ relation, position: { ...at, part: PART.row }, saved: columns }),
    )
  }

  /** @returns what is saved there: what was given, or what another run had saved before */
  async saveRelation({ relation, position, saved }: RelationAt): Promise<SavedRelation> {
    const rows = await this.#write(
      `insert into tailrace.relation_key as r (database_id, relation, history, lsn, idx, columns)
       select $1::text::uuid, $3::bigint, $4::int, $5::pg_lsn, $6::int, $7::jsonb from owner
       on conflict (database_id, relation, history, lsn, idx) do update set columns = r.columns`,
      [relation, position.history, formatLsn(position.lsn), position.idx, JSON.stringify(saved)],
      'columns',
    )
    return savedRelation(rows[0]?.columns)
  }

  /**
   * Saves a relation that groups its changes by other columns from here on, together with the next routing version, in
   * which each of the streams has another number, and their readers another generation. It is the newest version but for
   * that: one that waits for its mark holds from here on too.
   * @param opensAt where the version takes effect
   * @param regrouped sinks that read the streams, the relation's primary key, and where topics end that others may begin to read
   */
  async saveRegrouping(
    { relation, position, saved }: RelationAt,
    opensAt: Position,
    { sinks, key, ends }: Readonly<{ sinks: readonly string[]; key: readonly string[]; ends: readonly TopicEnd[] }>,
  ): Promise<RoutingVersion> {
    for (;;) {
      try {
        const [row] = await this.#fenced(
          `, newest as (
             select version, coalesce(streams, '[]') as streams, sinks
             from tailrace.routing_version where database_id = $1::text::uuid order by version desc limit 1
           ), reader as (
             select r.sink_id::text, r.generation, r.actions, r.topic from tailrace.routed_reader r where r.database_id = $1::text::uuid and r.until is null
             union all
             select s ->> 'sinkId', (s ->> 'generation')::int, s -> 'actions', (s ->> 'sinkId') || '.' || (s ->> 'generation')
             from newest, jsonb_array_elements(newest.sinks) s
           ), regrouped as (select distinct topic from reader where sink_id = any ($11)
           ), renewed as materialized (
             select s ->> 'topic' as topic, ${NEW_TOPIC} as now from newest, jsonb_array_elements(newest.streams) s join regrouped r on r.topic = s ->> 'topic'
           ), locked as materialized (
             select s.id, r.actions, n.now from tailrace.sink s join reader r on r.sink_id = s.id::text left join renewed n on n.topic = r.topic, owner
             where r.topic in (select topic from regrouped) order by s.id for no key update of s
           ), begun as (
             insert into tailrace.generation (sink_id, generation, shape, topic, regrouped, history, lsn, idx, takes)
             select g.sink_id, g.generation + 1, g.shape, locked.now, $12::jsonb, $8::int, $9::pg_lsn, $10::int, jsonb_build_array(
               jsonb_build_object('history', $8::int, 'lsn', $9::pg_lsn, 'idx', $10::int, 'actions', locked.actions))
             from locked cross join lateral (
               select * from tailrace.generation g where g.sink_id = locked.id order by g.generation desc limit 1
             ) g
             returning sink_id, generation, shape, topic
           ), begun_lines as (
             insert into tailrace.reader_line (sink_id, generation, partition, begins, line)
             select b.sink_id, b.generation, p, 0, 0 from begun b, generate_series(0, (b.shape ->> 'partitions')::int - 1) p where b.topic is not null
           ), place as (select $8::int as history, $9::pg_lsn as lsn, $10::int as idx, true as is_new from owner),
           stays as (select * from reader where topic not in (select topic from regrouped)),
           named as (select * from stays),
           ${placement('$13', '$14', '$15')},
           saved as (
             insert into tailrace.relation_key as r (database_id, relation, history, lsn, idx, columns)
             select $1::text::uuid, $3::bigint, $4::int, $5::pg_lsn, $6::int, $7::jsonb from owner
             on conflict (database_id, relation, history, lsn, idx) do update set columns = excluded.columns
           ), version as (
             insert into tailrace.routing_version (database_id, version, history, lsn, idx, streams, sinks)
             select $1::text::uuid, n.version + 1, $8::int, $9::pg_lsn, $10::int,
               case when n.sinks is null then (
                 select coalesce(jsonb_agg(case when r.now is null then s else s || jsonb_build_object('topic', r.now) end order by nth), '[]')
                 from jsonb_array_elements(n.streams) with ordinality as e (s, nth) left join renewed r on r.topic = s ->> 'topic'
               ) end,
               (
                 select jsonb_agg(case when b.generation is null then s else s || (b.shape - 'stream') || jsonb_build_object('generation', b.generation) end order by nth)
                 from jsonb_array_elements(n.sinks) with ordinality as e (s, nth) left join begun b on b.sink_id::text = s ->> 'sinkId'
               )
             from newest n, owner returning version, streams, sinks
           ), ended_readers as (
             update tailrace.routed_reader r set until = v.version from version v, begun b
             where r.database_id = $1::text::uuid and r.until is null and r.sink_id = b.sink_id
           ), begun_readers as (
             insert into tailrace.routed_reader (database_id, sink_id, generation, topic, actions, since)
             select $1::text::uuid, b.sink_id, b.generation, n.now, r.actions, v.version
             from version v, reader r join begun b on b.sink_id::text = r.sink_id join renewed n on n.topic = r.topic where v.sinks is null
           )
           select v.version, v.streams, v.sinks, (
             select jsonb_agg(jsonb_build_object('sinkId', r.sink_id, 'actions', r.actions, 'generation', coalesce(b.generation, r.generation),
               'topic', coalesce(n.now, r.topic)))
             from reader r left join begun b on b.sink_id::text = r.sink_id left join renewed n on n.topic = r.topic
           ) as readers from version v`,
          [
            relation,
            position.history,
            formatLsn(position.lsn),
            position.idx,
            JSON.stringify(saved),
            opensAt.history,
            formatLsn(opensAt.lsn),
            opensAt.idx,
            sinks,
            JSON.stringify({ relation, key }),
            ...columnsOf(ends),
          ],
        )
        return { databaseId: this.databaseId, version: Number(row?.version), ...routingOf(row ?? {}) }
      } catch (error) {
        if (!isTaken(error)) throw error // another process was faster, with an edit of a sink: again with what it saved
      }
    }
  }

  /** All versions of this source, oldest first. */
  async routingVersions(): Promise<readonly PlacedVersion[]> {
    return this.#versions.all(this.#query)
  }

  async routingVersion(version: number): Promise<PlacedVersion | undefined> {
    return this.#versions.at(this.#query, version)
  }

  /**
   * Saves where a version takes effect, once for all runs, and with it where the generations that it names first open, where
   * those end that it names no more, and from which record on a stream concerns who begins to read it (docs/rules.md, rule 44).
   * @param ends of the topics, at this moment or before
   * @returns the position that stands
   */
  async placeVersion(version: number, position: Position, ends: readonly TopicEnd[]): Promise<Position> {
    const rows = await this.#write(
      `, place as (
         select coalesce(v.history, $4::int) as history, coalesce(v.lsn, $5::pg_lsn) as lsn, coalesce(v.idx, $6::int) as idx, v.lsn is null as is_new,
           v.sinks
         from owner, tailrace.routing_version v where v.database_id = $1::text::uuid and v.version = $3::int
       ), stays as (
         select r.sink_id::text, r.generation, r.actions, r.since from place, tailrace.routed_reader r
         where r.database_id = $1::text::uuid and r.since <= $3::int and (r.until is null or r.until > $3::int)
         union all
         select s ->> 'sinkId', (s ->> 'generation')::int, s -> 'actions', $3::int from place, jsonb_array_elements(place.sinks) s
       ), named as ( -- what the version placed last has so, was settled with it
         select * from stays where since > coalesce((
           select max(version) from tailrace.routing_version where database_id = $1::text::uuid and version < $3::int and lsn is not null), -1)
       ),
       ${placement('$7', '$8', '$9')}
       update tailrace.routing_version v set history = p.history, lsn = p.lsn, idx = p.idx
       from place p where v.database_id = $1::text::uuid and v.version = $3::int`,
      [version, position.history, formatLsn(position.lsn), position.idx, ...columnsOf(ends)],
      'v.history, v.lsn, v.idx',
    )
    return toPosition(rows[0] ?? {}) ?? position
  }

  /** Makes topics, which are this state database's own before they are made. */
  makeTopics(log: Log, topics: Parameters<typeof makeTopics>[2]): Promise<void> {
    return makeTopics(this.#query, log, topics)
  }

  /**
   * Topics of generations that end at a position and are not drained: their markers may have gone with what the source never
   * sees again, or with a log.
   */
  async undrained(): Promise<readonly LeavingTopic[]> {
    const rows = await ask(
      this.#query,
      `select distinct coalesce(g.topic, g.sink_id || '.' || g.generation) as topic, (g.shape ->> 'partitions')::int as partitions,
         g.ends_history as history, g.ends_lsn as lsn, g.ends_idx as idx
       from tailrace.generation g join tailrace.sink s on s.id = g.sink_id
       where s.database_id = $1 and g.drained_at is null and g.lsn is not null and g.ends_lsn is not null
         and (select count(*) from tailrace.drained_partition d where d.sink_id = g.sink_id and d.generation = g.generation)
           < (g.shape ->> 'partitions')::int
         and not exists (
           select from tailrace.reader_line l where l.sink_id = g.sink_id and l.generation = g.generation and l.copied_to is not null) -- it ends there
       order by topic`,
      [this.databaseId],
    )
    return rowsOf({ topic: 'text', partitions: 'int', history: 'int', lsn: 'lsn', idx: 'int' }, rows).map(
      ({ topic, partitions, ...at }) => ({ topic, partitions, endsAt: { ...at, part: PART.row } }),
    )
  }

  /** A source that starts before it has sinks routes nothing: said by a version of its own, so that each run says the same. */
  async addEmptyVersion(position: Position): Promise<void> {
    await this.#write(
      `insert into tailrace.routing_version as v (database_id, version, sinks, streams, history, lsn, idx)
       select $1::text::uuid, 0, '[]', '[]', $3::int, $4::pg_lsn, $5::int from owner
       on conflict (database_id, version) do update set streams = v.streams`,
      [position.history, formatLsn(position.lsn), position.idx],
    )
  }

  #write(sql: string, params: readonly unknown[], returning = '1'): Promise<readonly Readonly<Record<string, unknown>>[]> {
    return this.#fenced(`${sql} returning ${returning}`, params)
  }

  /** @param sql returns rows if its writes are the owner's */
  async #fenced(sql: string, params: readonly unknown[]): Promise<readonly Readonly<Record<string, unknown>>[]> {
    const { rows } = await ask(this.#query, `${OWNER} ${sql}`, [this.databaseId, this.term, ...params])
    if (rows.length === 0)
      throw new EngineError('SOURCE_FENCED', `another process owns the source (term ${this.term} has passed)`, { term: this.term })
    return rows
  }
}

/**
 * What follows from the place of a version, as parts of one statement. They take from `place` (where it is, and whether that is
 * new), from `stays` (those who read on, or begin to, under it) and from `named` (those of them who may take something else than before).
 * @param topics @param partitions @param nexts parameters with where topics end
 */
const placement = (topics: string, partitions: string, nexts: string): string =>
  `opened as (
     update tailrace.generation g set history = coalesce(g.history, p.history), lsn = coalesce(g.lsn, p.lsn), idx = coalesce(g.idx, p.idx),
       takes = case when (g.takes -> -1 -> 'actions') is distinct from n.actions
         then g.takes || jsonb_build_array(jsonb_build_object('history', p.history, 'lsn', p.lsn, 'idx', p.idx, 'actions', n.actions)) else g.takes end
     from place p, named n
     where g.sink_id::text = n.sink_id and g.generation = n.generation
       and (g.lsn is null or (p.is_new and (g.takes -> -1 -> 'actions') is distinct from n.actions))
     returning g.sink_id, g.generation, g.topic, g.shape
   ), lined as (
     insert into tailrace.reader_line (sink_id, generation, partition, begins, line)
     select o.sink_id, o.generation, p, coalesce(e.next, 0), coalesce(e.next, 0)
     from opened o cross join lateral generate_series(0, (o.shape ->> 'partitions')::int - 1) p
     left join unnest(${topics}::text[], ${partitions}::int[], ${nexts}::bigint[]) as e (topic, partition, next) on e.topic = o.topic and e.partition = p
     where o.topic is not null
     on conflict do nothing
   ), closed as (
     update tailrace.generation g set ends_history = p.history, ends_lsn = p.lsn, ends_idx = p.idx
     from place p, tailrace.sink s
     where p.is_new and s.id = g.sink_id and s.database_id = $1::text::uuid and g.lsn is not null and g.ends_lsn is null
       and not exists (select from stays n where n.sink_id = g.sink_id::text and n.generation = g.generation)
   )`

const columnsOf = (ends: readonly TopicEnd[]) => [
  ends.map(({ topic }) => topic),
  ends.map(({ partition }) => partition),
  ends.map(({ next }) => next),
]

/** Reads the incarnations of a source, oldest first. */
export async function incarnationsOf(query: Query, databaseId: string): Promise<readonly Incarnation[]> {
  const rows = await ask(
    query,
    `select history, system_identifier as "systemIdentifier", timeline, begins_at as "beginsAt"
     from tailrace.source_history where database_id = $1 order by history`,
    [databaseId],
  )
  return rowsOf({ history: 'int', systemIdentifier: 'text', timeline: 'int', beginsAt: 'lsn' }, rows)
}

/** As this file has written it. */
const savedRelation = (document: unknown): SavedRelation => document as SavedRelation

const isTaken = (error: unknown): boolean => error instanceof EngineError && error.context.sqlstate === UNIQUE_VIOLATION

/** Takes in that a user accepts that changes below the slot's position are missing: the next run goes on from there. */
export async function acceptGap(query: Query, databaseId: string, slotAt: Lsn): Promise<void> {
  await ask(query, 'update tailrace.source set accepted_gap = $2::pg_lsn where database_id = $1', [databaseId, formatLsn(slotAt)])
}
