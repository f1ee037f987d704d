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
import { MESSAGE_FLAG } from '../../log/pack.ts'
import type { Query, Row } from '../../postgres/query.ts'
import { rowsOf } from '../../postgres/rows.ts'
import { ask } from '../../state/asking.ts'
import { refList, type OlderRefs, type RefList } from '../ack-id.ts'
import { termKey, writeAsOwner, type PartitionKey } from '../fenced-write.ts'
import {
  nameOf,
  refKey,
  type LoadedMessage,
  type Origin,
  type ParkedGroup,
  type ParkedGroupFacts,
  type ParkedName,
  type ParkedRef,
} from './parked-groups.ts'
import { INSERTED, insertedOf, MESSAGE_COLUMNS, toView } from './parked-row.ts'
import type { Failed, FailedMessage, Move } from './parking.ts'

/** Counts messages that were given up, and tells when the last of them was. */
export type Discards = Readonly<{ messages: number; lastAt: Date }>
/** Chooses open messages: some by name, those that have failed at least once, or all. */
export type Chosen = readonly ParkedName[] | 'failing' | 'open'
/** Says which partition owns parked messages that are named by an earlier generation. */
export type OwnedRefs = Readonly<{ owner: Origin; origin: Origin; refs: RefList }>

/** So many attempts of a message are kept, the newest. */
const KEPT_ATTEMPTS = 10
/** At most so many messages are ended by hand in one statement. */
export const MAX_ENDED = 1_000
/** So many discarded messages of a sink are kept, the newest (docs/webhooks.md). */
const KEPT_DISCARDED = 1_000

/** The rows of the partition, in a write of its owner and in a question. */
const MINE = `sink_id = $3::text::uuid and owner_generation = $4::int and owner_partition = $5::int`
const MINE_READ = `sink_id = $1::text::uuid and owner_generation = $2::int and owner_partition = $3::int`
const BY_POSITION = 'history, lsn, idx, part'
/** The columns that name a row, in SQL. */
const NAME = 'p.group_hash, p.generation, p.partition, p.record_offset, p.record_index'
const NAME_COLUMNS = { group_hash: 'int', generation: 'int', partition: 'int', record_offset: 'int', record_index: 'int' } as const
/** Gives, in SQL, the rows that some messages name, by four parameters. */
const named = (first: number) => `unnest($${first}::int[], $${first + 1}::int[], $${first + 2}::bigint[], $${first + 3}::int[])`
const IS_NAMED = 'p.generation = r.g and p.partition = r.p and p.record_offset = r.o and p.record_index = r.i'
/** Gives, in SQL, the attempts of a row with another one in front. */
const prepended = (entry: string) =>
  `jsonb_path_query_array(jsonb_build_array(${entry}::jsonb) || p.attempt_log, '$[0 to ${KEPT_ATTEMPTS - 1}]')`
const BYTES = 'octet_length(record_key) + octet_length(group_key) + octet_length(body)'

const listOf = (value: unknown): readonly unknown[] => (Array.isArray(value) ? value : [])
const numbersOf = (value: unknown): number[] => listOf(value).map(Number)

