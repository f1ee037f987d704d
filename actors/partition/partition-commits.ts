/**
 * The commits of a partition: what is acknowledged becomes durable by them, and what may be handed out next is promised. One
 * is written at a time; those who ask meanwhile share the next.
 */
import { commitPoint, committed, wantsCommit, wantsCommitAt } from '../../engine/dispatch/commits.ts'
import type { MessageRef } from '../../engine/log/log.ts'
import { Bell } from '../../engine/bell.ts'
import { GroupCommit } from './group-commit.ts'
import type { OwnedPartition } from './owned-partition.ts'

/**
 * Messages that were sent and taken by the destination are committed after this time. Tens of sinks on one stream would commit
 * thousands of times a second otherwise, and the flush of a commit is one that appends wait for.
 */
const COMMIT_SENT_AFTER_MS = 50
/** A reader that passes by records of others commits that after so long, so that those records can be trimmed. */
const COMMIT_PASSED_AFTER_MS = 1_000

/** Writes the commits of one partition. */
export class PartitionCommits {
  readonly #owned: OwnedPartition
  /** the acks that wait for a commit */
  readonly group = new GroupCommit()
  /** rung when one may be wanted */
  readonly bell = new Bell()
  /** parked or discarded since the last commit began */
  #dirty = false
  /** how far the last durable one goes */
  committed: MessageRef
  /** deliveries wait for a commit */
  #soon: NodeJS.Timeout | undefined
  /** so does what was passed by */
  #later: NodeJS.Timeout | undefined

  /** @param committed of the take-over */
  constructor(owned: OwnedPartition, committed: MessageRef) {
    this.#owned = owned
    this.committed = committed
  }

  /** Makes acks durable, and the promise of what may be handed out next. */
  async run(signal: AbortSignal): Promise<void> {
    const { dispatcher, sink } = this.#owned
    for (;;) {
      await this.bell.wait(signal, Math.max(1, wantsCommitAt(dispatcher) - sink.clock()))
      if (signal.aborted && !this.group.waiting) return // who waits may be what a stop waits for
      if (!this.group.waiting && !this.#dirty && !wantsCommit(dispatcher)) continue
      this.#dirty = false
      await this.#write(false)
      sink.deliverable() // what waited for the promise
    }
  }

  /** Settles when one that begins from now on is durable. */
  next(): Promise<void> {
    const durable = this.group.join()
    this.bell.ring()
    return durable
  }

  /** Something has changed that is to be durable, without anyone waiting for it. */
  changed(): void {
    this.#dirty = true
    this.bell.ring()
  }

  /** Deliveries are to be committed a little later: many of them share one commit. A crash before it repeats them, as it does those under way. */
  soon(): void {
    this.#soon ??= setTimeout(() => {
      this.#soon = undefined
      this.changed()
    }, COMMIT_SENT_AFTER_MS)
  }

  /** Records were passed by that have nothing for this reader. */
  passed(): void {
    this.#later ??= setTimeout(() => {
      this.#later = undefined
      this.changed()
    }, COMMIT_PASSED_AFTER_MS)
  }

  /** The last one, which tells exactly what is in flight. */
  last(): Promise<void> {
    return this.#write(true)
  }

  /** Begins none by itself any more. */
  stop(): void {
    clearTimeout(this.#soon)
    clearTimeout(this.#later)
  }

  #write(isLast: boolean): Promise<void> {
    return this.group.write(async () => {
      const owned = this.#owned
      const { dispatcher, store, sink, served, key } = owned
      const commit = { ...commitPoint(dispatcher, store.term, isLast), parked: store.parked }
      await sink.surroundings.log.commit(served.reader, key.partition, commit)
      committed(dispatcher, commit)
      this.committed = commit.next
      owned.written(commit)
    })
  }
}
