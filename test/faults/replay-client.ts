/** A client of a pull sink of small messages that acks what it gets, and sets the sink back. */
import assert from 'node:assert/strict'
import type { TestDatabase } from '../services/postgres.ts'
import type { Service } from './service.ts'
import { until } from '../waiting.ts'

export type Item = Readonly<{
  ack_id: string
  record: Readonly<{ id: number; version: number }>
  metadata: Readonly<{ commit_lsn: number; commit_timestamp: string }>
}>
type Replayed = Readonly<{ partitions: number; messages: number; from: Readonly<{ lsn: string; commit_lsn: number; time: string }> }>

const IDLE_MS = 60_000

export class ReplayClient {
  readonly #nodes: readonly Service[]
  readonly #path: string
  readonly #sink: string
  #turn = 0

  /** @param nodes asked in turn */
  constructor(nodes: Service | readonly Service[], sink: string) {
    this.#nodes = Array.isArray(nodes) ? (nodes as readonly Service[]) : [nodes as Service]
    this.#sink = sink
    this.#path = `/api/http_pull_consumers/${sink}`
  }

  async receive(batchSize: number, waitMs = 0): Promise<readonly Item[]> {
    const { data } = (await this.#post('receive', { batch_size: batchSize, wait_for: waitMs })) as { data: Item[] }
    return data
  }

  async ack(messages: readonly Item[]): Promise<void> {
    if (messages.length > 0) await this.#post('ack', { ack_ids: messages.map(({ ack_id: id }) => id) })
  }

  /** Receives and acks until so many have come. */
  ackAll(count: number): Promise<readonly Item[]> {
    return this.ackUntil((all) => all.length >= count)
  }

  /** Receives and acks until each of these rows has come in each of these versions, whatever comes more than once. */
  ackVersions(rows: number, versions: readonly number[]): Promise<readonly Item[]> {
    const isWanted = new Set(versions)
    return this.ackUntil((all) => {
      const came = new Set(all.filter(({ record }) => isWanted.has(record.version)).map(({ record }) => `${record.id}/${record.version}`))
      return came.size >= rows * versions.length
    })
  }

  /** Receives and acks until it is enough. */
  async ackUntil(enough: (all: readonly Item[]) => boolean): Promise<readonly Item[]> {
    const all: Item[] = []
    while (!enough(all)) {
      const some = await this.receive(1000, IDLE_MS)
      assert.ok(some.length > 0, `${all.length} messages came, and none more`)
      await this.ack(some)
      all.push(...some)
    }
    return all
  }

  /** Settles when the sink keeps so many messages to be replayed, over all nodes. */
  async untilKept(messages: number): Promise<void> {
    type Actor = { name: string | null; kind: string; details: { keptMessages?: number } }
    let last = 0
    const isKept = async () => {
      const { nodes } = (await this.#next().get('/info')).body as { nodes: { actors: Actor[] }[] }
      const sinks = nodes.flatMap(({ actors }) => actors).filter(({ kind, name }) => kind === 'sink' && name === this.#sink)
      const kept = sinks.reduce((sum, { details: { keptMessages = 0 } }) => sum + keptMessages, 0)
      last = kept
      return sinks.length > 0 && kept === messages
    }
    await until(() => `${messages} messages are kept, now ${last}`, isKept)
  }

  /** Once, whatever it is answered. */
  async replay(to: object): Promise<{ status: number; body: Replayed & Record<string, unknown> }> {
    const answer = await this.#next().post(`/api/sinks/${this.#sink}/replay`, to)
    return answer as { status: number; body: Replayed & Record<string, unknown> }
  }

  /** Again for as long as the answer is to try again, as it may be for a while after a process has died, or was taken for dead. */
  async replayWhenPossible(to: object): Promise<Awaited<ReturnType<ReplayClient['replay']>> & { tries: number }> {
    let tries = 0
    let last = ''
    const done = async () => {
      tries++
      const answer = await this.replay(to)
      last = JSON.stringify(answer)
      return answer.status !== 503 && answer.status !== 409 && answer
    }
    const answer = await until(() => `an answer other than to try again: ${last}`, done)
    return { ...answer, tries }
  }

  #next(): Service {
    return this.#nodes[this.#turn++ % this.#nodes.length] as Service
  }

  /** Tries again what a client is to try again. */
  async #post(operation: string, body: object): Promise<unknown> {
    let last = ''
    const taken = async () => {
      const answer = await this.#next().post(`${this.#path}/${operation}`, body)
      last = `${operation}: ${answer.status} ${JSON.stringify(answer.body)}`
      assert.ok(answer.status === 200 || answer.status === 503, last)
      return answer.status === 200 && answer
    }
    return (await until(() => last, taken)).body
  }
}

/** One transaction for each version of all rows. */
export async function writeVersions(source: TestDatabase, rows: number, versions: readonly number[]): Promise<void> {
  for (const version of versions)
    await source.query(
      `insert into item select id, $2 from generate_series(1, $1::int) id on conflict (id) do update set version = excluded.version`,
      [rows, version],
    )
}

/** Of each row, in the order they came. */
export function versionsOf(messages: readonly Item[]): Readonly<Record<number, readonly number[]>> {
  const byId: Record<number, number[]> = {}
  for (const { record } of messages) (byId[record.id] ??= []).push(record.version)
  return byId
}

/** Each version of each row where it came first. */
export function firstVersionsOf(messages: readonly Item[]): Readonly<Record<number, readonly number[]>> {
  return Object.fromEntries(Object.entries(versionsOf(messages)).map(([id, versions]) => [id, [...new Set(versions)]]))
}

/** @throws AssertionError a row's versions did not come in their order, or one came twice */
export function inOrder(messages: readonly Item[]): void {
  for (const [id, versions] of Object.entries(versionsOf(messages)))
    assert.deepEqual(
      versions,
      [...new Set(versions)].sort((a, b) => a - b),
      `row ${id}`,
    )
}
