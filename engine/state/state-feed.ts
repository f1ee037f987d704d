/**
 * Tells what changes in the state database, as it happens: by notices that its triggers send, heard on a session of its own. A
 * notice can be lost with that session (and never comes through a pooler that shares sessions), so each new session
 * begins by telling `everything`, and listeners also look by themselves from time to time.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { Client } from 'pg'
import { clientConfig, type Connection } from '../postgres/client-config.ts'
import { cut } from '../postgres/client-cut.ts'

/** Tells what has changed in the state database; `everything` is said when notices may have been missed. */
export type Notice =
  | Readonly<{ about: 'resources' | 'tokens' | 'nodes' | 'everything' }>
  /** partitions of this sink have new owners */
  | Readonly<{ about: 'owners'; sinkId: string }>

/** A session that is gone is asked for again after this, and one that doesn't answer in this time is gone. */
const RETRY_MS = 1_000
const ASK_EVERY_MS = 5_000
const ANSWER_WITHIN_MS = 5_000

/** Listens for notices of the state database, on one session after the other. */
export class StateFeed implements AsyncDisposable {
  readonly #connection: Connection
  readonly #onError: (error: unknown) => void
  readonly #listeners = new Set<(notice: Notice) => void>()
  readonly #stop = new AbortController()
  #running: Promise<void> | undefined

  /** @param onError a session could not be made, or ended; another is made */
  constructor(connection: Connection, onError: (error: unknown) => void) {
    this.#connection = connection
    this.#onError = onError
  }

  start(): void {
    this.#running ??= this.#run()
  }

  /** @returns ends the subscription */
  watch(listener: (notice: Notice) => void): () => void {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stop.abort()
    await this.#running
  }

  async #run(): Promise<void> {
    const { signal } = this.#stop
    while (!signal.aborted) {
      try {
        await this.#listen(signal)
      } catch (error) {
        if (signal.aborted) return
        this.#onError(error)
      }
      await sleep(RETRY_MS, undefined, { signal }).catch(() => undefined)
    }
  }

  /** Ends when the session does, or the feed. */
  async #listen(signal: AbortSignal): Promise<void> {
    const client = new Client(clientConfig(this.#connection, 'tailrace notices'))
    const ended = Promise.withResolvers<never>()
    ended.promise.catch(() => undefined)
    client.on('error', (error) => ended.reject(error))
    client.on('end', () => ended.reject(new Error('the session for notices ended')))
    client.on('notification', ({ payload }) => this.#tell(noticeOf(payload ?? '')))
    try {
      await client.connect()
      await client.query('listen tailrace')
      this.#tell({ about: 'everything' })
      for (;;) {
        await Promise.race([ended.promise, sleep(ASK_EVERY_MS, undefined, { signal })])
        await Promise.race([ended.promise, client.query('select 1'), tooLong()])
      }
    } finally {
      client.removeAllListeners('notification')
      cut(client) // it has nothing to finish, and a server that is gone would not answer an end
    }
  }

  #tell(notice: Notice): void {
    for (const listener of this.#listeners) listener(notice)
  }
}

async function tooLong(): Promise<never> {
  await sleep(ANSWER_WITHIN_MS, undefined, { ref: false })
  throw new Error(`the session for notices has not answered for ${ANSWER_WITHIN_MS} ms`)
}

/** What isn't known (another version may send it) is taken as a change of anything. */
function noticeOf(payload: string): Notice {
  if (payload === 'resources' || payload === 'tokens' || payload === 'nodes') return { about: payload }
  const [about, sinkId] = payload.split(' ')
  return about === 'owners' && sinkId ? { about, sinkId } : { about: 'everything' }
}
