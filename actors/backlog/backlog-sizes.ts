/**
 * How large the backlog of each sink is: what the guard of backlog.ts compares with its bound. It is what unfinished
 * messages take, in the log and parked in the state database, so that a sink whose messages wait there is bounded too.
 */
import { undeliveredGenerations, type UndeliveredGeneration } from '../../engine/dispatch/generations.ts'
import { topicRead, type Log, type ReaderName } from '../../engine/log/log.ts'
import type { Position } from '../../engine/position.ts'
import { ask } from '../../engine/state/asking.ts'
import type { Sink } from '../../engine/state/resources.ts'
import type { Query } from '../../engine/wal/connection/slot.ts'
import type { BacklogOf, Relief } from './backlog.ts'

const MB = 1024 * 1024
/** How old may be what a backlog's size is made of. */
const READERS_MAX_AGE_MS = 2_000
const STATS_MAX_AGE_MS = 1_000

type Sizes = ReadonlyMap<string, number>

export class BacklogSizes {
  readonly #log: Log
  readonly #query: Query
  #parked: Sizes = new Map()
  #parkedAt = -Infinity
  #known: readonly UndeliveredGeneration[] = []
  #readersAt = -Infinity
  /** by "reader/partition": the first record that is beyond the end of a generation */
  readonly #ends = new Map<string, number>()

  /** @param query of the state database */
  constructor({ log, query }: Readonly<{ log: Log; query: Query }>) {
    this.#log = log
    this.#query = query
  }

  /** The sinks that are bound, with the size of their backlog. @param reliefOf what is done when it is full; undefined: it isn't for this process to do it */
  bounded(sinks: readonly Sink[], reliefOf: (sink: Sink) => Relief | undefined): readonly BacklogOf[] {
    let asked: Promise<readonly Sizes[]> | undefined
    return sinks.flatMap((sink) => {
      const relief = sink.status === 'disabled' ? undefined : reliefOf(sink)
      if (!relief) return []
      const bytes = async () => {
        asked ??= Promise.all([this.#inLog(), this.#inState()])
        return (await asked).reduce((sum, sizes) => sum + (sizes.get(sink.id) ?? 0), 0)
      }
      return [{ sinkId: sink.id, name: sink.name, maxBytes: sink.max_backlog_mb * MB, relief, bytes }]
    })
  }

  /** Unfinished bytes of all generations of each sink: what is kept to be replayed doesn't count. */
  async #inLog(): Promise<Sizes> {
    const sizes = new Map<string, number>()
    for (const generation of await this.#readers()) {
      const { sinkId, reader, partitions, lines } = generation
      for (let partition = 0; partition < partitions; partition++) {
        const stats = await this.#log.stats(reader, partition, STATS_MAX_AGE_MS, lines[partition]).catch(() => undefined) // deleted meanwhile
        if (!stats) continue
        const beyond = generation.endsAt ? await this.beyond(generation.reader, partition, generation.endsAt) : 0
        sizes.set(sinkId, (sizes.get(sinkId) ?? 0) + Math.max(0, stats.bytes - stats.finishedBytes - beyond))
      }
    }
    return sizes
  }

  /** Bytes that others of its stream get after a generation has ended. */
  async beyond(reader: ReaderName, partition: number, endsAt: Position): Promise<number> {
    const key = `${reader}/${partition}`
    const found =
      this.#ends.get(key) ?? (await this.#log.offsetFor(topicRead(reader), partition, { position: endsAt }).catch(() => undefined))
    if (found === undefined) return 0
    this.#ends.set(key, found)
    const { bytes } = await this.#log.stats(reader, partition, STATS_MAX_AGE_MS, found)
    return bytes
  }

  /** Reads the generations that still have messages to deliver, at most every two seconds. */
  async #readers(): Promise<readonly UndeliveredGeneration[]> {
    const now = performance.now()
    if (now - this.#readersAt < READERS_MAX_AGE_MS) return this.#known
    this.#readersAt = now
    this.#known = await undeliveredGenerations(this.#query).catch(() => this.#known)
    const readers = new Set(this.#known.map(({ reader }) => reader))
    for (const key of this.#ends.keys()) if (!readers.has(key.slice(0, key.lastIndexOf('/')))) this.#ends.delete(key)
    return this.#known
  }

  /** Bytes of the parked messages that are open: counted by their owners, so that asking costs next to nothing. */
  async #inState(): Promise<Sizes> {
    const now = performance.now()
    if (now - this.#parkedAt < STATS_MAX_AGE_MS) return this.#parked
    this.#parkedAt = now
    try {
      const { rows } = await ask(
        this.#query,
        'select sink_id, sum(bytes)::float8 as bytes from tailrace.parked_backlog group by sink_id',
        [],
      )
      this.#parked = new Map(rows.map((row) => [String(row.sink_id), Number(row.bytes)]))
    } catch {} // while the state database is away nothing is parked, acked or confirmed: what was known holds
    return this.#parked
  }
}
