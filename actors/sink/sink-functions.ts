/** For each sink the stage made of the functions that it names, as they are stored now. */
import { isDeepStrictEqual } from 'node:util'
import { kindOfType, SANDBOX_KINDS, type FunctionKind, type SandboxKind } from '../../engine/state/function-kinds.ts'
import type { StoredFunction } from '../../engine/state/functions.ts'
import type { Database, Sink } from '../../engine/state/resources.ts'
import type { Connection } from '../../engine/postgres/client-config.ts'
import { SnapshotReader } from '../../engine/wal/connection/snapshot-reader.ts'
import { sinkMetadata } from '../../engine/message-metadata.ts'
import { PUSH_TYPES } from '../../sinks/destination-types.ts'
import { Enricher } from '../../transforms/enrichment.ts'
import { unportedWords } from '../../transforms/elixir.ts'
import type { ReadRoute } from '../../transforms/routes.ts'
import type { AccountPool, FunctionPool } from '../../transforms/sandbox/pool.ts'
import { FunctionStage, type StageFunction, type StageFunctions, type StageOptions } from '../../transforms/stage.ts'
import type { HealthCheck } from '../../engine/status.ts'

/** Makes the stages of sinks from the functions that are stored. */
export class SinkFunctions {
  readonly #pool: FunctionPool
  readonly #stored: () => readonly StoredFunction[]
  /** what enriches messages of a database, for all its sinks, by its id */
  readonly #readers = new Map<string, Readonly<{ reader: SnapshotReader; connection: Connection }>>()
  #looks = 0

  constructor(pool: FunctionPool, stored: () => readonly StoredFunction[]) {
    this.#pool = pool
    this.#stored = stored
  }

  /** @param former the sink's stage until now */
  stageOf(sink: Sink, database: Database, former?: FunctionStage): FunctionStage {
    const options = this.#optionsOf(sink, database)
    if (Object.values(options.functions).some((fn) => fn !== undefined)) this.#pool.warm()
    return new FunctionStage(options, former)
  }

  /** A stage for looking at what functions make of a message: it runs apart from those at work, and nothing is held against them. */
  async tried<T>(sink: Sink, database: Database, work: (stage: FunctionStage) => Promise<T>): Promise<T> {
    const { functions, ...options } = this.#optionsOf(sink, database)
    const name = `look ${++this.#looks} `
    const own: StageFunctions = Object.fromEntries(
      Object.entries(functions).map(([kind, fn]) => [kind, fn && { ...fn, key: name + fn.key }]),
    )
    const pool = { run: (...call: Parameters<AccountPool['test']>) => this.#pool.of(sink.accountId).test(...call) }
    try {
      return await work(new FunctionStage({ ...options, functions: own, pool }))
    } finally {
      for (const fn of Object.values(own)) if (fn) this.#pool.forget(fn.key)
    }
  }

  #optionsOf(sink: Sink, database: Database): StageOptions {
    const functions: StageFunctions = Object.fromEntries(SANDBOX_KINDS.map((kind) => [kind, this.#function(sink, kind)]))
    const { keyed = false, namesByTransform = false, routing } = PUSH_TYPES.get(sink.destination.type) ?? {}
    // sinks that keep documents by key delete by it; what goes out whole is transformed like any other message
    const deletes = !keyed ? 'transformed' : namesByTransform ? 'named' : 'keyed'
    const readRoute: ReadRoute | undefined = routing && ((said) => routing.read(said, sink.destination))
    const query = this.#named(sink, 'enrichment')
    const enricher = query && new Enricher({ name: query.name, sql: query.compiled, reader: this.#readerOf(database) })
    const tail = JSON.stringify(sinkMetadata(sink, database))
    return {
      pool: this.#pool.of(sink.accountId),
      functions,
      tail,
      sinkName: sink.name,
      deletes,
      enricher,
      readRoute,
      isSensitive: sink.sensitive,
    }
  }

  /** @returns undefined: nothing stands in the way of its functions */
  check(sink: Sink): HealthCheck | undefined {
    const unported = unportedWords(
      sink,
      this.#stored().filter(({ accountId }) => accountId === sink.accountId),
    )
    if (unported === undefined) return undefined
    const error = { code: 'FUNCTION_INVALID', message: `the ${unported}` }
    return { name: 'Sink configuration', status: 'error', error }
  }

  async close(): Promise<void> {
    const readers = [...this.#readers.values()]
    this.#readers.clear()
    await Promise.all(readers.map(({ reader }) => reader.close()))
  }

  #named(sink: Sink, field: FunctionKind): StoredFunction | undefined {
    return this.#stored().find((fn) => fn.accountId === sink.accountId && fn.name === sink[field])
  }

  #function(sink: Sink, kind: SandboxKind): StageFunction | undefined {
    const stored = this.#named(sink, kind)
    if (!stored || kindOfType(stored.type) !== kind) return undefined
    const { id, compiled: code, usesMetadata } = stored
    return { key: `${id}:${kind}:${code}`, name: stored.name, kind, code, usesMetadata }
  }

  /** One for all sinks of a database; another when the database is reached in another way. */
  #readerOf({ id, connection }: Database): SnapshotReader {
    const known = this.#readers.get(id)
    if (known && isDeepStrictEqual(known.connection, connection)) return known.reader
    void known?.reader.close()
    const reader = new SnapshotReader(connection, 'tailrace enrichment')
    this.#readers.set(id, { reader, connection })
    return reader
  }
}
