/**
 * The processes that share a state database. Each writes a row when it starts and renews it every second by the
 * database's clock; one that was seen within LIVE_MS is live. Nothing is decided by this list: owners are fenced by their
 * terms. It says whom to ask, and under which name to show them.
 */
import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Query } from '../postgres/query.ts'
import { rowsOf } from '../postgres/rows.ts'

/** A process of the cluster as it shows itself to the others. */
export type Node = Readonly<{
  /** made at the start of the process: another run of the same process is another node */
  id: string
  /** host/pid, for people */
  name: string
  /** where its peers reach it, such as "http://10.0.0.7:7376" */
  address: string
  version: string
}>

const BEAT_EVERY_MS = 1_000
/** A process that has given no sign for so long counts as gone. */
export const LIVE_MS = 5_000
/** Rows of the dead stay so long, so that who held something last still has a name. */
const FORGET_AFTER = '1 day'

/** The list of live processes, and this process's own place in it. */
export class NodeRegistry {
  readonly id: string = randomUUID()
  readonly name: string
  readonly #query: Query
  readonly #onError: (error: unknown) => void
  readonly #listeners = new Set<() => void>()
  readonly #stop = new AbortController()
  #hasJoined = false
  #live: ReadonlyMap<string, Node> = new Map()
  #beating: Promise<void> | undefined
  #failing = false

  /** @param onError the first heartbeat that fails after one that did not */
  constructor(options: Readonly<{ query: Query; name: string; onError: (error: unknown) => void }>) {
    this.#query = options.query
    this.name = options.name
    this.#onError = options.onError
  }

  /** Shows this process to the others, from now on until it leaves. */
  async join(at: Readonly<{ address: string; version: string }>): Promise<Node> {
    const self = { id: this.id, name: this.name, ...at }
    this.#hasJoined = true
    await this.#query(`delete from tailrace.node where seen_at < clock_timestamp() - interval '${FORGET_AFTER}'`)
    await this.#beat(self)
    this.#beating ??= this.#keepBeating(self)
    return self
  }

  /** Live nodes by id, this one included, as of the last heartbeat. */
  get live(): ReadonlyMap<string, Node> {
    return this.#live
  }

  /** All other live nodes. */
  get peers(): readonly Node[] {
    return [...this.#live.values()].filter(({ id }) => id !== this.id)
  }

  /** Calls back when nodes have come or gone. @returns ends the subscription */
  watch(listener: () => void): () => void {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }

  /** Reads the list anew. */
  async look(): Promise<void> {
    this.#set(rowsOf(NODE, await this.#query(`${SEEN} order by started_at, id`)))
  }

  /** The name of a node, also of one that is gone. */
  async nameOf(id: string): Promise<string | undefined> {
    const known = this.#live.get(id)
    if (known) return known.name
    const [row] = rowsOf({ name: 'text' }, await this.#query('select name from tailrace.node where id::text = $1', [id]))
    return row?.name
  }

  /** Takes this process off the list, so that the others ask it no more. */
  async leave(): Promise<void> {
    this.#stop.abort()
    await this.#beating
    if (!this.#hasJoined) return
    this.#hasJoined = false
    await this.#query('delete from tailrace.node where id = $1', [this.id]).catch(this.#onError) // it is forgotten in LIVE_MS anyway
  }

  async #keepBeating(self: Node): Promise<void> {
    const { signal } = this.#stop
    for (;;) {
      await sleep(BEAT_EVERY_MS, undefined, { signal }).catch(() => undefined)
      if (signal.aborted) return
      try {
        await this.#beat(self)
        this.#failing = false
      } catch (error) {
        if (!this.#failing && !signal.aborted) this.#onError(error)
        this.#failing = true
      }
    }
  }

  async #beat(self: Node): Promise<void> {
    const { id, name, address, version } = self
    const seen = await this.#query(
      `with beat as (
         insert into tailrace.node (id, name, address, version, streams) values ($1, $2, $3, $4, true)
         on conflict (id) do update set address = excluded.address, seen_at = clock_timestamp() returning id, name, address, version, started_at
       )
       select * from beat union all select * from (${SEEN}) seen where id <> $1 order by started_at, id`, // what is seen is as it was before the beat
      [id, name, address, version],
    )
    this.#set(rowsOf(NODE, seen))
  }

  #set(nodes: readonly Node[]): void {
    const live = new Map(nodes.map((node) => [node.id, node]))
    const same = live.size === this.#live.size && nodes.every(({ id, address }) => this.#live.get(id)?.address === address)
    this.#live = live
    if (!same) for (const listener of this.#listeners) listener()
  }
}

const NODE = { id: 'text', name: 'text', address: 'text', version: 'text' } as const
const SEEN = `select id, name, address, version, started_at from tailrace.node
              where seen_at > clock_timestamp() - interval '${LIVE_MS} milliseconds'`
