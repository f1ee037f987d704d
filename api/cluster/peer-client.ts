/**
 * Asks other processes of the cluster: over HTTP with connections that stay open, signed both ways, and never longer
 * than a deadline.
 *
 * A receive that is no longer wanted is not cut off: messages that are under way would stay invisible until their
 * visibility timeout passes. It is called off, which the other process answers with what it has (mostly nothing), and
 * what comes all the same is given back. Only a process that doesn't answer that either is cut off; it gives back what it
 * could not write.
 *
 * An answer that was long on its way, because a process stood still meanwhile, is nobody's: its messages may be with another
 * client by now, so they are neither passed on nor given back.
 */
import { randomUUID } from 'node:crypto'
import type { Pool } from 'undici'
import { EngineError, ERRORS, type ErrorCode } from '../../engine/errors.ts'
import type { MessageRecord, MessageEdit } from '../../engine/dispatch/parked/message-records.ts'
import { openPool } from '../../engine/net/http.ts'
import type { Node } from '../../engine/state/node-registry.ts'
import type { RecentAsked, RecentMessage } from '../../actors/recent-messages.ts'
import type { MessageLook, ShownMessage } from '../../actors/shown-message.ts'
import type { EditedMessages, HeldSink, MessageChoice, Receipt, ReceiveRequest } from '../../actors/sink/running-sink.ts'
import type { SourceOutcome } from '../../actors/source/source-actor.ts'
import type { Health } from '../../engine/status.ts'
import { PEER_HEADER, type PeerKey } from './peer-key.ts'

export const PEER_PATH = '/internal/peer'
export const COUNT_HEADER = 'x-tailrace-count'
/** milliseconds from the arrival of a receive to the moment its messages were handed out */
export const WAITED_HEADER = 'x-tailrace-waited-ms'
/** Headers that are signed with the body of an answer. */
export const countsOf = (headers: Readonly<Record<string, unknown>>): string[] =>
  [COUNT_HEADER, WAITED_HEADER].map((name) => String(headers[name] ?? ''))

/** What only has to be looked up or taken. */
const SHORT_MS = 1_000
/** Functions may take a second each, and the query of an enrichment five. */
const RUN_MS = 10_000
/** An ack waits for its commit. */
const SETTLE_MS = 15_000
/** It may have to come to rest first, then its partitions stop. */
const HOLD_MS = 25_000
/** A wait that was called off, or whose time is over, is answered within this. */
const GRACE_MS = 2_000
const CONNECT_MS = 1_000
/** Below the servers' own, so that a request never meets a connection that is just being closed. */
const KEEP_ALIVE_MS = 60_000

const NOTHING = Buffer.from('{"data":[]}')

type PeerReceive = Omit<ReceiveRequest, 'isCounted'> &
  Readonly<{
    sinkId: string
    /** an answer that was under way for longer may hold messages of somebody else */
    staleMs: number
    /** makes messages deliverable again that were taken and are not wanted */
    giveBack: (ackIds: readonly string[]) => void
  }>
export type PeerMessage = Readonly<{ id: string }> & MessageLook
export type PeerEdit = Readonly<{ sinkId: string; edit: MessageEdit; choice: MessageChoice }>
type Call = Readonly<{ path: string; body?: string; deadlineMs: number; signal?: AbortSignal }>
type PeerAnswer = Readonly<{ headers: Readonly<Record<string, string | string[] | undefined>>; body: Buffer }>

export class PeerClient implements AsyncDisposable {
  readonly #key: PeerKey
  /** by address */
  readonly #pools = new Map<string, Pool>()

  constructor(key: PeerKey) {
    this.#key = key
  }

