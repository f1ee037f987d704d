/**
 * What is made on the server of a database before the database is stored: its slot and its publication. Both can't be one transaction, and
 * a slot that nobody knows of keeps the log of its server until the disk is full. So it is put down here before it is made, and held by an
 * open transaction until the database is stored. What nobody holds any more was left by a process that was killed, and is dropped, unless
 * a database that is stored has it by now.
 */
import { randomUUID } from 'node:crypto'
import { backOff } from '../../back-off.ts'
import { Rounds } from '../../bell.ts'
import type { Connection } from '../../postgres/client-config.ts'
import type { Query } from '../../postgres/query.ts'
import { oneOf, rowOf, rowsOf } from '../../postgres/rows.ts'
import type { Vault } from '../../state/secrets.ts'
import type { Store } from '../../state/store.ts'
import { keyInUse } from '../../state/vault-rotation.ts'
import { dropPart, type Beginning, type ServerPart } from './provision.ts'

const EVERY_MS = 300_000
/**
 * The first number of the advisory locks by which rows are held; no other lock of ours has it. The rows themselves are not locked: a
 * transaction that locks a row gets a transaction id, and a slot that is made on the same server would wait for its end.
 */
const LOCKS = 7_376_003
const RETRY = { firstMs: 1_000, maxMs: EVERY_MS }
const NAMED = { kind: oneOf('slot', 'publication'), name: 'text' } as const

type UnstoredOptions = Readonly<{
  store: Pick<Store, 'query' | 'transaction'>
  vault: Vault
  /** what was left behind is dropped */
  dropped: (part: NamedPart) => void
  /** what was left behind could not be dropped; part undefined: the state database could not be asked what there is */
  onError: (error: unknown, part?: NamedPart) => void
}>
type NamedPart = Pick<ServerPart, 'kind' | 'name'>

/** Knows what is made on servers for databases that are to be stored. From `start` on it drops what others have left behind. */
export class UnstoredDatabases extends Rounds implements AsyncDisposable {
  readonly #options: UnstoredOptions
  #turn: Promise<unknown> = Promise.resolve()
  #failures = 0

  constructor(options: UnstoredOptions) {
    super()
    this.#options = options
  }

  /**
   * Runs work that makes something on servers and then stores the databases. @param work tells `beginning` what it is about to make. Work
   * that fails has to drop that again; what it leaves is dropped here, or later
   */
  during<T>(work: (beginning: Beginning) => Promise<T>): Promise<T> {
    return this.#inTurn(() => this.#during(work))
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this[Symbol.dispose]()
    await this.ended
  }

  /** One at a time: each has a session while it asks on others, and a slot that one has found is not dropped before it is stored. */
  #inTurn<T>(work: () => Promise<T>): Promise<T> {
    const done = this.#turn.then(work)
    this.#turn = done.catch(() => undefined)
    return done
  }

  async #during<T>(work: (beginning: Beginning) => Promise<T>): Promise<T> {
    const held = new Map<string, ServerPart>()
    const ended = await this.#options.store.transaction(async (query) => {
      const [end] = await Promise.allSettled([work(async (part) => void held.set(await this.#hold(query, part), part))])
      const isStored = end.status === 'fulfilled'
      for (const [id, part] of held)
        if (isStored || (await dropPart(part).catch(() => 'busy')) !== 'busy') await query('delete from unstored_part where id = $1', [id])
      return end
    })
    if (ended.status === 'fulfilled') return ended.value
    if (held.size > 0) this.ring()
    throw ended.reason
  }

  /** Puts down what is about to be made, where others see it. @param query of the transaction that holds it until it ends */
  async #hold(query: Query, { kind, name, connection }: ServerPart): Promise<string> {
    const { store, vault } = this.#options
    const id = randomUUID()
    await query('select pg_advisory_xact_lock($1, hashtext($2))', [LOCKS, id])
    await store.transaction(async (own) => {
      const secret = vault.encrypt(JSON.stringify(connection), (await keyInUse(own)).print)
      await own('insert into unstored_part (id, kind, name, connection) values ($1, $2, $3, $4)', [id, kind, name, secret])
    })
    return id
  }

  protected override async round(): Promise<number> {
    const { store, onError } = this.#options
    const found = await store.query('select id, kind, name from unstored_part order by kind desc') // slots first
    let isLeft = false
    for (const part of rowsOf({ id: 'text', ...NAMED }, found)) {
      if (this.signal.aborted) break
      const clearing = this.#inTurn(() => store.transaction((query) => this.#clear(query, part)))
      const isCleared = await clearing.catch((error: unknown) => {
        const { kind, name } = part
        onError(error, { kind, name }) // its server may be away for ever: what is on others is dropped all the same
        return false
      })
      isLeft ||= !isCleared
    }
    this.#failures = isLeft ? this.#failures + 1 : 0
    return isLeft ? backOff(RETRY, this.#failures) : EVERY_MS
  }

  protected override failed(error: unknown): number {
    this.#options.onError(error)
    return backOff(RETRY, ++this.#failures)
  }

  /** @returns false: it is still there */
  async #clear(query: Query, { id, kind, name }: NamedPart & Readonly<{ id: string }>): Promise<boolean> {
    const { vault, dropped } = this.#options
    const lock = await query('select pg_try_advisory_xact_lock($1, hashtext($2)) as free', [LOCKS, id])
    if (!rowOf({ free: 'boolean' }, lock.rows[0]).free) return true // who has it will store it
    const [part] = rowsOf({ connection: 'bytes' }, await query('select connection from unstored_part where id = $1', [id]))
    if (!part) return true // who had it has stored it
    const others = await query(
      `select from source_database where ${kind}_name = $1 union all select from unstored_part where kind = $2 and name = $1 and id <> $3`,
      [name, kind, id],
    )
    if (others.rows.length === 0) {
      const connection = JSON.parse(vault.decrypt(part.connection)) as Connection // as it was written here
      const end = await dropPart({ kind, name, connection })
      if (end === 'busy') return false
      if (end === 'dropped') dropped({ kind, name })
    }
    await query('delete from unstored_part where id = $1', [id])
    return true
  }
}