/** The parked messages of one partition, as its owner reads and writes them. */
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

  /** Counts how often messages of the partition have been parked or discarded: by all its owners, durably, as far as that was answered. */
  get parked(): number {
    return this.#parked
  }

  /**
   * Makes this process the owner: every write of a former one is refused from here on. Comes before reading anything: a replay that
   * is being put into effect holds the row of the generation, and what is read from here on is what it leaves.
   * @param options where the generation is read, if that may change
   * @throws EngineError GENERATION_WAITS: it is handed over, or read elsewhere, and whoever was frozen meanwhile must not stand for
   * it again; STATE_UNAVAILABLE
   */
  static async takeOver(
    query: Query,
    key: PartitionKey,
    { grouping, holder, topic }: Readonly<{ grouping: boolean; holder: string; topic?: TopicName }>,
  ): Promise<ParkedStore> {
    const { sinkId, generation } = key
    const taken = await ask(
      query,
      `with held as materialized (
         select drained_at is not null or topic <> coalesce($5, topic) as is_over from tailrace.generation where sink_id = $3::text::uuid and generation = $4 for share)
       insert into tailrace.term as t (kind, key, term, holder)
       select 'partition', $1, 1, $2 from (select bool_or(is_over) as is_over from held) as waited where is_over is not true
       on conflict (kind, key) do update set term = t.term + 1, holder = excluded.holder, taken_at = now() returning term, parked`,
      [termKey(key), holder, sinkId, generation, topic ?? null],
    )
    const [owner] = rowsOf({ term: 'int', parked: 'int' }, taken)
    if (!owner)
      throw new EngineError('GENERATION_WAITS', `generation ${generation} is handed over, or has got another topic`, { generation })
    return new ParkedStore(query, key, grouping, owner)
  }

  // ── what is there ───────────────────────────────────────────────────────────────────────────────

  /**
   * Reads what a new owner must know before it reads the log.
   * @param from the committed offset: what the store has of it and above must be skipped there
   * @returns one fact per open group (without grouping: per message), and the messages to skip
   */
  async load(from: MessageRef): Promise<{ groups: ParkedGroupFacts[]; refs: RefList }> {
    await this.#countAnew()
    const hidden = 'extract(epoch from next_try_at - now())::float8 * 1000'
    const columns = `group_hash, generation, partition, record_offset, record_index, attempts, extract(epoch from commit_time)::float8 as committed, ${hidden} as hidden`
    const open = await this.#ask(
      this.#grouping
        ? `select distinct on (group_hash) ${columns}, count(*) over (partition by group_hash) as open,
             max(${hidden}) over (partition by group_hash order by ${BY_POSITION} rows between 1 following and unbounded following) as later_hidden
           from tailrace.parked where ${MINE_READ} and state = 'open' order by group_hash, ${BY_POSITION}`
        : `select ${columns}, 1 as open, null::float8 as later_hidden
           from tailrace.parked where ${MINE_READ} and state = 'open' order by ${BY_POSITION}`,
    )
    const above = await this.#ask(
      `select record_offset, record_index from tailrace.parked
       where sink_id = $1::text::uuid and generation = $2 and partition = $3 and record_offset >= $4 order by record_offset, record_index`,
      [from.offset],
    )
    const refs = refList()
    for (const { record_offset: offset, record_index: index } of rowsOf({ record_offset: 'int', record_index: 'int' }, above)) {
      refs.offsets.push(offset)
      refs.indexes.push(index)
    }
    const facts = { attempts: 'int', committed: 'number', open: 'int', hidden: 'number?', later_hidden: 'number?' } as const
    const groups = rowsOf({ ...NAME_COLUMNS, ...facts }, open).map((row) => ({
      ...this.#ref(row),
      open: row.open,
      deliveries: row.attempts,
      commitTimeUs: row.committed * 1_000_000,
      hiddenMs: row.hidden ?? 0,
      laterHiddenMs: row.later_hidden ?? 0,
    }))
    return { groups, refs }
  }

  /** Messages that were discarded in the last day: for their size, and for other reasons. */
  async discards(): Promise<Readonly<{ bySize: Discards; others: Discards }>> {
    const answer = await this.#ask(
      `select by_size, count(*) as messages, max(at) as last_at from (
         select flags & ${MESSAGE_FLAG.discarded} <> 0 as by_size, coalesce((attempt_log -> 0 ->> 'at')::timestamptz, inserted_at) as at
         from tailrace.parked where ${MINE_READ} and state = 'discarded') d
       where at > now() - interval '1 day' group by by_size`,
    )
    const found = rowsOf({ by_size: 'boolean', messages: 'int', last_at: 'time' }, answer)
    const of = (bySize: boolean): Discards => {
      const { messages = 0, last_at: lastAt = new Date(0) } = found.find(({ by_size }) => by_size === bySize) ?? {}
      return { messages, lastAt }
    }
    return { bySize: of(true), others: of(false) }
  }

  /**
   * The first open messages of each group, lowest first: so many that their bodies are about `maxBytes`, and one at least.
   * @param each at most so many of a group, and one of those that have failed
   */
  async fetch(
    groups: readonly ParkedGroup[],
    maxBytes: number,
    each = 1,
  ): Promise<(LoadedMessage & ParkedRef & Readonly<{ attempts: number }>)[]> {
    const first = !this.#grouping
      ? `select p.* from tailrace.parked p join ${named(4)} as r (g, p, o, i) on ${IS_NAMED} where ${MINE_READ} and state = 'open'`
      : each === 1
        ? `select distinct on (group_hash) * from tailrace.parked
           where ${MINE_READ} and state = 'open' and group_hash = any ($4::bigint[]) order by group_hash, ${BY_POSITION}`
        : `select p.* from unnest($4::bigint[]) as g (hash) cross join lateral (select * from tailrace.parked
           where ${MINE_READ} and state = 'open' and group_hash = g.hash order by ${BY_POSITION} limit ${Math.floor(each)}) p`
    const answer = await this.#ask(
      `select * from (select f.*, sum(octet_length(f.body)) over (order by ${BY_POSITION}) - octet_length(f.body) as before from (${first}) f) b
       where before < ${Math.floor(maxBytes)} order by ${BY_POSITION}`,
      this.#grouping ? [groups.map(({ key }) => key)] : this.#names(groups),
    )
    return rowsOf({ ...NAME_COLUMNS, ...MESSAGE_COLUMNS, attempts: 'int', attempt_log: listOf }, answer).map((row) => ({
      ...this.#ref(row),
      view: toView(row),
      attempts: row.attempts,
      formerAttempts: row.attempt_log,
    }))
  }

  // ── what is written ─────────────────────────────────────────────────────────────────────────────

  /** Writes messages as open or as discarded; durable when it settles. A row that is there already stays as it is. */
  async insert(moves: readonly Move[]): Promise<void> {
    const written = await this.#write(
      `insert into tailrace.parked (sink_id, generation, partition, owner_generation, owner_partition, ${INSERTED.columns})
       select $3::text::uuid, $4::int, $5::int, $4::int, $5::int, ${INSERTED.values} from owner, ${INSERTED.rows}
       on conflict (sink_id, history, lsn, idx, part) do nothing`,
      insertedOf(moves),
      { wasOpen: false, parks: true },
    )
    if (written.length > 0) this.#parked++
  }

  /** Records that open messages have failed once more; those that are not to be tried again are discarded. @returns those that were open */
  failed(again: readonly FailedMessage[]): Promise<ParkedRef[]> {
    const of = (value: (failed: Failed) => unknown) => again.map(({ failed }) => value(failed))
    return this.#change(
      `update tailrace.parked p set error = r.error, attempts = r.attempts, next_try_at = now() + r.ms * interval '1 ms', state = r.s,
         attempt_log = ${prepended('r.log')}
       from owner, unnest($6::int[], $7::int[], $8::bigint[], $9::int[], $10::text[], $11::int[], $12::float8[], $13::text[], $14::text[])
         as r (g, p, o, i, error, attempts, ms, log, s)
       where ${MINE} and ${IS_NAMED} and p.state = 'open'`,
      [
        ...this.#names(again),
        of(({ error }) => error),
        of(({ attempts }) => attempts),
        of(({ retryInMs }) => retryInMs ?? null),
        of(({ record }) => JSON.stringify(record)),
        of(({ retryInMs }) => (retryInMs === undefined ? 'discarded' : 'open')),
      ],
      { wasOpen: true },
    )
  }

  /** Ends open messages. @returns those that were open: unknown and repeated ones are ignored */
  end(refs: readonly ParkedName[], state: 'done' | 'discarded', reason: string | null = null): Promise<ParkedRef[]> {
    return this.#change(
      `update tailrace.parked p set state = $10, error = coalesce($11, p.error) from owner, ${named(6)} as r (g, p, o, i)
       where ${MINE} and ${IS_NAMED} and p.state = 'open'`,
      [...this.#names(refs), state, reason],
      { wasOpen: true },
    )
  }

  /** Open messages are to be tried at once. @returns those that were backing off */
  hurry(chosen: Chosen): Promise<ParkedRef[]> {
    const { condition, params } = this.#choose(chosen)
    return this.#change(
      `update tailrace.parked p set next_try_at = null from owner where ${MINE} and p.state = 'open' and p.next_try_at > now() ${condition}`,
      params,
    )
  }

  /**
   * Discarded messages are to be delivered after all, as if they had never failed. Those that are on record without their
   * body stay as they are. @param refs absent: all of them
   */
  reopen(refs: readonly ParkedName[] | undefined, entry: Failed['record']): Promise<ParkedRef[]> {
    const { condition, params } = this.#choose(refs ?? 'open')
    return this.#change(
      `update tailrace.parked p set state = 'open', attempts = 0, next_try_at = null, flags = p.flags | ${MESSAGE_FLAG.reopened},
         attempt_log = ${prepended(`$${6 + params.length}`)}
       from owner where ${MINE} and p.state = 'discarded' and p.flags & ${MESSAGE_FLAG.discarded} = 0 ${condition}`,
      [...params, JSON.stringify(entry)],
      { wasOpen: false },
    )
  }

  /** @returns the open messages whose newest entry is this one of `reopen`, also if that did not answer */
  async reopenedWith(entry: Failed['record']): Promise<ParkedRef[]> {
    const found = await this.#ask(
      `select ${NAME} from tailrace.parked p where ${MINE_READ} and p.state = 'open' and p.attempt_log -> 0 = $4::jsonb order by ${BY_POSITION}`,
      [JSON.stringify(entry)],
    )
    return rowsOf(NAME_COLUMNS, found).map((row) => this.#ref(row))
  }

  /**
   * Gives up open messages, with this entry among their attempts, or ends them as if delivered. @returns those that were open, at
   * most MAX_ENDED of those that are not named
   */
  endChosen(chosen: Chosen, state: 'done' | 'discarded', entry: Failed['record']): Promise<ParkedRef[]> {
    const { condition, params } = this.#choose(chosen)
    const next = 6 + params.length
    const some = `and p.ctid = any (array (select p.ctid from tailrace.parked p where ${MINE} and p.state = 'open' ${condition} limit ${MAX_ENDED}))`
    return this.#change(
      `update tailrace.parked p set state = $${next}, next_try_at = null, error = coalesce(p.error, $${next + 1}::jsonb ->> 'message'),
         attempt_log = ${prepended(`$${next + 1}`)}
       from owner where ${MINE} and p.state = 'open' ${typeof chosen === 'string' ? some : condition}`,
      [...params, state, JSON.stringify(entry)],
      { wasOpen: true },
    )
  }

  /**
   * Removes, of what is discarded, all but the newest rows of the sink, and what is done: below the durably committed message, and
   * what is done of generations that no log holds any more.
   */
  async removeDone(below: MessageRef): Promise<void> {
    const isBelow = `((p.record_offset, p.record_index) < ($6::bigint, $7::int) or (p.generation, p.partition) <> ($4::int, $5::int))`
    const params = [below.offset, below.index]
    await this.#write(`delete from tailrace.parked p using owner where ${MINE} and p.state = 'done' and ${isBelow}`, params)
    // as long as the log may bring its message again, a discarded row keeps it from being delivered
    await this.#write(
      `delete from tailrace.parked p using owner where ${MINE} and p.state = 'discarded' and ${isBelow}
         and (p.inserted_at, p.history, p.lsn, p.idx, p.part) < (
           select d.inserted_at, d.history, d.lsn, d.idx, d.part from tailrace.parked d where d.sink_id = $3::text::uuid and d.state = 'discarded'
           order by d.inserted_at desc, d.history desc, d.lsn desc, d.idx desc, d.part desc offset ${KEPT_DISCARDED - 1} limit 1)`,
      params,
    )
  }

  /** The generation's last pack was met and nothing before it is unfinished, parked messages aside. */
  async recordDrained(): Promise<void> {
    await this.#write(
      `insert into tailrace.drained_partition as d (sink_id, generation, partition) select $3::text::uuid, $4::int, $5::int from owner
       on conflict (sink_id, generation, partition) do update set drained_at = d.drained_at`,
    )
  }

  /** Counts the rows anew where a former owner left them uncounted, because they came or went in another way than by it. */
  async #countAnew(): Promise<void> {
    await this.#write(
      `insert into tailrace.parked_backlog as b (sink_id, generation, partition, bytes)
       select $3::text::uuid, $4::int, $5::int, (select coalesce(sum(${BYTES}), 0) from tailrace.parked where ${MINE} and state = 'open') from owner
       on conflict (sink_id, generation, partition) do update set bytes = excluded.bytes`,
    )
  }

  // ── inside ──────────────────────────────────────────────────────────────────────────────────────

  /** Gives, in SQL, conditions on `p` that choose rows, and the parameters from $6 on that they need. */
  #choose(chosen: Chosen): Readonly<{ condition: string; params: readonly unknown[] }> {
    if (chosen === 'open') return { condition: '', params: [] }
    if (chosen === 'failing') return { condition: 'and p.attempts > 0', params: [] }
    const condition = `and (p.generation, p.partition, p.record_offset, p.record_index) in (select * from ${named(6)})`
    return { condition, params: this.#names(chosen) }
  }

  /** The four parameters of `named`. */
  #names(refs: readonly ParkedName[]): unknown[] {
    const origins = refs.map(({ origin }) => origin ?? this.#key)
    return [
      origins.map(({ generation }) => generation),
      origins.map(({ partition }) => partition),
      refs.map(({ offset }) => offset),
      refs.map(({ index }) => index),
    ]
  }

  #ref(row: Readonly<Record<keyof typeof NAME_COLUMNS, number>>): ParkedRef {
    const { group_hash: group, generation, partition, record_offset: offset, record_index: index } = row
    const isOwn = generation === this.#key.generation && partition === this.#key.partition
    const name = isOwn ? { offset, index } : { offset, index, origin: { generation, partition } }
    if (this.#grouping) return { key: group, ...name }
    return { key: isOwn ? refKey(offset, index) : this.#keyElsewhere(nameOf(name)), ...name }
  }

  #keyElsewhere(name: number | string): number {
    const known = this.#keysElsewhere.get(name) ?? -1 - this.#keysElsewhere.size
    this.#keysElsewhere.set(name, known)
    return known
  }

  /** Asks for rows of the partition, which is $1 to $3; further parameters are from $4 on. @throws EngineError STATE_UNAVAILABLE */
  #ask(sql: string, params: readonly unknown[] = []): ReturnType<Query> {
    const { sinkId, generation, partition } = this.#key
    return ask(this.#query, sql, [sinkId, generation, partition, ...params])
  }

  /** Changes rows `p`. @returns what names them */
  async #change(sql: string, params: readonly unknown[], options: WriteOptions = {}): Promise<ParkedRef[]> {
    return rowsOf(NAME_COLUMNS, { rows: await this.#write(sql, params, { ...options, returning: NAME }) }).map((row) => this.#ref(row))
  }

  /**
   * @param options what to return of the rows written; whether they were open, if they may come to be or to be no more, for the backlog;
   *   whether they are to be counted as parked
   * @throws EngineError PARTITION_FENCED: another owner has taken over; STATE_UNAVAILABLE
   */
  async #write(
    sql: string,
    params: readonly unknown[] = [],
    { returning, wasOpen, parks = false }: WriteOptions = {},
  ): Promise<readonly Row[]> {
    const added = wasOpen ? `case state when 'open' then 0 else -(${BYTES}) end` : `case state when 'open' then ${BYTES} else 0 end`
    const counted = `, counted as (
       insert into tailrace.parked_backlog as b (sink_id, generation, partition, bytes)
       select $3::text::uuid, $4::int, $5::int, sum(bytes) from written having sum(bytes) <> 0
       on conflict (sink_id, generation, partition) do update set bytes = b.bytes + excluded.bytes)`
    const parked = `, parked as (
       update tailrace.term set parked = parked + 1 where kind = 'partition' and key = $1::text and term = $2::bigint and exists (select from written))`
    return writeAsOwner(this.#query, { key: this.#key, term: this.term }, sql, params, {
      returning: [returning ?? '1 as one', ...(wasOpen === undefined ? [] : [`${added} as bytes`])].join(', '),
      further: `${wasOpen === undefined ? '' : counted}${parks ? parked : ''}`,
      lock: parks ? 'no key update' : 'share',
    })
  }
}

