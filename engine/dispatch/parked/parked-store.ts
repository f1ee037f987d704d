/**
 * The parked messages of one sink partition in the state database: those that blocked others, and those that were
 * discarded. Every write carries the owner's term and is refused when a newer one exists (../fenced-write.ts).
 *
 * A row is `open` until its message is finished, then `done` until the commit that has the message finished is durable:
 * without it a restart would take the message from the log again. The newest
 * `discarded` rows of a sink stay, as the record of what was given up. A row knows the newest attempts to deliver its message.
 *
 * What the open rows weigh is counted beside them, in the statement that writes them, for the bound of the sink's backlog.
 *
 * A row keeps the name of its message, which is its place in the log (generation, partition, offset, index), and has an
 * owner beside it: the partition that delivers it now, another one since the generation it was parked in has ended.
 */
import { EngineError } from '../../errors.ts'
import type { MessageRef, TopicName } from '../../log/log.ts'
import type { MessageView } from '../../log/message-view.ts'
import { MESSAGE_FLAG } from '../../log/pack.ts'
import { ask } from '../../state/asking.ts'
import type { Query, Row } from '../../postgres/query.ts'
import { refList, type OlderRefs, type RefList } from '../ack-id.ts'
import { termKey, writeAsOwner, type PartitionKey } from '../fenced-write.ts'
import { nameOf, refKey, type Origin, type ParkedGroup, type ParkedGroupFacts, type ParkedRef } from './parked-group.ts'
import { columnsOf, toView } from './parked-row.ts'
import type { Failed, Move } from './parking.ts'

/** Messages that were given up, and when the last of them was. */
export type Discards = Readonly<{ messages: number; lastAt: Date }>
/** @property attempts how often it has failed; pull: how often it was handed out before it was parked */
type LoadedMessage = ParkedRef & Readonly<{ view: MessageView; attempts: number; formerAttempts: readonly unknown[] }>
/** Open messages: these, those that have failed at least once, or all. */
export type Chosen = readonly Omit<ParkedRef, 'key'>[] | 'failing' | 'open'
/** Where parked messages are found that are named by an earlier generation. */
export type OwnedRefs = Readonly<{ owner: Origin; origin: Origin; refs: RefList }>
/** The newest of a message. */
const KEPT_ATTEMPTS = 10
/** Ended by hand in one statement. */
export const MAX_ENDED = 1_000
/** The newest of a sink (contract 12.3). */
const KEPT_DISCARDED = 1_000

/** in a write of the owner */
const MINE = `sink_id = $3::text::uuid and owner_generation = $4::int and owner_partition = $5::int`
/** the same without an owner's term */
const MINE_READ = `sink_id = $1::text::uuid and owner_generation = $2::int and owner_partition = $3::int`
const BY_POSITION = 'history, lsn, idx, part'
/** of a row, what names it */
const NAME = 'p.group_hash, p.generation, p.partition, p.record_offset, p.record_index'
/** The attempts of a row with that of a parameter in front. */
const prepended = (parameter: number) =>
  `jsonb_path_query_array(jsonb_build_array($${parameter}::jsonb) || p.attempt_log, '$[0 to ${KEPT_ATTEMPTS - 1}]')`
const BYTES = 'octet_length(record_key) + octet_length(group_key) + octet_length(body)'

export class ParkedStore {
  readonly term: number
  readonly #query: Query
  readonly #key: PartitionKey
  readonly #grouping: boolean
  /** keys of messages of ended generations that are groups of their own: below 0, so that they are nobody else's */
  readonly #keysElsewhere = new Map<number | string, number>()

  #parked: number

  private constructor(query: Query, key: PartitionKey, grouping: boolean, owner: Readonly<{ term: number; parked: number }>) {
    this.#query = query
    this.#key = key
    this.#grouping = grouping
    this.term = owner.term
    this.#parked = owner.parked
  }

  /** How often messages of the partition have been parked or discarded: by all its owners, durably, as far as that was answered. */
  get parked(): number {
    return this.#parked
  }

