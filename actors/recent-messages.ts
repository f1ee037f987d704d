/**
 * The last few messages of each table that sinks of this process have read, for people who write functions: copies, bounded
 * in number and size. Of sinks that are sensitive nothing is kept.
 */
import type { Pack } from '../engine/log/pack.ts'
import { MESSAGE_FLAG } from '../engine/log/pack.ts'
import { formatLsn } from '../engine/lsn.ts'
import type { Sink } from '../engine/state/resources.ts'
import { parseExact } from '../transforms/exact-json.ts'

/** A message as it is before its metadata are completed. */
export type RecentMessage = Readonly<{ record: unknown; changes: unknown; action: string; metadata: Readonly<Record<string, unknown>> }>
/** @property body JSON of the message without its outer braces, its metadata left open */
type Kept = Readonly<{ sinkId: string; body: Buffer }>

const PER_TABLE = 10
const MAX_TABLES = 200
const MAX_BYTES = 16 * 1024
/** A sink under load is looked at now and then. */
const EVERY_MS = 100

export class RecentMessages {
  /** by database and oid of the table, the table that was seen last at the end; messages by their position */
  readonly #tables = new Map<string, Map<string, Kept>>()
  readonly #lookedAt = new Map<string, number>()

  /** A pack was read for a sink. */
  note({ id, databaseId, sensitive }: Sink, pack: Pack): void {
    const now = performance.now()
    if (sensitive || now < (this.#lookedAt.get(id) ?? -Infinity) + EVERY_MS) return
    this.#lookedAt.set(id, now)
    for (let i = Math.max(0, pack.count - PER_TABLE); i < pack.count; i++) {
      const [start, end] = [pack.bodyStart(i), pack.bodyEnd(i)]
      if ((pack.flags(i) & (MESSAGE_FLAG.tombstone | MESSAGE_FLAG.discarded)) !== 0 || end - start > MAX_BYTES) continue
      const key = `${databaseId} ${pack.relation(i)}`
      const table = this.#tables.get(key) ?? new Map<string, Kept>()
      this.#tables.delete(key)
      this.#tables.set(key, table)
      const { history, lsn, idx } = pack.position(i)
      table.set(`${history} ${formatLsn(lsn)} ${idx}`, { sinkId: id, body: Buffer.from(pack.buffer.subarray(start, end)) })
      if (table.size > PER_TABLE) table.delete(table.keys().next().value as string)
    }
    while (this.#tables.size > MAX_TABLES) this.#tables.delete(this.#tables.keys().next().value as string)
  }

  /**
   * @param table `schema.table` @param sinks as they are now: what has become sensitive is not told any more
   * @returns newest last
   */
  of(databaseId: string, table: string, sinks: readonly Sink[]): readonly RecentMessage[] {
    const open = new Set(sinks.filter(({ sensitive }) => !sensitive).map(({ id }) => id))
    return [...this.#tables]
      .filter(([key]) => key.startsWith(`${databaseId} `))
      .flatMap(([, kept]) => [...kept.values()])
      .filter(({ sinkId }) => open.has(sinkId))
      .map(({ body }) => parseExact(`{${body.toString('utf8')}}}`) as RecentMessage)
      .filter(({ metadata }) => `${String(metadata['table_schema'])}.${String(metadata['table_name'])}` === table)
      .slice(-PER_TABLE)
  }
}
