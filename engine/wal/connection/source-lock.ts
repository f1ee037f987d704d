/**
 * The one owner of a source: an advisory lock in the source database, held by a session that Postgres itself ends when
 * its holder is silent for 3 s (a frozen holder of a plain lock would never let go; docs/rules.md, rule 13). The session is a
 * direct one: a pooler would share it. It is also the messenger of a shutdown: the server tells it before it waits for
 * the replication connection (docs/rules.md, rule 14).
 */
import { createHash } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { Client, type ClientConfig, type QueryResult } from 'pg'
import { EngineError } from '../../errors.ts'
import { cut } from '../../postgres/client-cut.ts'
import { toSourceError } from './source-error.ts'
import type { Query } from '../../postgres/query.ts'

type LockOptions = Readonly<{
  /** an ordinary connection to the database of the slot, pinned, directly and not through a pooler */
  client: ClientConfig
  slot: string
  /** called when another session has the lock, with its process id there; it may be a former one of our own that the server has not ended yet */
  onWaiting?: (holderPid: number) => void
}>

/** The beginning of application_name of our replication connections, which tells a left-over of ours from somebody else's program. */
export const REPLICATION_NAME = 'tailrace replication'

const IDLE_TIMEOUT_MS = 3000
const PING_EVERY_MS = 500
/**
 * The lock counts as lost so long after the last answered query was *sent*: the server counts from its end, so later, and lets go a
 * second after we know.
 */
const SILENCE_LIMIT_MS = 2000
const TRY_EVERY_MS = 500
const FREE_TIMEOUT_MS = 5000

/** The lock of one source, held until it is released or lost. */
export class SourceLock implements AsyncDisposable {
  readonly #client: Client
  readonly #slot: string
  readonly #lost = Promise.withResolvers<EngineError>()
  #pings: NodeJS.Timeout | undefined
  #deadline: NodeJS.Timeout | undefined
  #turn: Promise<void> = Promise.resolve()
  #asking = 0
  #pid = 0
  #state: 'held' | 'lost' | 'released' = 'held'

