/**
 * What a process does for the others of its cluster, on the port of the API, below a path that the OpenAPI document
 * doesn't have. Only this process's own engine is asked: a request hops once. Whoever does not hold the cluster's key gets
 * a 401 before its body is read.
 */
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { EngineError } from '../../engine/errors.ts'
import type { LocalEngine } from '../../actors/engine.ts'
import type { RecentAsked } from '../../actors/recent-messages.ts'
import type { PulledSink } from '../../actors/sink/running-sink.ts'
import type { Shape } from '../../sinks/pull.ts'
import type { KnownNode } from './node-report.ts'
import { COUNT_HEADER, countsOf, PEER_PATH, WAITED_HEADER, type PeerEdit, type PeerMessage } from './peer-client.ts'
import { PEER_HEADER, TakenRequests, type PeerClaim, type PeerKey } from './peer-key.ts'
import type { OpenReceives, ReceiveCall } from './receive-call.ts'
import { JSON_TYPE, type RouteConfig } from '../http/operation.ts'
import type { Strangers } from '../http/strangers.ts'

type PeerService = Readonly<{
  key: PeerKey
  nodeId: string
  /** of this process alone */
  engine: LocalEngine
  /** what this process says of itself: plain JSON */
  report: () => unknown
}>

/** The part that a process plays in a cluster: it answers its peers, and knows how they are. */
export type ServedCluster = Readonly<{ service: PeerService; nodes: () => Promise<readonly KnownNode[]> }>

const MAX_BODY_BYTES = 32 * 1_048_576
const EMPTY = Buffer.from('{"data":[]}')
const DONE = '{"success":true}'
/** A call that was called off before it arrived is remembered so long. */
const EARLY_MS = 10_000
const MAX_EARLY = 10_000

declare module 'fastify' {
  interface FastifyRequest {
    peer: PeerClaim | null
  }
}

