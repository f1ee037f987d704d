/** The functions of this process: one pool of sandboxes for all, and for each sink the stage made of those it names. */
import { availableParallelism } from 'node:os'
import type { Database, Sink } from '../engine/state/resources.ts'
import { sinkMetadata } from '../sinks/pull.ts'
import { FunctionPool } from '../transforms/sandbox/pool.ts'
import { FunctionStage } from '../transforms/stage.ts'

/** Threads that run functions: two at least, so that a slow function leaves one to the others. */
const MAX_THREADS = 8
const MEMORY_MB = 512

export class SinkFunctions {
  readonly #pool = new FunctionPool({ threads: Math.min(MAX_THREADS, Math.max(2, availableParallelism())), memoryMb: MEMORY_MB })

  /** @param former the sink's stage until now */
  stageOf(sink: Sink, database: Database, former?: FunctionStage): FunctionStage {
    const tail = JSON.stringify(sinkMetadata(sink, database))
    return new FunctionStage({ pool: this.#pool, functions: {}, tail, transformsDeletes: true }, former)
  }

  stop(): Promise<void> {
    return this.#pool.stop()
  }
}