type WriteOptions = Readonly<{ returning?: string; wasOpen?: boolean; parks?: boolean }>

/**
 * Finds the partitions that own messages that earlier generations have named; finished and unknown ones are left out.
 * @param states which are looked for
 * @throws EngineError STATE_UNAVAILABLE
 */
export async function findParked(
  query: Query,
  sinkId: string,
  { generations, partitions, offsets, indexes }: OlderRefs,
  states: readonly ('open' | 'discarded')[] = ['open'],
): Promise<OwnedRefs[]> {
  const found = await ask(
    query,
    `select p.owner_generation, p.owner_partition, p.generation, p.partition, array_agg(p.record_offset) as offsets, array_agg(p.record_index) as indexes
     from tailrace.parked p join ${named(2)} as r (g, p, o, i) on ${IS_NAMED}
     where p.sink_id = $1::text::uuid and p.state = any ($6) group by 1, 2, 3, 4`,
    [sinkId, generations, partitions, offsets, indexes, states],
  )
  const columns = { owner_generation: 'int', owner_partition: 'int', generation: 'int', partition: 'int' } as const
  return rowsOf({ ...columns, offsets: numbersOf, indexes: numbersOf }, found).map((row) => ({
    owner: { generation: row.owner_generation, partition: row.owner_partition },
    origin: { generation: row.generation, partition: row.partition },
    refs: { offsets: row.offsets, indexes: row.indexes },
  }))
}
