/**
 * A steady stream of rows through a cluster, watched row by row: which partition each came from, how long after its commit,
 * and what was answered to its ack. Each process has clients that ack whatever they get, again and again until the ack is
 * answered; in between they may be told to try again and nothing else, and a message whose ack was answered may not come again.
 */
import type { TestDatabase } from '../services/postgres.ts'
import { CalmClock, msBetween, type Moment } from '../services/calm-clock.ts'
import { now } from './consumer.ts'
import { TOKEN, type Service } from './service.ts'
import { HttpSinkClient, Passing } from './sink-client.ts'
import { pass, until } from '../waiting.ts'

/** The table that is written. */
export const PULSE_TABLE = 'create table pulse (id int primary key)'
const ROWS = 5
const EVERY_MS = 20
const CLIENTS_PER_NODE = 2
const RETRY_AFTER_MS = 20

type Arrival = Readonly<{ id: number; partition: number; at: Moment }>

export class Pulse implements AsyncDisposable {
  readonly #source: TestDatabase
  readonly #clients: readonly HttpSinkClient[]
  readonly #stop = new AbortController()
  readonly #stopWriting = new AbortController()
  /** by id: the moment before its insert was sent, and the one after it was answered */
  readonly #committed: { from: Moment; to: Moment }[] = []
  readonly #clock = new CalmClock()
  readonly #arrivals: Arrival[] = []
  readonly #came = new Set<number>()
  /** when the ack of a message was answered */
  readonly #acked = new Map<string, number>()
  readonly #working: Promise<void>[] = []
  #failure: unknown
  /** acks that were answered with "try again", and the longest time from the first try of one to its answer */
  putOff = 0
  longestAckMs = 0
  /** acks wait for it */
  #acking = Promise.withResolvers<void>()
  /** partitions of which a client has a message that it did not ack yet */
  readonly #inHand = new Map<number, number>()

