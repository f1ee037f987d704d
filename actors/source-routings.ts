/**
 * The routing versions of the sources as this process saves them. While a process of a former version lives, the sinks of a database keep topics
 * of their own; when the last such process has gone, their routing is saved anew, so that they share streams.
 */
import type { Logger } from '../engine/logger.ts'
import type { Store } from '../engine/state/store.ts'
import { StoredVersions, type SavedVersion } from '../engine/wal/routing/stored-versions.ts'
import { saveRouting } from './routing-of-sinks.ts'

/** @property inTurn runs work while no other change of the resources takes effect @property mark writes the mark of a version that was saved */
type SourceRoutingsOptions = Readonly<{
  store: Pick<Store, 'transaction'>
  resources: Parameters<typeof saveRouting>[1]
  logger: Pick<Logger, 'warn'>
  inTurn: (work: () => Promise<void>) => Promise<void>
  mark: (databaseId: string, saved: SavedVersion) => Promise<unknown> | undefined
}>

const FORMER_LOOK_MS = 1_000

/** Saves what each source is to write for its sinks, and again when processes of a former version have gone. */
export class SourceRoutings implements Disposable {
  readonly #options: SourceRoutingsOptions
  /** by database */
  readonly #versions = new Map<string, StoredVersions>()
  /** databases whose sinks keep topics of their own, because a process of a former version lives */
  readonly #amongFormer = new Set<string>()
  #timer: NodeJS.Timeout | undefined

  constructor(options: SourceRoutingsOptions) {
    this.#options = options
  }

  /** Puts what the sinks of a database are to receive into a routing version, whose mark is still to be written. */
  async save(databaseId: string): Promise<SavedVersion> {
    const { resources, store } = this.#options
    const versions = this.#versions.get(databaseId) ?? new StoredVersions(databaseId)
    this.#versions.set(databaseId, versions)
    const { version, waits } = await saveRouting(store, resources, { databaseId, versions })
    if (waits) this.#amongFormer.add(databaseId)
    else this.#amongFormer.delete(databaseId)
    this.#awaitFormer()
    return version
  }

  [Symbol.dispose](): void {
    clearTimeout(this.#timer)
    this.#amongFormer.clear()
  }

  #awaitFormer(): void {
    if (this.#amongFormer.size > 0) this.#timer ??= setTimeout(() => void this.#lookForFormer(), FORMER_LOOK_MS).unref()
  }

  /** Sinks of a database get streams when the last process has gone that knows nothing of them. */
  async #lookForFormer(): Promise<void> {
    this.#timer = undefined
    const { inTurn, mark, logger } = this.#options
    await inTurn(async () => {
      for (const id of this.#amongFormer) await mark(id, await this.save(id))
    }).catch((err: unknown) => logger.warn({ err }, 'the routing could not be saved anew; it will be tried again'))
    this.#awaitFormer()
  }
}
