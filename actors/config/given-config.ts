/**
 * Reads configurations that clients send, in a thread that reads one at a time and is ended when that takes too long or too much: the
 * time that YAML takes can grow with the square of its keys or anchors, and the engine's thread belongs to everyone. A thread starts far
 * more slowly than it reads, so the last one waits for a while for another configuration.
 */
import { once } from 'node:events'
import { Worker } from 'node:worker_threads'
import { EngineError, type ErrorCode, type ErrorContext } from '../../engine/errors.ts'
import type { readDocument, StoredResources } from './config-document.ts'
import type { GivenConfig } from './config-edits.ts'

/** Bounds the text of a configuration that a client sends. */
export const MAX_CONFIG_BYTES = 1_048_576
/** Bounds the entries of all its sections together. */
export const MAX_CONFIG_ENTRIES = 1_000
/** Bounds the texts that variables and aliases make of a configuration, and the files that its functions name. */
const MAX_CONFIG_CHARACTERS = 16 * 1024 * 1024
const LIMIT_MS = 10_000
/** So long a thread waits for another configuration. */
const REST_MS = 60_000
const MEMORY = { maxOldGenerationSizeMb: 192, maxYoungGenerationSizeMb: 32 } as const

/** Holds what the thread that reads configurations is sent. */
export type ThreadRequest = GivenConfig & Readonly<{ file: string; stored: StoredResources; maxEntries: number; maxCharacters: number }>
type Outcome = ReturnType<typeof readDocument>
/** Holds the document, or the error for which nothing could be read. */
export type ThreadAnswer = Outcome | Readonly<{ code: ErrorCode; message: string; context: ErrorContext }>

/** A thread that reads configurations, one after the other. */
class ConfigThread {
  static #resting: ConfigThread | undefined
  readonly #worker = new Worker(new URL(import.meta.url.endsWith('.ts') ? './config-thread.ts' : './config-thread.js', import.meta.url), {
    resourceLimits: MEMORY,
    env: {},
  })
  readonly #started: Promise<unknown>
  #end: NodeJS.Timeout | undefined

  constructor() {
    this.#worker.on('error', () => undefined) // whoever waits for an answer gets it
    this.#started = once(this.#worker, 'message')
    this.#started.catch(() => undefined) // asked for by the first configuration
  }

  /** A thread that rests, or a new one. */
  static take(): ConfigThread {
    const thread = this.#resting ?? new ConfigThread()
    this.#resting = undefined
    clearTimeout(thread.#end)
    thread.#worker.ref()
    return thread
  }

  /** Settles when it can read. */
  async started(signal: AbortSignal): Promise<void> {
    signal.throwIfAborted()
    await Promise.race([this.#started, once(signal, 'abort').then(() => signal.throwIfAborted())])
  }

  async read(asked: ThreadRequest, signal: AbortSignal): Promise<ThreadAnswer> {
    this.#worker.postMessage(asked) // oxlint-disable-line unicorn/require-post-message-target-origin -- a thread has no origin
    const [answer]: ThreadAnswer[] = await once(this.#worker, 'message', { signal })
    if (!answer) throw new Error('the thread that reads configurations answered nothing')
    return answer
  }

  /** Keeps a thread for the next configuration, unless another one waits for it. Nothing else waits for the thread. */
  static rest(thread: ConfigThread): void {
    if (this.#resting) return void thread.end()
    this.#resting = thread
    thread.#worker.unref()
    thread.#end = setTimeout(() => {
      if (this.#resting === thread) this.#resting = undefined
      void thread.end()
    }, REST_MS).unref()
  }

  async end(): Promise<void> {
    await this.#worker.terminate()
  }
}

/**
 * Reads a configuration that a client sent, in a thread. @param signal ends it, as when the client has gone
 * @throws EngineError CONFIG_INVALID: it can't be read, is too large, or takes too long
 */
export async function readGivenConfig(
  given: GivenConfig & { file: string },
  stored: StoredResources,
  signal: AbortSignal,
): Promise<Outcome> {
  const { file } = given
  const bytes = Buffer.byteLength(given.yaml)
  if (bytes > MAX_CONFIG_BYTES) throw refused(file, `the file has ${bytes} bytes, more than ${MAX_CONFIG_BYTES}`)
  const asked: ThreadRequest = { ...given, stored, maxEntries: MAX_CONFIG_ENTRIES, maxCharacters: MAX_CONFIG_CHARACTERS }
  const thread = ConfigThread.take()
  let limit: AbortSignal | undefined
  let answer: ThreadAnswer
  try {
    await thread.started(signal)
    limit = AbortSignal.timeout(LIMIT_MS)
    answer = await thread.read(asked, AbortSignal.any([limit, signal]))
  } catch (error) {
    await thread.end()
    if (limit?.aborted)
      throw refused(file, `reading the file takes longer than ${LIMIT_MS / 1000} s; does it have very many keys, anchors or aliases?`)
    if (signal.aborted) throw new EngineError('STOPPING', 'stopped while the configuration was read', {}, { cause: error })
    if (error instanceof Error && 'code' in error && error.code === 'ERR_WORKER_OUT_OF_MEMORY')
      throw refused(file, 'reading the file takes too much memory; does it have very many keys, anchors or aliases?')
    throw error
  }
  ConfigThread.rest(thread)
  if ('code' in answer) throw new EngineError(answer.code, answer.message, answer.context)
  return answer
}

const refused = (file: string, reason: string) => new EngineError('CONFIG_INVALID', `${file}: ${reason}`, { file })