  constructor(options: { nodes: readonly Service[]; source: TestDatabase; sink: string }) {
    const { nodes, source, sink } = options
    this.#source = source
    this.#clients = nodes.flatMap(({ origin }) =>
      Array.from({ length: CLIENTS_PER_NODE }, () => new HttpSinkClient({ origin, sink, token: TOKEN, connections: 8 })),
    )
  }

  get rows(): number {
    return this.#committed.length
  }

  start(): void {
    this.#acking.resolve()
    const watch = (work: Promise<void>) => work.catch((error: unknown) => void (this.#failure ??= error))
    this.#working.push(watch(this.#write()), ...this.#clients.map((client) => watch(this.#consume(client))))
  }

  /** A moment, as the others take it. */
  now(): Moment {
    return this.#clock.now()
  }

  /** Settles when clients have messages of so many partitions in hand, and ack none. @returns lets them ack */
  async inHand(partitions: number, withinMs: number): Promise<() => void> {
    const held = Promise.withResolvers<void>()
    this.#acking = held
    const isInHand = () => {
      this.#check()
      return this.#inHand.size >= partitions
    }
    await until(`messages of ${partitions} partitions in hand`, isInHand, { withinMs })
    return held.resolve
  }

  /** How long it took from then until a row came that was committed after it. */
  async firstAfter(at: Moment, withinMs: number): Promise<number> {
    return this.#until(at, withinMs, 'a row that was committed since', (arrivals) => arrivals[0])
  }

  /** How long it took from then until each of so many partitions had delivered a row that was committed after it. */
  async allAfter(at: Moment, partitions: number, withinMs: number): Promise<number> {
    return this.#until(at, withinMs, `a row of each partition that was committed since`, (arrivals) => {
      const first = new Map<number, Arrival>()
      for (const arrival of arrivals) if (!first.has(arrival.partition)) first.set(arrival.partition, arrival)
      return first.size < partitions ? undefined : [...first.values()].reduce((last, one) => (one.at.wallMs > last.at.wallMs ? one : last))
    })
  }

  /** The longest that a row has waited for its delivery of those that were committed in between. */
  longestWait(from: Moment, to: Moment): number {
    return Math.max(0, ...this.#between(from, to).map((row) => msBetween(row.to, row.at)))
  }

  /** How many rows that were committed in between have waited for so many seconds. */
  waits(from: Moment, to: Moment): Readonly<Record<string, number>> {
    const counts: Record<string, number> = {}
    for (const row of this.#between(from, to)) {
      const seconds = `${Math.floor((row.at.wallMs - row.to.wallMs) / 1_000)} s`
      counts[seconds] = (counts[seconds] ?? 0) + 1
    }
    return counts
  }

  #between(from: Moment, to: Moment): readonly Readonly<{ to: Moment; at: Moment }>[] {
    return this.#arrivals
      .map(({ id, at }) => ({ ...this.#committed[id]!, at }))
      .filter((row) => row.from.wallMs >= from.wallMs && row.to.wallMs <= to.wallMs)
  }

  /** Writes no more, and settles when every row has come. @throws Error one never came, or came after its ack was answered */
  async finish(withinMs: number): Promise<void> {
    this.#stopWriting.abort()
    await this.#working[0]
    const haveAllCome = () => {
      this.#check()
      return this.#came.size >= this.rows
    }
    await until(() => `all ${this.rows} rows come; ${this.rows - this.#came.size} have not`, haveAllCome, { withinMs })
    this.#stop.abort()
    await Promise.all(this.#working)
    this.#check()
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stopWriting.abort()
    this.#stop.abort()
    this.#acking.resolve()
    await Promise.all(this.#working)
    this.#clock[Symbol.dispose]()
    await Promise.all(this.#clients.map((client) => client[Symbol.asyncDispose]()))
  }

  async #until(at: Moment, withinMs: number, what: string, find: (since: readonly Arrival[]) => Arrival | undefined): Promise<number> {
    const arrival = () => {
      this.#check()
      return find(this.#arrivals.filter(({ id }) => this.#committed[id]!.from.wallMs >= at.wallMs))
    }
    const found = await until(what, arrival, { withinMs: at.wallMs + withinMs - performance.now() })
    return msBetween(at, found.at)
  }

  #check(): void {
    if (this.#failure !== undefined) throw this.#failure
  }

  async #write(): Promise<void> {
    const client = await this.#source.connect()
    while (!this.#stopWriting.signal.aborted) {
      const first = this.#committed.length
      const from = this.now()
      for (let n = 0; n < ROWS; n++) this.#committed.push({ from, to: from })
      await client.query('insert into pulse select generate_series($1::int, $2::int)', [first, first + ROWS - 1])
      const to = this.now()
      for (let n = 0; n < ROWS; n++) this.#committed[first + n] = { from, to }
      await pass(EVERY_MS, 'the pace of the pulse')
    }
    await client.end()
  }

  async #consume(client: HttpSinkClient): Promise<void> {
    const { signal } = this.#stop
    const acks = new Set<Promise<void>>()
    while (!signal.aborted && this.#failure === undefined) {
      try {
        const requestedAt = now()
        const messages = await client.receive({ batchSize: 50, waitMs: 500 }, signal)
        const at = this.now()
        for (const { ackId, record } of messages) {
          const id = Number(record['id'])
          if (requestedAt > (this.#acked.get(ackId) ?? Infinity)) throw new Error(`row ${id} came again after its ack was answered`)
          if (!this.#came.has(id)) this.#arrivals.push({ id, partition: partitionOf(ackId), at })
          this.#came.add(id)
        }
        if (messages.length === 0) continue
        const ack: Promise<void> = this.#ack(
          client,
          messages.map(({ ackId }) => ackId),
        ).finally(() => acks.delete(ack))
        acks.add(ack)
        ack.catch((error: unknown) => void (this.#failure ??= error))
      } catch (error) {
        if (signal.aborted) break
        if (!(error instanceof Passing)) throw error
        await pass(RETRY_AFTER_MS, 'it tries again, as a client does')
      }
    }
    await Promise.all(acks)
  }

  /** At the next process when one is away, as behind a load balancer. */
  async #ack(client: HttpSinkClient, ids: readonly string[]): Promise<void> {
    for (const id of ids) this.#inHand.set(partitionOf(id), (this.#inHand.get(partitionOf(id)) ?? 0) + 1)
    await this.#acking.promise
    const startedAt = now()
    let turn = this.#clients.indexOf(client)
    while (!this.#stop.signal.aborted) {
      try {
        await (this.#clients[turn % this.#clients.length] as HttpSinkClient).ack(ids)
        const at = now()
        for (const id of ids) this.#acked.set(id, at)
        for (const partition of ids.map(partitionOf)) {
          const left = (this.#inHand.get(partition) ?? 1) - 1
          if (left > 0) this.#inHand.set(partition, left)
          else this.#inHand.delete(partition)
        }
        this.longestAckMs = Math.max(this.longestAckMs, Math.round(now() - startedAt))
        return
      } catch (error) {
        if (!(error instanceof Passing)) throw error
        if (error.answered) this.putOff++
        else turn += CLIENTS_PER_NODE
        await pass(RETRY_AFTER_MS, 'it tries again, as a client does')
      }
    }
  }
}

const partitionOf = (ackId: string): number => Number.parseInt(ackId.split('.')[2] as string, 36)