  /**
   * Makes this process the owner: every write of a former one is refused from here on. Comes before reading anything: a replay that
   * is being put into effect holds the row of the generation, and what is read from here on is what it leaves.
   * @param options where the generation is read, if that may change
   * @throws EngineError GENERATION_WAITS: it is handed over, or read elsewhere, and whoever was frozen meanwhile must not stand for it again; STATE_UNAVAILABLE
   */
  static async takeOver(
    query: Query,
    key: PartitionKey,
    options: Readonly<{ grouping: boolean; holder: string; topic?: TopicName }>,
  ): Promise<ParkedStore> {
    const { rows } = await ask(
      query,
      `with held as materialized (
         select drained_at is not null or topic <> coalesce($5, topic) as is_over from tailrace.generation where sink_id = $3::text::uuid and generation = $4 for share)
       insert into tailrace.term as t (kind, key, term, holder)
       select 'partition', $1, 1, $2 from (select bool_or(is_over) as is_over from held) as waited where is_over is not true
       on conflict (kind, key) do update set term = t.term + 1, holder = excluded.holder, taken_at = now() returning term, parked`,
      [termKey(key), options.holder, key.sinkId, key.generation, options.topic ?? null],
    )
    if (!rows[0])
      throw new EngineError('GENERATION_WAITS', `generation ${key.generation} is handed over, or has got another topic`, {
        generation: key.generation,
      })
    return new ParkedStore(query, key, options.grouping, { term: Number(rows[0].term), parked: Number(rows[0].parked) })
  }

  /**
   * What a new owner must know before it reads the log.
   * @param from the committed offset: what the store has of it and above must be skipped there
   * @returns one fact per open group (without grouping: per message), and the messages to skip
   */
  async load(from: MessageRef): Promise<{ groups: ParkedGroupFacts[]; refs: RefList }> {
    await this.#countAnew()
    const { sinkId, generation, partition } = this.#key
    const mine = [sinkId, generation, partition]
    const row = 'generation, partition, record_offset, record_index, attempts, extract(epoch from commit_time)::float8 as committed'
    const hidden = 'extract(epoch from next_try_at - now()) * 1000'
    const open = await ask(
      this.#query,
      this.#grouping
        ? `select distinct on (group_hash) group_hash, ${row}, ${hidden} as hidden, count(*) over (partition by group_hash) as open,
             max(${hidden}) over (partition by group_hash order by ${BY_POSITION} rows between 1 following and unbounded following) as later_hidden
           from tailrace.parked where ${MINE_READ} and state = 'open' order by group_hash, ${BY_POSITION}`
        : `select ${row}, 1 as open, ${hidden} as hidden, 0 as later_hidden
           from tailrace.parked where ${MINE_READ} and state = 'open' order by ${BY_POSITION}`,
      mine,
    )
    const above = await ask(
      this.#query,
      `select record_offset, record_index from tailrace.parked
       where sink_id = $1::text::uuid and generation = $2 and partition = $3 and record_offset >= $4 order by record_offset, record_index`,
      [...mine, from.offset],
    )
    const refs = refList()
    for (const row of above.rows) {
      refs.offsets.push(Number(row.record_offset))
      refs.indexes.push(Number(row.record_index))
    }
    const groups = open.rows.map((row) => ({
      ...this.#ref(row),
      open: Number(row.open),
      deliveries: Number(row.attempts),
      commitTimeUs: Number(row.committed) * 1_000_000,
      hiddenMs: Number(row.hidden ?? 0),
      laterHiddenMs: Number(row.later_hidden ?? 0),
    }))
    return { groups, refs }
  }

