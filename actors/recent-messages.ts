/**
 * The last few messages of each table that sinks of this process have read, for people who write functions: copies, bounded
 * in number and size. Of sinks that are sensitive nothing is kept.
 *
 * A sink under load is looked at now and then: at its first pack, and then at the newest packs of each tenth of a second, of
 * whichever partitions they are, so that the last changes before it falls silent are there.
 */
import { type Pack, MESSAGE_FLAG } from '../engine/log/pack.ts'
import { comparePositions, type Position } from '../engine/position.ts'
import type { Sink } from '../engine/state/resources.ts'

/**
 * @property at its place among all of its database, as text that sorts: the same in every process
 * @property text JSON, its metadata without what belongs to one sink
 */
export type RecentMessage = Readonly<{ at: string; text: string }>
/** Asks for the last messages of a table (`schema.table`), or for the newest of each table that one of some sinks has read. */
export type RecentAsked = Readonly<{ databaseId: string } & ({ table: string } | { sinkIds: readonly string[] })>
/** @property body JSON of the message without its outer braces, its metadata left open */
type Kept = Readonly<{ sinkIds: Set<string>; body: Buffer }>

/** A sink that is not looked at for a moment, and the newest packs that it read meanwhile, oldest first. */
type Resting = { sink: Sink; readonly packs: Pack[] }

/** The last messages of one table in a pack. @property messages where each stands among all, as text, and in the pack */
type NewestOfTable = Readonly<{ relation: number; messages: readonly Readonly<{ at: string; place: number }>[] }>

const PER_TABLE = 10
const MAX_TABLES = 200
const MAX_BYTES = 16 * 1024
const EVERY_MS = 100
/** A larger pack, as large messages have, is looked at when it is read, and not held until then. */
const MAX_HELD_BYTES = 512 * 1024
/** of a pack with many tables */
const MAX_LOOKED_AT = 1_000

/** Keeps the last messages of each table that sinks of this process have read. */
export class RecentMessages {
  /** by database and oid of the table, the table that was seen last at the end; messages by their position */
  readonly #tables = new Map<string, Map<string, Kept>>()
  /** the sinks of a stream read the same packs: each is looked through once */
  readonly #newest = new WeakMap<Pack, readonly NewestOfTable[]>()
  /** by sink */
  readonly #resting = new Map<string, Resting>()

  /** A pack was read for a sink. */
  note(sink: Sink, pack: Pack): void {
    if (sink.sensitive || pack.count === 0) return
    const resting = this.#resting.get(sink.id)
    if (!resting) return this.#take(sink, [pack])
    if (pack.buffer.length > MAX_HELD_BYTES) return this.#keep(sink, pack)
    resting.sink = sink
    const { packs } = resting
    packs.splice(packs.findLastIndex((other) => comparePositions(endOf(other), endOf(pack)) <= 0) + 1, 0, pack)
    if (packs.length > PER_TABLE) packs.shift()
  }

  /** @param sinks as they are now: what has become sensitive is not told any more. @returns oldest first */
  of(asked: RecentAsked, sinks: readonly Sink[]): readonly RecentMessage[] {
    const open = new Set(sinks.filter(({ sensitive }) => !sensitive).map(({ id }) => id))
    const wanted = 'table' in asked ? open : new Set(asked.sinkIds.filter((id) => open.has(id)))
    const found = [...this.#tables]
      .filter(([key]) => key.startsWith(`${asked.databaseId} `))
      .flatMap(([, kept]) => {
        const those = [...kept]
          .filter(([, { sinkIds }]) => [...sinkIds].some((id) => wanted.has(id)))
          .map(([at, { body }]) => ({ at, text: `{${body.toString('utf8')}}}` }))
        return 'table' in asked ? those : newest(those).slice(-1)
      })
    return newest('table' in asked ? found.filter(({ text }) => tableOf(text) === asked.table) : found)
  }

  #take(sink: Sink, packs: readonly Pack[]): void {
    if (!sink.sensitive) for (const pack of packs) this.#keep(sink, pack)
    for (const table of this.#tables.keys()) {
      if (this.#tables.size <= MAX_TABLES) break
      this.#tables.delete(table)
    }
    const resting: Resting = { sink, packs: [] }
    this.#resting.set(sink.id, resting)
    setTimeout(() => this.#rested(resting), EVERY_MS).unref()
  }

  #keep({ id, databaseId }: Sink, pack: Pack): void {
    for (const { relation, messages } of this.#newestOfEach(pack)) {
      const key = `${databaseId} ${relation}`
      const table = this.#tables.get(key) ?? new Map<string, Kept>()
      this.#tables.delete(key)
      this.#tables.set(key, table)
      for (const { at, place } of messages) {
        const known = table.get(at)
        if (known) known.sinkIds.add(id)
        else {
          table.set(at, { sinkIds: new Set([id]), body: Buffer.from(pack.buffer.subarray(pack.bodyStart(place), pack.bodyEnd(place))) })
          if (table.size > PER_TABLE) table.delete(oldestOf(table))
        }
      }
    }
  }

  #newestOfEach(pack: Pack): readonly NewestOfTable[] {
    const known = this.#newest.get(pack)
    if (known) return known
    const found = newestOfEach(pack)
    this.#newest.set(pack, found)
    return found
  }

  #rested({ sink, packs }: Resting): void {
    this.#resting.delete(sink.id)
    if (packs.length > 0) this.#take(sink, packs)
  }
}

/** Joins several lists into the last messages of all, each once, oldest first. */
export function newest(messages: readonly RecentMessage[]): readonly RecentMessage[] {
  const byPlace = new Map(messages.map((message) => [message.at, message]))
  return [...byPlace.values()].toSorted((a, b) => (a.at < b.at ? -1 : 1)).slice(-PER_TABLE)
}

/** Finds the last messages of each table that can be kept, in the order of the pack; the table of the last one stands last. */
function newestOfEach(pack: Pack): readonly NewestOfTable[] {
  const tables = new Map<number, { readonly at: string; readonly place: number }[]>()
  for (let place = pack.count - 1; place >= 0 && place >= pack.count - MAX_LOOKED_AT; place--) {
    const messages = tables.get(pack.relation(place))
    if (messages?.length === PER_TABLE || (pack.flags(place) & (MESSAGE_FLAG.tombstone | MESSAGE_FLAG.discarded)) !== 0) continue
    if (pack.bodyEnd(place) - pack.bodyStart(place) > MAX_BYTES) continue
    const message = { at: placeOf(pack.position(place)), place }
    if (messages) messages.push(message)
    else tables.set(pack.relation(place), [message])
  }
  return [...tables].toReversed().map(([relation, messages]) => ({ relation, messages: messages.toReversed() }))
}

/** Partitions are read in no order. */
function oldestOf(table: ReadonlyMap<string, Kept>): string {
  let oldest = ''
  for (const at of table.keys()) if (oldest === '' || at < oldest) oldest = at
  return oldest
}

const endOf = (pack: Pack): Position => pack.position(pack.count - 1)

/** Numbers of a fixed width, so that texts sort as they do. */
const placeOf = ({ history, lsn, idx, part }: Position): string =>
  [history.toString(16).padStart(8, '0'), lsn.toString(16).padStart(16, '0'), idx.toString(16).padStart(8, '0'), part].join('.')

function tableOf(text: string): string {
  const { metadata } = JSON.parse(text) as { metadata: Readonly<Record<string, unknown>> }
  return `${String(metadata['table_schema'])}.${String(metadata['table_name'])}`
}
