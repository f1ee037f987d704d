/**
 * Reads configurations that clients send. Each is read in a thread of its own, which is ended when it takes too long or too much:
 * the time that YAML takes can grow with the square of its keys or anchors, and the engine's thread belongs to everyone.
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
const MEMORY = { maxOldGenerationSizeMb: 192, maxYoungGenerationSizeMb: 32 } as const

/** Holds what the thread that reads configurations is sent. */
export type ThreadRequest = GivenConfig & Readonly<{ file: string; stored: StoredResources; maxEntries: number; maxCharacters: number }>
type Outcome = ReturnType<typeof readDocument>
/** Holds the document, or the error for which nothing could be read. */
export type ThreadAnswer = Outcome | Readonly<{ code: ErrorCode; message: string; context: ErrorContext }>

/**
 * Reads a configuration that a client sent, in a thread of its own. @param signal ends it, as when the client has gone
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
  const thread = new Worker(new URL(import.meta.url.endsWith('.ts') ? './config-thread.ts' : './config-thread.js', import.meta.url), {
    resourceLimits: MEMORY,
    env: {},
  })
  let limit: AbortSignal | undefined
  try {
    await once(thread, 'message', { signal })
    thread.postMessage(asked) // oxlint-disable-line unicorn/require-post-message-target-origin -- a thread has no origin
    limit = AbortSignal.timeout(LIMIT_MS)
    const [answer]: ThreadAnswer[] = await once(thread, 'message', { signal: AbortSignal.any([limit, signal]) })
    if (!answer) throw new Error('the thread that reads configurations answered nothing')
    if ('code' in answer) throw new EngineError(answer.code, answer.message, answer.context)
    return answer
  } catch (error) {
    if (limit?.aborted)
      throw refused(file, `reading the file takes longer than ${LIMIT_MS / 1000} s; does it have very many keys, anchors or aliases?`)
    if (signal.aborted) throw new EngineError('STOPPING', 'stopped while the configuration was read', {}, { cause: error })
    if (error instanceof Error && 'code' in error && error.code === 'ERR_WORKER_OUT_OF_MEMORY')
      throw refused(file, 'reading the file takes too much memory; does it have very many keys, anchors or aliases?')
    throw error
  } finally {
    await thread.terminate()
  }
}

const refused = (file: string, reason: string) => new EngineError('CONFIG_INVALID', `${file}: ${reason}`, { file })
