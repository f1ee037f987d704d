/**
 * Knows which node owns which partition of a sink: the holders of the terms (docs/rules.md, rule 19), held in memory for a while. An
 * entry may be out of date; who is asked in vain says so, and the table is read again. The owner itself decides.
 */
import type { Query } from '../postgres/query.ts'
import { rowsOf } from '../postgres/rows.ts'
import type { Notice } from './state-feed.ts'

/** "generation/partition", as in the key of a term */
type PartitionName = string
/** The ids of the nodes that own the partitions of a sink, or a word in the place of one (handed over, rewound). */
export type Owners = ReadonlyMap<PartitionName, string>

/** How long an entry is believed while no notice comes: one may have been lost. */
const BELIEVED_MS = 5_000

type Entry = { owners: Owners; readAt: number }

/** Remembers who owns which partition, until a notice or some seconds make it look again. */
export class PartitionOwners {
  readonly #query: Query
  readonly #entries = new Map<string, Entry>()
  readonly #reading = new Map<string, Promise<Owners>>()
  readonly #listeners = new Set<(sinkId: string | undefined) => void>()

  constructor(query: Query) {
    this.#query = query
  }

  /**
   * Node ids by partition.
   * @throws what the state database throws, when nothing is known yet; else the former owners are given
   */
  async of(sinkId: string): Promise<Owners> {
    const known = this.#entries.get(sinkId)
    if (known && performance.now() - known.readAt < BELIEVED_MS) return known.owners
    return this.read(sinkId).catch((error: unknown) => {
      if (known) return known.owners
      throw error
    })
  }

  /** Reads the table now; callers that come while it is being read share the answer, unless a notice came between. */
  read(sinkId: string): Promise<Owners> {
    const open = this.#reading.get(sinkId)
    if (open) return open
    const reading: Promise<Owners> = this.#read(sinkId, () => this.#reading.get(sinkId) === reading).finally(() => {
      if (this.#reading.get(sinkId) === reading) this.#reading.delete(sinkId)
    })
    this.#reading.set(sinkId, reading)
    return reading
  }

  /** Calls back when owners may have changed: of a sink, or (undefined) of any. @returns ends the subscription */
  watch(listener: (sinkId: string | undefined) => void): () => void {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }

  /** Takes in a notice of the state database. */
  take(notice: Notice): void {
    if (notice.about !== 'owners' && notice.about !== 'everything') return
    const sinkId = notice.about === 'owners' ? notice.sinkId : undefined
    // kept, but no longer believed: what was known is better than nothing while the database is out of reach
    for (const [id, entry] of this.#entries) if (sinkId === undefined || id === sinkId) entry.readAt = -Infinity
    for (const id of [...this.#reading.keys()]) if (sinkId === undefined || id === sinkId) this.#reading.delete(id)
    for (const listener of this.#listeners) listener(sinkId)
  }

  async #read(sinkId: string, isNewest: () => boolean): Promise<Owners> {
    const terms = await this.#query(`select key, holder from tailrace.term where kind = 'partition' and key like $1 || '.%'`, [sinkId])
    const owners = new Map(rowsOf({ key: 'text', holder: 'text' }, terms).map(({ key, holder }) => [key.slice(sinkId.length + 1), holder]))
    if (isNewest()) this.#entries.set(sinkId, { owners, readAt: performance.now() })
    return owners
  }
}
