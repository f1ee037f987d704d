/** For each sink the stage made of the functions that it names, as they are stored now. */
import type { StoredFunction } from '../engine/state/functions.ts'
import type { Database, Sink } from '../engine/state/resources.ts'
import { sinkMetadata } from '../sinks/pull.ts'
import { PUSH_TYPES } from '../sinks/push-types.ts'
import type { ReadRoute } from '../transforms/routes.ts'
import type { FunctionPool } from '../transforms/sandbox/pool.ts'
import { FunctionStage, type StageFunction } from '../transforms/stage.ts'

export class SinkFunctions {
  readonly #pool: FunctionPool
  readonly #stored: () => readonly StoredFunction[]

  constructor(pool: FunctionPool, stored: () => readonly StoredFunction[]) {
    this.#pool = pool
    this.#stored = stored
  }

  /** @param former the sink's stage until now */
  stageOf(sink: Sink, database: Database, former?: FunctionStage): FunctionStage {
    const functions = {
      filter: this.#find(sink, sink.filter),
      routing: this.#find(sink, sink.routing),
      transform: this.#find(sink, sink.transform),
    }
    if (functions.filter || functions.routing || functions.transform) this.#pool.warm()
    const { keyed = false, namesByTransform = false, routing } = PUSH_TYPES.get(sink.destination.type) ?? {}
    // sinks that keep documents by key delete by it; what goes out whole is transformed like any other message
    const deletes = !keyed ? 'transformed' : namesByTransform ? 'named' : 'keyed'
    const readRoute: ReadRoute | undefined = routing && ((said) => routing.read(said, sink.destination))
    const tail = JSON.stringify(sinkMetadata(sink, database))
    return new FunctionStage({ pool: this.#pool, functions, tail, deletes, readRoute }, former)
  }

  #find({ accountId }: Sink, name: string | null | undefined): StageFunction | undefined {
    if (name === null || name === undefined) return undefined
    const stored = this.#stored().find((fn) => fn.accountId === accountId && fn.name === name)
    if (!stored) return undefined
    const { id, type, compiled: code, usesMetadata } = stored
    const kind = type === 'path' ? 'transform' : type
    return { key: `${id}:${kind}:${code}`, name, kind, code, usesMetadata }
  }
}
