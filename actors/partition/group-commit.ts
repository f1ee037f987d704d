/**
 * Acks that wait for the disk, gathered while the commit before them is being written: each waits for the first commit
 * that began after it, so one write answers many and a lone ack waits for one write only.
 */
import { EngineError } from '../../engine/errors.ts'

type Group = { readonly promise: Promise<void>; resolve: () => void; reject: (error: EngineError) => void }

function newGroup(): Group {
  const group = Promise.withResolvers<void>()
  group.promise.catch(() => undefined) // those who wait handle it, and there may be none
  return group
}

/** Lets many acks share a write. */
export class GroupCommit {
  #gathering: Group | undefined
  #writing: Group | undefined

  get waiting(): boolean {
    return this.#gathering !== undefined
  }

  /** Joins the next commit: what just changed is durable when this settles. @throws EngineError ACK_NOT_DURABLE */
  join(): Promise<void> {
    this.#gathering ??= newGroup()
    return this.#gathering.promise
  }

  /** Everything that changed before is durable when this settles, the repeated ack of a message that is being written included. */
  async settled(): Promise<void> {
    await Promise.all([this.#writing?.promise, this.#gathering?.promise])
  }

  /** Writes what was gathered. @throws what `commit` throws, after telling those who wait */
  async write(commit: () => Promise<void>): Promise<void> {
    const group = this.#gathering ?? newGroup()
    this.#gathering = undefined
    this.#writing = group
    try {
      await commit()
      group.resolve()
    } catch (cause) {
      group.reject(notDurable(cause))
      throw cause
    } finally {
      this.#writing = undefined
    }
  }

  /** No commit will come any more. */
  fail(cause: unknown): void {
    this.#gathering?.reject(notDurable(cause))
    this.#gathering = undefined
  }
}

const notDurable = (cause: unknown) => new EngineError('ACK_NOT_DURABLE', 'the acknowledgement could not be made durable', {}, { cause })
