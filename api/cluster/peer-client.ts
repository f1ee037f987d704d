/**
 * Asks other processes of the cluster: over HTTP with connections that stay open, signed both ways, and never longer
 * than a deadline. Where the address of a process says https, its certificate must have that name or address.
 *
 * A receive that is no longer wanted is not cut off: messages that are under way would stay invisible until their
 * visibility timeout passes. It is called off, which the other process answers with what it has (mostly nothing), and
 * what comes all the same is given back. Only a process that doesn't answer that either is cut off; it gives back what it
 * could not write.
 *
 * An answer that was long on its way, because a process stood still meanwhile, is dropped: its messages may be with another
 * client by now, so they are neither passed on nor given back. Nor are those given back that a client has not taken for so long.
 */
import { randomUUID } from 'node:crypto'
import type { Pool } from 'undici'
import { codeOf, EngineError, errorText, isErrorCode, type ErrorCode } from '../../engine/errors.ts'
import type { Logger } from '../../engine/logger.ts'
import { openPool } from '../../engine/net/http.ts'
import type { Node } from '../../engine/state/node-registry.ts'
import type { Shape } from '../../sinks/pull.ts'
import type { Receipt, ReceiveRequest } from '../../actors/sink/running-sink.ts'
import { EMPTY } from './fan-out.ts'
import { PEER_HEADER, type PeerKey } from './peer-key.ts'
import { SHORT_MS, type Asked, type PeerCall } from './verbs.ts'

/** The path below which all routes for peers are. */
export const PEER_PATH = '/internal/peer'
/** The header that says how many messages the answer to a receive has. */
export const COUNT_HEADER = 'x-tailrace-count'
/** The header that says how many milliseconds passed from the arrival of a receive until its messages were handed out. */
export const WAITED_HEADER = 'x-tailrace-waited-ms'
/** Gives the headers that are signed together with the body of an answer. */
export const countsOf = (headers: Readonly<Record<string, unknown>>): string[] =>
  [COUNT_HEADER, WAITED_HEADER].map((name) => String(headers[name] ?? ''))

/** A wait that was called off, or whose time is over, is answered within this. */
const GRACE_MS = 2_000
const CONNECT_MS = 1_000
/** Below the servers' own, so that a request never meets a connection that is just being closed. */
const KEEP_ALIVE_MS = 60_000

type PeerReceive = Omit<ReceiveRequest, 'isCounted'> &
  Readonly<{
    sinkId: string
    /** so long after they were handed out, messages may be with another client */
    staleMs: number
    /** makes messages deliverable again that were taken and are not wanted */
    giveBack: (ackIds: readonly string[]) => void
  }>
/** The form in which a receive travels to a peer. */
export type AskedMessages = Readonly<{ call: string; batch_size: number; wait_ms: number; shape: Shape; ack_token?: boolean }>
type Call = Readonly<{ path: string; body?: string; deadlineMs: number; signal?: AbortSignal }>
type PeerAnswer = Readonly<{ headers: Readonly<Record<string, string | string[] | undefined>>; body: Buffer }>

/** The certificates, in PEM, of the authority that signs those of the processes. A listener that watches them hears when they are renewed. */
export type Authority = Readonly<{ texts: readonly string[]; watch: (listener: () => void) => void }>

/** Calls the other processes of the cluster. */
export class PeerClient implements AsyncDisposable {
  readonly #key: PeerKey
  readonly #logger: Logger
  readonly #authority: Authority | undefined
  /** by address */
  readonly #pools = new Map<string, Pool>()

  /** @param authority the only one whose certificates peers may have; absent: those that Node trusts */
  constructor(key: PeerKey, logger: Logger, authority?: Authority) {
    this.#key = key
    this.#logger = logger
    this.#authority = authority
    authority?.watch(() => this.#renewAuthority())
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
      const asked: AskedMessages = { call: id, batch_size: batchSize, wait_ms: waitMs, shape, ack_token: ackToken }
      const deadlineMs = Math.max(waitMs + GRACE_MS, SHORT_MS)
      const askedAt = performance.now()
      const answer = await this.#call(node, {
        path: `/sinks/${sinkId}/receive`,
        body: JSON.stringify(asked),
        deadlineMs,
        signal: cut.signal,
      })
      const count = Number(answer.headers[COUNT_HEADER])
      const isStale = () => performance.now() - askedAt - Number(answer.headers[WAITED_HEADER] ?? 0) > staleMs
      if (count > 0 && isStale()) return EMPTY
      const back = () => {
        if (!isStale()) giveBack(ackIdsOf(answer.body))
      }
      return { body: answer.body, count, giveBack: back }
    } finally {
      clearTimeout(late)
      signal.removeEventListener('abort', callOff)
    }
  }

  /**
   * Asks another process for what the row of the call says. @throws EngineError PEER_UNREACHABLE, PEER_REFUSED, or what the other
   * process answered
   */
  async ask<A extends readonly unknown[], R>(node: Node, { path, deadlineMs, silent }: PeerCall<A, R>, ...args: A): Promise<R> {
    const left = [...args]
    const below = path.replaceAll(/:\w+/g, () => String(left.shift()))
    const body = left.length > 0 ? JSON.stringify(left[0]) : ''
    try {
      const call = { path: below, body, deadlineMs: typeof deadlineMs === 'number' ? deadlineMs : deadlineMs(...args) }
      return (JSON.parse((await this.#call(node, call)).body.toString()) ?? undefined) as R // a process of this cluster signed it
    } catch (err) {
      if (silent !== undefined) this.#logger.warn({ node: node.name, err }, silent)
      throw err
    }
  }

  /** Each of these with what it answers, once it is asked. */
  asked<A extends readonly unknown[], R>(nodes: readonly Node[], call: PeerCall<A, R>, ...args: A): Asked<R>[] {
    return nodes.map((node) => ({ node: node.name, answer: () => this.ask(node, call, ...args) }))
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
        `the answer from ${node.address} (status ${status}) is not signed with the VAULT_KEY of node ${node.name}`,
        { node: node.name, address: node.address, status },
      )
    }
    if (status === 200) return answer
    throw errorOf(node, status, answer.body)
  }

  /** Calls that are under way come to their end; all others go over connections that are made anew. */
  #renewAuthority(): void {
    this.#logger.info('the certificate of the authority of the cluster was renewed from its file')
    for (const pool of this.#pools.values()) void pool.close().catch(() => undefined)
    this.#pools.clear()
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
        connect: { timeout: CONNECT_MS, minVersion: 'TLSv1.2', ...(this.#authority && { ca: [...this.#authority.texts] }) },
      })
      this.#pools.set(address, pool)
    }
    return pool
  }
}

/** Makes an error of what the other process answered, with its code. */
function errorOf(node: Node, status: number, body: Buffer): EngineError {
  let code: ErrorCode = 'INTERNAL'
  let summary = `status ${status}`
  try {
    const answer = JSON.parse(body.toString()) as { code?: unknown; summary?: unknown }
    if (isErrorCode(answer.code)) code = answer.code
    if (typeof answer.summary === 'string') summary = answer.summary
  } catch {} // without a body of ours the status says enough
  return new EngineError(code, `node ${node.name}: ${summary}`, { node: node.name, status })
}

const reasonOf = (cause: unknown): string => codeOf(cause) ?? errorText(cause)

function ackIdsOf(body: Buffer): string[] {
  return (JSON.parse(body.toString()) as { data: { ack_id: string }[] }).data.map(({ ack_id }) => ack_id)
}