  /**
   * Takes messages there. Settles soon after the request's signal is aborted.
   * @throws EngineError PEER_UNREACHABLE, PEER_REFUSED, or what the other process answered
   */
  async receive(node: Node, request: PeerReceive): Promise<Receipt> {
    const { sinkId, batchSize, waitMs, shape, ackToken = false, signal, staleMs, giveBack } = request
    const id = randomUUID()
    const cut = new AbortController()
    const late = setTimeout(() => cut.abort(), Math.max(waitMs + GRACE_MS, SHORT_MS))
    const callOff = () => {
      setTimeout(() => cut.abort(), GRACE_MS).unref()
      if (waitMs > 0) this.#call(node, { path: `/calls/${id}/end`, deadlineMs: SHORT_MS }).catch(() => undefined) // then it is cut
    }
    signal.addEventListener('abort', callOff)
    if (signal.aborted) callOff()
    try {
      const body = JSON.stringify({ call: id, batch_size: batchSize, wait_ms: waitMs, shape, ack_token: ackToken })
      const deadlineMs = Math.max(waitMs + GRACE_MS, SHORT_MS)
      const askedAt = performance.now()
      const answer = await this.#call(node, { path: `/sinks/${sinkId}/receive`, body, deadlineMs, signal: cut.signal })
      const count = Number(answer.headers[COUNT_HEADER])
      const underWayMs = performance.now() - askedAt - Number(answer.headers[WAITED_HEADER] ?? 0)
      if (count > 0 && underWayMs > staleMs) return { body: NOTHING, count: 0, giveBack: () => undefined }
      return { body: answer.body, count, giveBack: () => giveBack(ackIdsOf(answer.body)) }
    } finally {
      clearTimeout(late)
      signal.removeEventListener('abort', callOff)
    }
  }

  /** Settles when it is durable there. @throws EngineError PEER_UNREACHABLE, PEER_REFUSED, or what the other process answered */
  async settle(node: Node, sinkId: string, what: 'ack' | 'nack', ackIds: readonly string[]): Promise<void> {
    await this.#call(node, { path: `/sinks/${sinkId}/${what}`, body: JSON.stringify(ackIds), deadlineMs: SETTLE_MS })
  }

  /** Settles when it is durable there. @throws EngineError PEER_UNREACHABLE, PEER_REFUSED, or what the other process answered */
  async editMessages(node: Node, { sinkId, ...edit }: PeerEdit): Promise<EditedMessages> {
    const { body } = await this.#call(node, { path: `/sinks/${sinkId}/messages`, body: JSON.stringify(edit), deadlineMs: SETTLE_MS })
    return JSON.parse(body.toString()) as EditedMessages
  }

  /** The newest messages that were delivered there. */
  async delivered(node: Node, sinkId: string, limit: number): Promise<readonly MessageRecord[]> {
    const { body } = await this.#call(node, { path: `/sinks/${sinkId}/delivered`, body: JSON.stringify({ limit }), deadlineMs: SHORT_MS })
    return JSON.parse(body.toString()) as MessageRecord[]
  }

  /** A message as that process knows it. */
  async message(node: Node, sinkId: string, asked: PeerMessage): Promise<ShownMessage | undefined> {
    const deadlineMs = asked.withFunctions ? RUN_MS : SHORT_MS
    const { body } = await this.#call(node, { path: `/sinks/${sinkId}/message`, body: JSON.stringify(asked), deadlineMs })
    return (JSON.parse(body.toString()) as ShownMessage | null) ?? undefined
  }

  /** The last messages that sinks have read there. */
  async recent(node: Node, asked: RecentAsked): Promise<readonly RecentMessage[]> {
    const { body } = await this.#call(node, { path: '/recent', body: JSON.stringify(asked), deadlineMs: SHORT_MS })
    return JSON.parse(body.toString()) as RecentMessage[]
  }