  /** Messages that were discarded in the last day: for their size, and for other reasons. */
  async discards(): Promise<Readonly<{ bySize: Discards; others: Discards }>> {
    const { sinkId, generation, partition } = this.#key
    const { rows } = await ask(
      this.#query,
      `select by_size, count(*) as messages, max(at) as last_at from (
         select flags & ${MESSAGE_FLAG.discarded} <> 0 as by_size, coalesce((attempt_log -> 0 ->> 'at')::timestamptz, inserted_at) as at
         from tailrace.parked where ${MINE_READ} and state = 'discarded') d
       where at > now() - interval '1 day' group by by_size`,
      [sinkId, generation, partition],
    )
    const of = (bySize: boolean): Discards => {
      const row = rows.find(({ by_size }) => by_size === bySize)
      return { messages: Number(row?.messages ?? 0), lastAt: row?.last_at instanceof Date ? row.last_at : new Date(0) }
    }
    return { bySize: of(true), others: of(false) }
  }

  /** Writes messages as open or as discarded; durable when it settles. A row that is there already stays as it is. */
  async insert(moves: readonly Move[], state: 'open' | 'discarded', reason: string | null): Promise<void> {
    const written = await this.#write(
      `insert into tailrace.parked (sink_id, generation, partition, owner_generation, owner_partition, state, error, history, lsn, idx, part,
         record_offset, record_index, group_hash, record_key, group_key, body, action, flags, relation, commit_time, attempts,
         attempt_log, next_try_at, xid)
       select $3::text::uuid, $4::int, $5::int, $4::int, $5::int, $6, coalesce(m.error, $7), m.history, m.lsn, m.idx, m.part, m.o, m.i, m.hash, m.key,
         m.group_key, m.body, m.action, m.flags, m.relation, m.at, m.attempts, m.log::jsonb, now() + m.ms * interval '1 ms', m.xid
       from owner, unnest($8::int[], $9::pg_lsn[], $10::int[], $11::smallint[], $12::bigint[], $13::int[], $14::bigint[], $15::text[], $16::text[],
           $17::bytea[], $18::smallint[], $19::smallint[], $20::bigint[], $21::timestamptz[], $22::int[], $23::text[], $24::text[], $25::float8[], $26::bigint[])
         as m (history, lsn, idx, part, o, i, hash, key, group_key, body, action, flags, relation, at, attempts, error, log, ms, xid)
       on conflict (sink_id, history, lsn, idx, part) do nothing`,
      [state, reason, ...columnsOf(moves)],
      { adds: state === 'open' ? 1 : 0, parks: true },
    )
    if (written.length > 0) this.#parked++
  }

  /** Records that open messages have failed once more; those that are not to be tried again are discarded. @returns those that were open */
  async failed(refs: readonly Omit<ParkedRef, 'key'>[], failures: readonly Failed[]): Promise<ParkedRef[]> {
    const rows: Row[] = []
    for (const isSpent of [false, true]) {
      const some = failures.flatMap((failed, i) =>
        (failed.retryInMs === undefined) === isSpent ? [{ ref: refs[i] as ParkedRef, failed }] : [],
      )
      if (some.length === 0) continue
      const written = await this.#write(
        `update tailrace.parked p set error = r.error, attempts = r.attempts, next_try_at = now() + r.ms * interval '1 ms', state = $14,
           attempt_log = jsonb_path_query_array(jsonb_build_array(r.log::jsonb) || p.attempt_log, '$[0 to ${KEPT_ATTEMPTS - 1}]')
         from owner, unnest($6::int[], $7::int[], $8::bigint[], $9::int[], $10::text[], $11::int[], $12::float8[], $13::text[])
           as r (g, p, o, i, error, attempts, ms, log)
         where ${MINE} and p.generation = r.g and p.partition = r.p and p.record_offset = r.o and p.record_index = r.i and p.state = 'open'`,
        [
          ...this.#names(some.map(({ ref }) => ref)),
          some.map(({ failed }) => failed.error),
          some.map(({ failed }) => failed.attempts),
          some.map(({ failed }) => failed.retryInMs ?? null),
          some.map(({ failed }) => JSON.stringify(failed.record)),
          isSpent ? 'discarded' : 'open',
        ],
        { returning: NAME, adds: isSpent ? -1 : 0 },
      )
      rows.push(...written)
    }
    return rows.map((row) => this.#ref(row))
  }

  /**
   * The first open messages of each group, lowest first: so many that their bodies are about `maxBytes`, and one at least.
   * @param each at most so many of a group, and one of those that have failed
   */
  async fetch(groups: readonly ParkedGroup[], maxBytes: number, each = 1): Promise<LoadedMessage[]> {
    const { sinkId, generation, partition } = this.#key
    const mine = [sinkId, generation, partition]
    const within = (first: string) =>
      `select * from (select f.*, sum(octet_length(f.body)) over (order by ${BY_POSITION}) - octet_length(f.body) as before from (${first}) f) b
       where before < ${Math.floor(maxBytes)} order by ${BY_POSITION}`
    const { rows } = this.#grouping
      ? await ask(
          this.#query,
          within(
            each === 1
              ? `select distinct on (group_hash) * from tailrace.parked
                 where ${MINE_READ} and state = 'open' and group_hash = any ($4::bigint[]) order by group_hash, ${BY_POSITION}`
              : `select p.* from unnest($4::bigint[]) as g (hash) cross join lateral (select * from tailrace.parked
                 where ${MINE_READ} and state = 'open' and group_hash = g.hash order by ${BY_POSITION} limit ${Math.floor(each)}) p`,
          ),
          [...mine, groups.map((g) => g.key)],
        )
      : await ask(
          this.#query,
          within(`select p.* from tailrace.parked p join unnest($4::int[], $5::int[], $6::bigint[], $7::int[]) as r (g, p, o, i)
             on p.generation = r.g and p.partition = r.p and p.record_offset = r.o and p.record_index = r.i
           where ${MINE_READ} and state = 'open'`),
          [...mine, ...this.#names(groups)],
        )
    return rows.map((row) => ({
      ...this.#ref(row),
      view: toView(row),
      attempts: Number(row.attempts),
      formerAttempts: row.attempt_log as unknown[],
    }))
  }

  /** Ends open messages. @returns those that were open: unknown and repeated ones are ignored */
  async end(refs: readonly Omit<ParkedRef, 'key'>[], state: 'done' | 'discarded', reason: string | null = null): Promise<ParkedRef[]> {
    const rows = await this.#write(
      `update tailrace.parked p set state = $10, error = coalesce($11, p.error)
       from owner, unnest($6::int[], $7::int[], $8::bigint[], $9::int[]) as r (g, p, o, i)
       where ${MINE} and p.generation = r.g and p.partition = r.p and p.record_offset = r.o and p.record_index = r.i and p.state = 'open'`,
      [...this.#names(refs), state, reason],
      { returning: NAME, adds: -1 },
    )
    return rows.map((row) => this.#ref(row))
  }

  /** Open messages are to be tried at once. @returns those that were backing off */
  async hurry(chosen: Chosen): Promise<ParkedRef[]> {
    const { condition, params } = this.#choose(chosen)
    const rows = await this.#write(
      `update tailrace.parked p set next_try_at = null from owner where ${MINE} and p.state = 'open' and p.next_try_at > now() ${condition}`,
      params,
      { returning: NAME },
    )
    return rows.map((row) => this.#ref(row))
  }

  /**
   * Discarded messages are to be delivered after all, as if they had never failed. Those that are on record without their
   * body stay as they are. @param refs absent: all of them
   */
  async reopen(refs: readonly Omit<ParkedRef, 'key'>[] | undefined, entry: Failed['record']): Promise<ParkedRef[]> {
    const { condition, params } = this.#choose(refs ?? 'open')
    const rows = await this.#write(
      `update tailrace.parked p set state = 'open', attempts = 0, next_try_at = null, flags = p.flags | ${MESSAGE_FLAG.reopened}, attempt_log = ${prepended(5 + params.length + 1)}
       from owner where ${MINE} and p.state = 'discarded' and p.flags & ${MESSAGE_FLAG.discarded} = 0 ${condition}`,
      [...params, JSON.stringify(entry)],
      { returning: NAME, adds: 1 },
    )
    return rows.map((row) => this.#ref(row))
  }

  /** @returns the open messages whose newest entry is this one of `reopen`, also if that did not answer */
  async reopenedWith(entry: Failed['record']): Promise<ParkedRef[]> {
    const { sinkId, generation, partition } = this.#key
    const { rows } = await ask(
      this.#query,
      `select ${NAME} from tailrace.parked p where ${MINE_READ} and p.state = 'open' and p.attempt_log -> 0 = $4::jsonb order by ${BY_POSITION}`,
      [sinkId, generation, partition, JSON.stringify(entry)],
    )
    return rows.map((row) => this.#ref(row))
  }

  /** Gives up open messages, with this entry among their attempts, or ends them as if delivered. @returns those that were open, at most MAX_ENDED of those that are not named */
  async endChosen(chosen: Chosen, state: 'done' | 'discarded', entry: Failed['record']): Promise<ParkedRef[]> {
    const { condition, params } = this.#choose(chosen)
    const next = 5 + params.length + 1
    const some = `p.ctid = any (array (select p.ctid from tailrace.parked p where ${MINE} and p.state = 'open' ${condition} limit ${MAX_ENDED}))`
    const rows = await this.#write(
      `update tailrace.parked p set state = $${next}, next_try_at = null, error = coalesce(p.error, $${next + 1}::jsonb ->> 'message'),
         attempt_log = ${prepended(next + 1)}
       from owner where ${MINE} and p.state = 'open' ${typeof chosen === 'string' ? `and ${some}` : condition}`,
      [...params, state, JSON.stringify(entry)],
      { returning: NAME, adds: -1 },
    )
    return rows.map((row) => this.#ref(row))
  }

  /** Removes, of what is discarded, all but the newest rows of the sink, and what is done: below the durably committed message, and what is done of generations that no log holds any more. */
  async removeDone(below: MessageRef): Promise<void> {
    await this.#write(
      `delete from tailrace.parked p using owner where ${MINE} and p.state = 'done'
         and ((p.record_offset, p.record_index) < ($6::bigint, $7::int) or (p.generation, p.partition) <> ($4::int, $5::int))`,
      [below.offset, below.index],
    )
    // as long as the log may bring its message again, a discarded row keeps it from being delivered
    await this.#write(
      `delete from tailrace.parked p using owner where ${MINE} and p.state = 'discarded'
         and ((p.record_offset, p.record_index) < ($6::bigint, $7::int) or (p.generation, p.partition) <> ($4::int, $5::int))
         and (p.inserted_at, p.history, p.lsn, p.idx, p.part) < (
           select d.inserted_at, d.history, d.lsn, d.idx, d.part from tailrace.parked d where d.sink_id = $3::text::uuid and d.state = 'discarded'
           order by d.inserted_at desc, d.history desc, d.lsn desc, d.idx desc, d.part desc offset ${KEPT_DISCARDED - 1} limit 1)`,
      [below.offset, below.index],
    )
  }

  /** The generation's last pack was met and nothing before it is unfinished, parked messages aside. */
  async recordDrained(): Promise<void> {
    await this.#write(
      `insert into tailrace.drained_partition as d (sink_id, generation, partition) select $3::text::uuid, $4::int, $5::int from owner
       on conflict (sink_id, generation, partition) do update set drained_at = d.drained_at`,
      [],
    )
  }

  /** What a former owner left uncounted, when rows came or went in another way than by it. */
  async #countAnew(): Promise<void> {
    await this.#write(
      `insert into tailrace.parked_backlog as b (sink_id, generation, partition, bytes)
       select $3::text::uuid, $4::int, $5::int, (select coalesce(sum(${BYTES}), 0) from tailrace.parked where ${MINE} and state = 'open') from owner
       on conflict (sink_id, generation, partition) do update set bytes = excluded.bytes`,
      [],
    )
  }

  /** Which of the rows, as more conditions on `p`, and the parameters from $6 on that they need. */
  #choose(chosen: Chosen): Readonly<{ condition: string; params: readonly unknown[] }> {
    if (chosen === 'open') return { condition: '', params: [] }
    if (chosen === 'failing') return { condition: 'and p.attempts > 0', params: [] }
    const named = 'select * from unnest($6::int[], $7::int[], $8::bigint[], $9::int[])'
    return {
      condition: `and (p.generation, p.partition, p.record_offset, p.record_index) in (${named})`,
      params: this.#names(chosen),
    }
  }

  #names(refs: readonly Omit<ParkedRef, 'key'>[]): unknown[] {
    const origins = refs.map(({ origin }) => origin ?? this.#key)
    return [
      origins.map(({ generation }) => generation),
      origins.map(({ partition }) => partition),
      refs.map(({ offset }) => offset),
      refs.map(({ index }) => index),
    ]
  }

  #ref(row: Row): ParkedRef {
    const offset = Number(row.record_offset)
    const index = Number(row.record_index)
    const origin = { generation: Number(row.generation), partition: Number(row.partition) }
    if (origin.generation === this.#key.generation && origin.partition === this.#key.partition)
      return { key: this.#grouping ? Number(row.group_hash) : refKey(offset, index), offset, index }
    return { key: this.#grouping ? Number(row.group_hash) : this.#keyElsewhere(nameOf(offset, index, origin)), offset, index, origin }
  }

  #keyElsewhere(name: number | string): number {
    const known = this.#keysElsewhere.get(name) ?? -1 - this.#keysElsewhere.size
    this.#keysElsewhere.set(name, known)
    return known
  }

  /**
   * @param options what to return of the rows written; whether they add to the open ones (1) or were of them (-1), and are to be counted as parked
   * @throws EngineError PARTITION_FENCED: another owner has taken over; STATE_UNAVAILABLE
   */
  async #write(
    sql: string,
    params: readonly unknown[],
    { returning, adds = 0, parks = false }: Readonly<{ returning?: string; adds?: -1 | 0 | 1; parks?: boolean }> = {},
  ): Promise<readonly Row[]> {
    const columns = [returning ?? '1 as one', ...(adds === 0 ? [] : [`${BYTES} as bytes`])].join(', ')
    const counted = `, counted as (
       insert into tailrace.parked_backlog as b (sink_id, generation, partition, bytes)
       select $3::text::uuid, $4::int, $5::int, ${adds} * sum(bytes) from written having count(*) > 0
       on conflict (sink_id, generation, partition) do update set bytes = b.bytes + excluded.bytes)`
    const parked = `, parked as (
       update tailrace.term set parked = parked + 1 where kind = 'partition' and key = $1::text and term = $2::bigint and exists (select from written))`
    const owner = { key: this.#key, term: this.term }
    return writeAsOwner(this.#query, owner, sql, params, {
      returning: columns,
      further: `${adds === 0 ? '' : counted}${parks ? parked : ''}`,
      lock: parks ? 'no key update' : 'share',
    })
  }
}

