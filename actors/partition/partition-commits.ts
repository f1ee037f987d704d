/**
 * The commits of a partition: what is acknowledged becomes durable by them, and what may be handed out next is promised. One
 * is written at a time; those who ask meanwhile share the next.
 */
import type { Dispatcher } from '../../engine/dispatch/dispatcher.ts'
import type { Commit, Log, MessageRef, ReaderName } from '../../engine/log/log.ts'
import { Bell } from '../../engine/bell.ts'
import { GroupCommit } from './group-commit.ts'

type PartitionCommitsOptions = Readonly<{
  log: Pick<Log, 'commit'>
  reader: ReaderName
  partition: number
  term: number
  dispatcher: Dispatcher
  /** how often messages of the partition have been parked */
  parked: () => number
  /** of the take-over */
  committed: MessageRef
  /** monotonic milliseconds */
  clock: () => number
  /** a commit is durable */
  written: (commit: Commit) => void
  /** something may be deliverable that wasn't */
  deliverable: () => void
}>

/**
 * Messages that were sent and taken by the destination are committed after this time. Tens of sinks on one stream would commit thousands of times a second otherwise,
 * and the flush of a commit is one that appends wait for.
 */
const COMMIT_SENT_AFTER_MS = 50
/** A reader that passes by records of others commits that after so long, so that those records can be trimmed. */
const COMMIT_PASSED_AFTER_MS = 1_000

export class PartitionCommits {
  readonly #options: PartitionCommitsOptions
  readonly #group = new GroupCommit()
  readonly #bell = new Bell()
  /** parked or discarded since the last commit began */
  #dirty = false
  #committed: MessageRef
  /** deliveries wait for a commit */
  #soon: NodeJS.Timeout | undefined
  /** so does what was passed by */
  #later: NodeJS.Timeout | undefined

  constructor(options: PartitionCommitsOptions) {
    this.#options = options
    this.#committed = options.committed
  }

  /** How far the last durable one goes. */
  get committed(): MessageRef {
    return this.#committed
  }

  /** Makes acks durable, and the promise of what may be handed out next. */
  async run(signal: AbortSignal): Promise<void> {
    const { dispatcher, clock, term, deliverable } = this.#options
    for (;;) {
      await this.#bell.wait(signal, Math.max(1, dispatcher.wantsCommitAt() - clock()))
      if (signal.aborted && !this.#group.waiting) return // who waits may be what a stop waits for
      if (!this.#group.waiting && !this.#dirty && !dispatcher.wantsCommit()) continue
      this.#dirty = false
      await this.#group.write(() => this.#write(dispatcher.commitPoint(term)))
      deliverable() // what waited for the promise
    }
  }

  /** Looks whether one is wanted. */
  ring(): void {
    this.#bell.ring()
  }

  /** Settles when one that begins from now on is durable. */
  next(): Promise<void> {
    const durable = this.#group.join()
    this.#bell.ring()
    return durable
  }

  /** Settles when what is asked for so far is durable. */
  settled(): Promise<void> {
    return this.#group.settled()
  }

  /** Something has changed that is to be durable; nobody waits for it. */
  changed(): void {
    this.#dirty = true
    this.#bell.ring()
  }

  /** Nobody waits for this commit: many deliveries share one. A crash before it repeats them, as it does those under way. */
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
    const { dispatcher, term } = this.#options
    return this.#group.write(() => this.#write(dispatcher.commitPoint(term, true)))
  }

  /** Begins none by itself any more. */
  stop(): void {
    clearTimeout(this.#soon)
    clearTimeout(this.#later)
  }

  /** Whoever waits hears that nothing more becomes durable. */
  fail(cause: unknown): void {
    this.#group.fail(cause)
  }

  async #write(point: Commit): Promise<void> {
    const { log, reader, partition, dispatcher, written, parked } = this.#options
    const commit = { ...point, parked: parked() }
    await log.commit(reader, partition, commit)
    dispatcher.committed(commit)
    this.#committed = commit.next
    written(commit)
  }
}