  /** What a process says of itself. */
  async report(node: Node, deadlineMs: number): Promise<unknown> {
    return JSON.parse((await this.#call(node, { path: '/report', deadlineMs })).body.toString())
  }

  /** How these sinks are there, as far as it runs them. */
  async sinkHealth(node: Node, ids: readonly string[]): Promise<ReadonlyMap<string, Health>> {
    const { body } = await this.#call(node, { path: '/health', body: JSON.stringify(ids), deadlineMs: SHORT_MS })
    return new Map(Object.entries(JSON.parse(body.toString()) as Record<string, Health>))
  }

  /** Settles when what is stored at this moment has taken effect there. */
  async reload(node: Node, deadlineMs: number): Promise<void> {
    await this.#call(node, { path: '/reload', deadlineMs })
  }

  /** @returns what the source there had stopped at. @throws EngineError NO_GAP, PEER_UNREACHABLE, … */
  async acceptGap(node: Node, databaseId: string): Promise<string> {
    const { body } = await this.#call(node, { path: `/sources/${databaseId}/accept-gap`, deadlineMs: SETTLE_MS })
    return (JSON.parse(body.toString()) as { accepted: string }).accepted
  }

  /** Settles when what it serves of the sink has stopped. @throws EngineError REPLAY_RUNNING, SINK_NOT_RUNNING, PEER_UNREACHABLE, … */
  async holdSink(node: Node, sinkId: string, by: string): Promise<HeldSink> {
    const { body } = await this.#call(node, { path: `/sinks/${sinkId}/hold/${by}`, deadlineMs: HOLD_MS })
    return JSON.parse(body.toString()) as HeldSink
  }

  async releaseSink(node: Node, sinkId: string, by: string): Promise<void> {
    await this.#call(node, { path: `/sinks/${sinkId}/release/${by}`, deadlineMs: SETTLE_MS })
  }

  /** @returns how the source there is then, at the latest after `waitMs` */
  async retrySource(node: Node, databaseId: string, waitMs: number): Promise<SourceOutcome> {
    const call = { path: `/sources/${databaseId}/retry`, body: JSON.stringify({ wait_ms: waitMs }), deadlineMs: waitMs + SHORT_MS }
    return JSON.parse((await this.#call(node, call)).body.toString()) as SourceOutcome
  }

  /** Ends connections to addresses that none of these has. */
  keepOnly(nodes: readonly Node[]): void {
    const wanted = new Set(nodes.map(({ address }) => address))
    for (const [address, pool] of this.#pools) {
      if (wanted.has(address)) continue
      this.#pools.delete(address)
      void pool.destroy().catch(() => undefined)
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all([...this.#pools.values()].map((pool) => pool.destroy().catch(() => undefined)))
    this.#pools.clear()
  }

  async #call(node: Node, { path: below, body = '', deadlineMs, signal }: Call): Promise<PeerAnswer> {
    const path = PEER_PATH + below
    const { header, mac } = this.#key.sign({ method: 'POST', path, to: node.id }, body)
    const deadline = AbortSignal.timeout(deadlineMs)
    let status: number
    let answer: PeerAnswer
    try {
      const response = await this.#pool(node.address).request({
        method: 'POST',
        path,
        headers: { [PEER_HEADER]: header },
        body,
        signal: signal ? AbortSignal.any([deadline, signal]) : deadline,
      })
      status = response.statusCode
      answer = { headers: response.headers, body: Buffer.from(await response.body.arrayBuffer()) }
    } catch (cause) {
      const why = deadline.aborted ? `did not answer within ${deadlineMs} ms` : `cannot be reached: ${reasonOf(cause)}`
      throw new EngineError(
        'PEER_UNREACHABLE',
        `node ${node.name} at ${node.address} ${why}`,
        { node: node.name, address: node.address },
        { cause },
      )
    }
    if (!this.#key.isAnswer(answer.headers[PEER_HEADER], mac, { status, body: answer.body, counts: countsOf(answer.headers) })) {
      throw new EngineError(
        'PEER_REFUSED',
        `what answers at ${node.address} (status ${status}) does not share the key of node ${node.name}`,
        { node: node.name, address: node.address, status },
      )
    }
    if (status === 200) return answer
    throw told(node, status, answer.body)
  }

  #pool(address: string): Pool {
    let pool = this.#pools.get(address)
    if (!pool) {
      // as many connections as there are waits: an ack must not stand behind one
      pool = openPool(address, {
        connections: null,
        pipelining: 1,
        keepAliveTimeout: KEEP_ALIVE_MS,
        keepAliveMaxTimeout: KEEP_ALIVE_MS,
        headersTimeout: 0, // each call has its deadline
        bodyTimeout: 0,
        connect: { timeout: CONNECT_MS },
      })
      this.#pools.set(address, pool)
    }
    return pool
  }
}

/** The error that the other process answered with, by its code. */
function told(node: Node, status: number, body: Buffer): EngineError {
  let code: ErrorCode = 'INTERNAL'
  let summary = `status ${status}`
  try {
    const parsed = JSON.parse(body.toString()) as { code?: unknown; summary?: unknown }
    if (typeof parsed.code === 'string' && parsed.code in ERRORS) code = parsed.code as ErrorCode
    if (typeof parsed.summary === 'string') summary = parsed.summary
  } catch {} // the status has to do
  return new EngineError(code, `node ${node.name}: ${summary}`, { node: node.name, status })
}

const reasonOf = (cause: unknown): string =>
  cause instanceof Error ? ('code' in cause && typeof cause.code === 'string' ? cause.code : cause.message) : String(cause)

function ackIdsOf(body: Buffer): string[] {
  return (JSON.parse(body.toString()) as { data: { ack_id: string }[] }).data.map(({ ack_id }) => ack_id)
}