/**
 * Which partitions own messages that earlier generations have named; finished and unknown ones are left out.
 * @param states which are looked for
 * @throws EngineError STATE_UNAVAILABLE
 */
export async function findParked(
  query: Query,
  sinkId: string,
  { generations, partitions, offsets, indexes }: OlderRefs,
  states: readonly ('open' | 'discarded')[] = ['open'],
): Promise<OwnedRefs[]> {
  const { rows } = await ask(
    query,
    `select p.owner_generation, p.owner_partition, p.generation, p.partition, array_agg(p.record_offset) as offsets, array_agg(p.record_index) as indexes
     from tailrace.parked p join unnest($2::int[], $3::int[], $4::bigint[], $5::int[]) as r (g, p, o, i)
       on p.generation = r.g and p.partition = r.p and p.record_offset = r.o and p.record_index = r.i
     where p.sink_id = $1::text::uuid and p.state = any ($6) group by 1, 2, 3, 4`,
    [sinkId, generations, partitions, offsets, indexes, states],
  )
  return rows.map((row) => ({
    owner: { generation: Number(row.owner_generation), partition: Number(row.owner_partition) },
    origin: { generation: Number(row.generation), partition: Number(row.partition) },
    refs: { offsets: (row.offsets as unknown[]).map(Number), indexes: (row.indexes as unknown[]).map(Number) },
  }))
}
