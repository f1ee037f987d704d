/**
 * Keeps in the state database what a log in Kafka can't rely on Kafka for: a checkpoint of every partition's commit, because Kafka
 * forgets commits of groups without members and bounds what may stand beside an offset, and how far each source has come
 * (docs/rules.md, rules 12 and 18). Every write is refused when a later owner exists or has written.
 */
import { EngineError } from '../../errors.ts'
import { formatLsn } from '../../lsn.ts'
import { PART } from '../../position.ts'
import { ask } from '../../state/asking.ts'
import type { Query } from '../../postgres/query.ts'
import { rowsOf } from '../../postgres/rows.ts'
import {
  commitFromJson,
  commitToJson,
  generationRead,
  type Reached,
  type ReaderName,
  type StoredCommit,
  type TopicName,
  type TopicPartition,
} from '../log.ts'
import type { Numbered } from './commit-text.ts'

/** The rows of one log in the state database. */
export class SecondMemory {
  readonly #query: Query
  readonly #log: string

  /** @param log identity of the log */
  constructor(query: Query, log: string) {
    this.#query = query
    this.#log = log
  }

  /** @throws EngineError PARTITION_FENCED, STATE_UNAVAILABLE */
  async saveCheckpoint(reader: ReaderName, partition: number, { commit, number }: Numbered): Promise<void> {
    const { rows } = await ask(
      this.#query,
      `insert into tailrace.log_checkpoint as c (log, topic, partition, term, number, content)
       select $1::text, $2::text, $3::int, $4::bigint, $5::bigint, $6::jsonb
       where not exists (select from tailrace.term where kind = 'partition' and key = $7::text || '/' || $3::int and term > $4::bigint)
       on conflict (log, topic, partition) do update
         set term = excluded.term, number = excluded.number, content = excluded.content, saved_at = now()
         where (c.term, c.number) <= (excluded.term, excluded.number)
       returning partition`,
      [this.#log, reader, partition, commit.term, number, JSON.stringify(commitToJson(commit)), generationRead(reader)],
    )
    if (rows.length > 0) return
    throw new EngineError('PARTITION_FENCED', `another process owns partition ${partition} of ${reader}`, { reader, partition })
  }

  async checkpoint(reader: ReaderName, partition: number): Promise<Numbered | undefined> {
    const rows = await ask(
      this.#query,
      'select number, content from tailrace.log_checkpoint where log = $1 and topic = $2 and partition = $3',
      [this.#log, reader, partition],
    )
    const [row] = rowsOf({ number: 'int', content: storedCommit }, rows)
    return row && { number: row.number, commit: commitFromJson(row.content) }
  }

  async dropCheckpoints(reader: ReaderName): Promise<void> {
    await ask(this.#query, 'delete from tailrace.log_checkpoint where log = $1 and topic = $2', [this.#log, reader])
  }

  /** Lists the readers that have checkpoints of a topic. */
  async readersOf(topic: TopicName): Promise<readonly ReaderName[]> {
    const { rows } = await ask(
      this.#query,
      `select distinct topic as reader from tailrace.log_checkpoint where log = $1 and (topic = $2 or starts_with(topic, $2 || '@'))`,
      [this.#log, topic],
    )
    return rows.map(({ reader }) => String(reader))
  }

  /** Where partitions of a source ended, of topics that have not been deleted. @param only this one */
  async ends(source: string, only?: TopicPartition): Promise<readonly (TopicPartition & Readonly<{ next: number }>)[]> {
    const rows = await ask(
      this.#query,
      `select topic, partition, next from tailrace.log_end e
       where log = $1 and source = $2 and ($3::text is null or (topic = $3 and partition = $4))
         and exists (select from tailrace.log_topic t where t.log = e.log and t.topic = e.topic) order by topic, partition`,
      [this.#log, source, only?.topic ?? null, only?.partition ?? null],
    )
    return rowsOf({ topic: 'text', partition: 'int', next: 'int' }, rows)
  }

  /** Drops where the partitions of a topic end that is about to be deleted. */
  async dropEnds(topic: TopicName): Promise<void> {
    await ask(this.#query, 'delete from tailrace.log_end where log = $1 and topic = $2', [this.#log, topic])
  }

  /**
   * Keeps the greater position and the greater ends: what a run made durable stays so, whoever tells it later.
   * @param ends the next offsets of partitions that were appended to, by "topic/partition"
   */
  async saveProgress(source: string, { position, transaction }: Reached, ends: ReadonlyMap<string, number>): Promise<void> {
    const { history, lsn, idx, part } = position
    const partitions = [...ends.keys()].map((key) => ({
      topic: key.slice(0, key.lastIndexOf('/')),
      key: key.slice(key.lastIndexOf('/') + 1),
    }))
    await ask(
      this.#query,
      `with ends as (
         insert into tailrace.log_end as e (log, source, topic, partition, next)
         select $1, $2, r.topic, r.partition, r.next from unnest($9::text[], $10::int[], $11::bigint[]) as r (topic, partition, next)
         on conflict (log, topic, partition) do update set next = greatest(e.next, excluded.next), source = excluded.source
       )
       insert into tailrace.log_progress as p (log, source, history, lsn, idx, part, xid, commit_us) values ($1, $2, $3, $4, $5, $6, $7, $8)
       on conflict (log, source) do update
         set history = excluded.history, lsn = excluded.lsn, idx = excluded.idx, part = excluded.part,
             xid = excluded.xid, commit_us = excluded.commit_us, saved_at = now()
         where (p.history, p.lsn, p.idx, p.part) < (excluded.history, excluded.lsn, excluded.idx, excluded.part)`,
      [
        this.#log,
        source,
        history,
        formatLsn(lsn),
        idx,
        part,
        transaction?.xid,
        transaction?.commitTimeUs,
        partitions.map(({ topic }) => topic),
        partitions.map(({ key }) => Number(key)),
        [...ends.values()],
      ],
    )
  }

  /** Says once for all which offset the first record of a partition stands for. */
  async saveBase(topic: TopicName, partition: number, base: number): Promise<void> {
    await ask(this.#query, 'insert into tailrace.log_base (log, topic, partition, base) values ($1, $2, $3, $4)', [
      this.#log,
      topic,
      partition,
      base,
    ])
  }

  /** By partition. */
  async bases(topic: TopicName): Promise<readonly number[]> {
    const rows = await ask(this.#query, 'select partition, base from tailrace.log_base where log = $1 and topic = $2', [this.#log, topic])
    const bases: number[] = []
    for (const { partition, base } of rowsOf({ partition: 'int', base: 'int' }, rows)) bases[partition] = base
    return bases
  }

  async dropBases(topic: TopicName): Promise<void> {
    await ask(this.#query, 'delete from tailrace.log_base where log = $1 and topic = $2', [this.#log, topic])
  }

  async dropProgress(source: string): Promise<void> {
    await ask(this.#query, 'delete from tailrace.log_progress where log = $1 and source = $2', [this.#log, source])
  }

  async progress(source: string): Promise<Reached | undefined> {
    const rows = await ask(
      this.#query,
      `select history, lsn, idx, part, xid, commit_us as "commitTimeUs" from tailrace.log_progress where log = $1 and source = $2`,
      [this.#log, source],
    )
    const [row] = rowsOf({ history: 'int', lsn: 'lsn', idx: 'int', part: 'int', xid: 'int?', commitTimeUs: 'number?' }, rows)
    if (!row) return undefined
    const { part, xid, commitTimeUs, ...place } = row
    return {
      position: { ...place, part: part === PART.tombstone ? PART.tombstone : PART.row },
      ...(xid !== undefined && commitTimeUs !== undefined ? { transaction: { xid, commitTimeUs } } : {}),
    }
  }
}

/** As this file has written it. */
const storedCommit = (document: unknown): StoredCommit => document as StoredCommit
