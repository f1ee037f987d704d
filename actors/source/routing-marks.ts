/**
 * Sees to it that every routing version that was saved gets its mark into the source's log, for that is where it takes effect
 * (docs/rules.md, rule 6). A mark that can't be written is tried again until it is, whoever saved the version: sessions may fail for
 * long while the stream goes on. Marks may be written more than once; the first one of a version counts.
 */
import { errorText } from '../../engine/errors.ts'
import { emitRoutingMark } from '../../engine/wal/routing/routing.ts'
import { unplacedVersions, type SavedVersion } from '../../engine/wal/routing/stored-versions.ts'
import type { Query } from '../../engine/postgres/query.ts'
import { Rounds } from '../../engine/bell.ts'
import type { HealthCheck } from '../../engine/status.ts'
import { backOff } from '../../engine/back-off.ts'

const RETRY = { firstMs: 500, maxMs: 30_000 }
/** How often to look for routing versions that another process has saved and could not mark. */
const LOOK_EVERY_MS = 30_000
/** A mark is read back at once, unless the source is behind: health says so after this time. */
const MET_WITHIN_MS = 5_000

type RoutingMarksOptions = Readonly<{
  databaseId: string
  /** queries on the state database */
  state: Query
  /** queries on a session of the source database with synchronous_commit = local */
  source: Query
  /** of the run that streams here: the version that holds; undefined: none streams */
  active: () => number | undefined
  /** the source is streamed, here or elsewhere; else marks wait until it is */
  isStreamed: () => boolean
  notice: (text: string) => void
}>

/** @property error why the mark could not be written; undefined: it is written, and the stream has not come to it */
type Unplaced = Readonly<{ version: number; since: number; error?: unknown }>

/** Writes the marks of one database; what rings is its own. */
export class RoutingMarks extends Rounds {
  readonly #options: RoutingMarksOptions
  /** in this run of the source */
  readonly #written = new Set<number>()
  #unplaced: Unplaced | undefined
  #failures = 0

  constructor(options: RoutingMarksOptions) {
    super()
    this.#options = options
    this.start()
  }

  /** Writes the mark of a version that was saved. @returns whether it is written; if not, it is tried again */
  async write({ version, isPlaced }: SavedVersion): Promise<boolean> {
    if (isPlaced) return true
    const isWritten = await this.#write([version])
    this.ring()
    return isWritten
  }

  /** A run begins, here or elsewhere: its server may be one that has never met what was written to another. */
  streams(): void {
    this.#written.clear()
    this.ring()
  }

  /** For the health of sinks; undefined: what was saved last has taken effect, or is about to. */
  check(): HealthCheck | undefined {
    const { active } = this.#options
    if (!this.#unplaced || (active() ?? -1) >= this.#unplaced.version) return undefined
    const { version, since, error } = this.#unplaced
    const name = 'Sink configuration'
    const code = 'ROUTING_NOT_PLACED'
    if (error !== undefined) {
      const message = `a change of this sink (routing version ${version}) is saved but not in effect: its mark can't be written to the source database, and is tried again: ${errorText(error)}`
      return { name, status: 'warning', error: { code, message } }
    }
    if (performance.now() - since < MET_WITHIN_MS) return undefined
    const message = `a change of this sink (routing version ${version}) is saved, and takes effect when the source has read the write-ahead log up to its mark`
    return { name, status: 'notice', error: { code, message } }
  }

  protected override async round(): Promise<number> {
    const { state, databaseId, isStreamed } = this.#options
    if (!isStreamed()) return Infinity
    const unplaced = await unplacedVersions(state, databaseId).catch(() => undefined) // what asks the state for more tells why
    if (unplaced?.length === 0) {
      this.#unplaced = undefined
      this.#failures = 0
      return LOOK_EVERY_MS
    }
    const isWritten = unplaced !== undefined && (await this.#write(unplaced.filter((version) => !this.#written.has(version))))
    this.#failures = isWritten ? 0 : this.#failures + 1
    return isWritten ? MET_WITHIN_MS : backOff(RETRY, this.#failures)
  }

  async #write(versions: readonly number[]): Promise<boolean> {
    const { databaseId, source, notice } = this.#options
    const version = versions.at(-1)
    if (version === undefined) return true
    const since = this.#unplaced?.version === version ? this.#unplaced.since : performance.now()
    try {
      for (const one of versions) {
        await emitRoutingMark(source, { databaseId, version: one })
        this.#written.add(one)
      }
      this.#unplaced = { version, since }
      return true
    } catch (error) {
      if (this.#unplaced?.version !== version || this.#unplaced.error === undefined)
        notice(
          `the mark of routing version ${version} could not be written to the source database, and is tried again: ${errorText(error)}`,
        )
      this.#unplaced = { version, since, error }
      return false
    }
  }
}