export function addPeerRoutes(
  app: FastifyInstance,
  { service, receives, strangers }: Readonly<{ service: PeerService; receives: OpenReceives; strangers: Strangers }>,
): void {
  const { key, nodeId, engine } = service
  const calls = new OpenCalls()
  const taken = new TakenRequests()

  const sinkOf = (request: FastifyRequest): PulledSink => {
    const { sink: id = '' } = request.params as { sink?: string }
    const running = engine.sink(id)
    if (!running) throw new EngineError('SINK_NOT_RUNNING', 'the sink has no actor on this node', { sink: id })
    return running
  }

  const receive = async (request: FastifyRequest, reply: FastifyReply): Promise<unknown> => {
    if (receives.stopping) throw new EngineError('STOPPING', 'the service is stopping')
    const arrivedAt = performance.now()
    const asked = bodyOf(request) as { call: string; batch_size: number; wait_ms: number; shape: Shape; ack_token?: boolean }
    const sink = sinkOf(request)
    const call = receives.begin(reply.raw)
    const forget = calls.add(asked.call, call)
    try {
      const receipt = await sink.receive({
        batchSize: asked.batch_size,
        waitMs: asked.wait_ms,
        shape: asked.shape,
        ackToken: asked.ack_token === true,
        signal: call.signal,
        isCounted: true,
      })
      if (!call.took(receipt)) return void reply.hijack() // who asked has gone
      reply.header(COUNT_HEADER, receipt.count)
      reply.header(WAITED_HEADER, Math.floor(performance.now() - arrivedAt))
      return receipt.body
    } catch (error) {
      call.failed()
      if (call.gone) return void reply.hijack()
      if (!call.signal.aborted) throw error
      reply.header(COUNT_HEADER, 0) // called off: an abort may settle as a rejection
      return EMPTY
    } finally {
      forget()
    }
  }

  const settle = (what: 'ack' | 'nack') => async (request: FastifyRequest) => {
    await sinkOf(request)[what](bodyOf(request) as string[])
    return DONE
  }

  app.register(async (scope) => {
    scope.decorateRequest('peer', null)
    scope.removeAllContentTypeParsers()
    scope.addContentTypeParser('*', { parseAs: 'buffer' }, (_request, body, done) => done(null, body))
    scope.addHook('onRequest', async (request, reply) => {
      const claim = key.claim(request.headers[PEER_HEADER], { method: request.method, path: request.url, to: nodeId })
      const isOurs = claim !== undefined && !('meantFor' in claim) && taken.take(claim)
      if (isOurs) strangers.know(request.raw.socket)
      else if (!strangers.admit(request.raw.socket, reply.raw)) return reply.hijack()
      if (!claim) throw new EngineError('PEER_UNAUTHORIZED', 'The path is for the other nodes of the cluster.')
      request.peer = { bodyHash: '', timeMs: 0, ...claim } // before all else, so that errors are signed too
      if ('meantFor' in claim) throw new EngineError('PEER_UNREACHABLE', 'the node that is asked is not here any more')
      if (!isOurs) throw new EngineError('PEER_UNAUTHORIZED', 'The request was sent before.')
      reply.header('content-type', JSON_TYPE)
    })
    scope.addHook('preValidation', async (request) => {
      if (request.peer && !key.isBody(request.peer, (request.body as Buffer | undefined) ?? ''))
        throw new EngineError('PEER_UNAUTHORIZED', 'The body is not the one that was signed.')
    })
    scope.addHook('onSend', async (request, reply, payload) => {
      if (!request.peer) return
      const answer = { status: reply.statusCode, body: (payload ?? '') as string | Buffer, counts: countsOf(reply.getHeaders()) }
      reply.header(PEER_HEADER, key.signAnswer(request.peer.mac, answer))
    })
    const post = (path: string, handle: (request: FastifyRequest, reply: FastifyReply) => Promise<unknown>) =>
      scope.post(PEER_PATH + path, { bodyLimit: MAX_BODY_BYTES, config: { isPeer: true } satisfies RouteConfig }, handle)
    post('/sinks/:sink/receive', receive)
    post('/sinks/:sink/ack', settle('ack'))
    post('/sinks/:sink/nack', settle('nack'))
    const replayed = (request: FastifyRequest) => request.params as { sink: string; by: string }
    post('/sinks/:sink/hold/:by', async (request) => {
      const { sink, by } = replayed(request)
      return JSON.stringify(await engine.holdSink(sink, by))
    })
    post('/sinks/:sink/release/:by', async (request) => {
      const { sink, by } = replayed(request)
      await engine.releaseSink(sink, by)
      return DONE
    })
    const sinkIdOf = (request: FastifyRequest) => (request.params as { sink: string }).sink
    post('/sinks/:sink/messages', async (request) => {
      const { edit, choice } = bodyOf(request) as Omit<PeerEdit, 'sinkId'>
      return JSON.stringify(await engine.editMessages(sinkIdOf(request), edit, choice))
    })
    post('/sinks/:sink/delivered', async (request) =>
      JSON.stringify(await engine.delivered(sinkIdOf(request), (bodyOf(request) as { limit: number }).limit)),
    )
    post('/sinks/:sink/message', async (request) => {
      const { id, ...look } = bodyOf(request) as PeerMessage
      return JSON.stringify((await engine.message(sinkIdOf(request), id, look)) ?? null)
    })
    post('/recent', async (request) => JSON.stringify(await engine.recent(bodyOf(request) as RecentAsked)))
    post('/calls/:call/end', async (request) => {
      calls.end((request.params as { call: string }).call)
      return DONE
    })
    post('/health', async (request) => JSON.stringify(Object.fromEntries(await engine.sinkHealth(bodyOf(request) as string[]))))
    post('/report', async () => JSON.stringify(service.report()))
    const databaseOf = (request: FastifyRequest) => (request.params as { database: string }).database
    post('/sources/:database/accept-gap', async (request) => JSON.stringify({ accepted: await engine.acceptGap(databaseOf(request)) }))
    post('/sources/:database/retry', async (request) => {
      const { wait_ms: waitMs } = bodyOf(request) as { wait_ms: number }
      return JSON.stringify(await engine.retrySource(databaseOf(request), waitMs))
    })
    post('/reload', async () => {
      await engine.reload()
      return DONE
    })
  })
}

/** The body was signed by a peer, which checked what its client sent: it has the form that peers send. */
function bodyOf(request: FastifyRequest): unknown {
  return JSON.parse((request.body as Buffer).toString())
}

/** Receives that a peer waits for, by its name for them, so that it can call them off. */
class OpenCalls {
  readonly #open = new Map<string, ReceiveCall>()
  /** called off before they came: two connections are in no order */
  readonly #early = new Set<string>()

  add(id: string, call: ReceiveCall): () => void {
    if (this.#early.delete(id)) call.end()
    this.#open.set(id, call)
    return () => this.#open.delete(id)
  }

  end(id: string): void {
    const call = this.#open.get(id)
    if (call) return call.end()
    if (this.#early.size >= MAX_EARLY) return
    this.#early.add(id)
    setTimeout(() => this.#early.delete(id), EARLY_MS).unref()
  }
}