  private constructor(client: Client, slot: string) {
    this.#client = client
    this.#slot = slot
    client.on('error', (error) => this.#lose(error))
    client.on('end', () => this.#lose(new Error('the connection of the lock ended')))
  }

  /**
   * Waits until the lock is ours.
   * @throws EngineError SOURCE_UNREACHABLE, SOURCE_REFUSED, SOURCE_FAILED; STOPPING when aborted
   */
  static async acquire({ client: config, slot, onWaiting }: LockOptions, signal: AbortSignal): Promise<SourceLock> {
    const client = new Client({ connectionTimeoutMillis: 10_000, ...config, keepAlive: true })
    const lock = new SourceLock(client, slot)
    const onAbort = () => cut(client)
    signal.addEventListener('abort', onAbort)
    try {
      if (signal.aborted) throw stopping()
      await client.connect()
      const { rows } = await client.query<{ version: number; pid: number }>(
        `select current_setting('server_version_num')::int as version, pg_backend_pid() as pid`,
      )
      lock.#pid = rows[0]?.pid ?? 0
      if ((rows[0]?.version ?? 0) >= 140_000) await client.query(`set idle_session_timeout = ${IDLE_TIMEOUT_MS}`)
      const key = lockKey(slot)
      let askedAt: number
      for (;;) {
        askedAt = performance.now()
        const got = await client.query<{ got: boolean }>('select pg_try_advisory_lock($1) as got', [key])
        if (got.rows[0]?.got) break
        const holder = await client.query<{ pid: number }>(
          `select pid from pg_locks where locktype = 'advisory' and granted and database = (select oid from pg_database where datname = current_database())
             and (classid::bigint << 32) | objid::bigint = $1::bigint`,
          [key],
        )
        const pid = holder.rows[0]?.pid
        if (pid !== undefined) onWaiting?.(pid) // else it has let go meanwhile
        await sleep(TRY_EVERY_MS, undefined, { signal })
      }
      lock.#watch(askedAt)
      return lock
    } catch (error) {
      lock.#state = 'released'
      cut(client)
      throw signal.aborted ? stopping() : toSourceError(error, 'connecting', { slot })
    } finally {
      signal.removeEventListener('abort', onAbort)
    }
  }

  /** Settles when the lock is lost; never when it was released. */
  get lost(): Promise<EngineError> {
    return this.#lost.promise
  }

  get held(): boolean {
    return this.#state === 'held'
  }

  /** The process of its session at the server, which may outlive the release for a while. */
  get pid(): number {
    return this.#pid
  }

  /** Queries on the session of the lock. */
  readonly query: Query = async (sql, params) => {
    try {
      return await this.#ask(sql, params)
    } catch (error) {
      throw toSourceError(error, 'connecting', { slot: this.#slot })
    }
  }

  /**
   * Ends the replication connection that a former owner left behind: ours by application_name, for what another
   * program reads is not ours to end.
   * @returns the process that was ended
   */
  async terminateLeftover(signal: AbortSignal): Promise<number | undefined> {
    const find = `select s.active_pid as pid from pg_replication_slots s join pg_stat_activity a on a.pid = s.active_pid
                  where s.slot_name = $1 and a.application_name like '${REPLICATION_NAME}%'`
    const pid = (await this.query(find, [this.#slot])).rows[0]?.pid
    if (typeof pid !== 'number') return undefined
    await this.query('select pg_terminate_backend($1)', [pid])
    const until = performance.now() + FREE_TIMEOUT_MS
    while (performance.now() < until) {
      if (
        (await this.query('select from pg_replication_slots where slot_name = $1 and active_pid = $2', [this.#slot, pid])).rows.length === 0
      )
        break
      await sleep(20, undefined, { signal })
    }
    return pid
  }

  async release(): Promise<void> {
    this.#stopWatching()
    if (this.#state === 'released') return
    this.#state = 'released'
    const gone = this.#client.end().catch(() => undefined)
    await Promise.race([gone, sleep(1000, undefined, { ref: false })])
    cut(this.#client)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.release()
  }

  /** @param askedAt when the query was sent whose answer was the lock */
  #watch(askedAt: number): void {
    this.#heldFrom(askedAt)
    this.#pings = setInterval(() => {
      if (this.#asking === 0) this.#ask('select 1').catch((error: unknown) => this.#lose(error))
    }, PING_EVERY_MS)
  }

  /** One at a time; any answer is a sign of life. */
  async #ask(sql: string, params?: readonly unknown[]): Promise<QueryResult<Record<string, unknown>>> {
    const former = this.#turn
    const turn = Promise.withResolvers<void>()
    this.#turn = turn.promise
    this.#asking++
    try {
      await former
      const sentAt = performance.now()
      const answer = await this.#client.query<Record<string, unknown>>(sql, params && [...params])
      this.#heldFrom(sentAt)
      return answer
    } finally {
      this.#asking--
      turn.resolve()
    }
  }

  /** The session was idle no earlier than that; an answer that comes too late is none. */
  #heldFrom(sentAt: number): void {
    clearTimeout(this.#deadline)
    if (this.#state !== 'held') return
    const leftMs = sentAt + SILENCE_LIMIT_MS - performance.now()
    const giveUp = () => this.#lose(new Error(`the lock's session has not answered for ${SILENCE_LIMIT_MS} ms`))
    if (leftMs <= 0) return giveUp()
    this.#deadline = setTimeout(giveUp, leftMs)
  }

  #stopWatching(): void {
    clearInterval(this.#pings)
    clearTimeout(this.#deadline)
  }

  #lose(error: unknown): void {
    if (this.#state !== 'held') return
    this.#state = 'lost'
    this.#stopWatching()
    cut(this.#client)
    this.#lost.resolve(toSourceError(error, 'connecting', { slot: this.#slot }))
  }
}

/** Slots are unique in a server, advisory locks in a database: a slot belongs to one database, so its name is enough. */
function lockKey(slot: string): string {
  return createHash('sha256').update(`tailrace source ${slot}`).digest().readBigInt64BE(0).toString()
}

const stopping = () => new EngineError('STOPPING', 'stopped while waiting for the lock of the source')
