/**
 * Answers the other processes of the cluster, on the port of the API, below a path that the OpenAPI document
 * doesn't have. Only this process's own engine is asked: a request hops once. A request without the signature of the cluster gets
 * a 401 before its body is read.
 */
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { EngineError } from '../../engine/errors.ts'
import type { LocalEngine } from '../../actors/engine.ts'
import { EMPTY } from './fan-out.ts'
import type { KnownNode } from './node-report.ts'
import { COUNT_HEADER, countsOf, PEER_PATH, WAITED_HEADER, type AskedMessages } from './peer-client.ts'
import { PEER_HEADER, TakenRequests, type PeerClaim, type PeerKey } from './peer-key.ts'
import type { OpenReceives, ReceiveCall } from './receive-call.ts'
import { JSON_TYPE } from '../http/operation.ts'
import type { Strangers } from '../http/strangers.ts'
import { PEER_CALLS, pulledSink, VERBS, type PeerCall } from './verbs.ts'

type PeerService = Readonly<{
  key: PeerKey
  nodeId: string
  /** of this process alone */
  engine: LocalEngine
}>

/** The part that a process plays in a cluster: it answers its peers, and knows how they are. */
export type ServedCluster = Readonly<{ service: PeerService; nodes: () => Promise<readonly KnownNode[]> }>

type PeerRoute = { Params: Readonly<Record<string, string>>; Body: Buffer | undefined }
type PeerRequest = FastifyRequest<PeerRoute>

const MAX_BODY_BYTES = 32 * 1_048_576
const DONE = '{"success":true}'
/** A call that was called off before it arrived is remembered so long. */
const EARLY_MS = 10_000
const MAX_EARLY = 10_000

declare module 'fastify' {
  interface FastifyRequest {
    peer: PeerClaim | null
  }
}

/** Serves the rows of the verbs that have a path, and the receives of peers. */
export function addPeerRoutes(
  app: FastifyInstance,
  { service, receives, strangers }: Readonly<{ service: PeerService; receives: OpenReceives; strangers: Strangers }>,
): void {
  const { key, nodeId, engine } = service
  const calls: readonly PeerCall<never[], unknown>[] = [
    ...Object.values(VERBS).filter((place) => typeof place === 'object'),
    ...Object.values(PEER_CALLS),
  ]
  const open = new OpenCalls()
  const taken = new TakenRequests()

  const receive = async (request: PeerRequest, reply: FastifyReply): Promise<unknown> => {
    if (receives.stopping) throw new EngineError('STOPPING', 'the service is stopping')
    const arrivedAt = performance.now()
    const { sink: sinkId = '' } = request.params
    const sink = pulledSink(engine, sinkId)
    const asked = bodyOf<AskedMessages>(request)
    const call = receives.begin(reply.raw)
    const forget = open.add(asked.call, call)
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
      return EMPTY.body
    } finally {
      forget()
    }
  }

  app.register(async (scope) => {
    scope.decorateRequest('peer', null)
    scope.removeAllContentTypeParsers()
    scope.addContentTypeParser('*', { parseAs: 'buffer' }, (_request, body, done) => done(null, body))
    scope.addHook('onRequest', async (request, reply) => {
      const claim = key.claim(request.headers[PEER_HEADER], { method: request.method, path: request.url, to: nodeId })
      const isOurs = claim !== undefined && !('meantFor' in claim) && taken.take(claim)
      if (isOurs) strangers.know(request.raw.socket)
      else if (!strangers.admit(request.raw.socket, reply.raw, request.ip)) return reply.hijack()
      if (!claim) throw new EngineError('PEER_UNAUTHORIZED', 'This path is only for the other nodes of the cluster.')
      request.peer = { bodyHash: '', timeMs: 0, ...claim } // before all else, so that errors are signed too
      if ('meantFor' in claim) throw new EngineError('PEER_UNREACHABLE', 'the node that was asked does not run at this address any more')
      if (!isOurs) throw new EngineError('PEER_UNAUTHORIZED', 'This signed request has been sent before.')
      reply.header('content-type', JSON_TYPE)
    })
    scope.addHook('preValidation', async (request) => {
      if (request.peer && !key.isBody(request.peer, Buffer.isBuffer(request.body) ? request.body : ''))
        throw new EngineError('PEER_UNAUTHORIZED', 'The body of the request is not the one that was signed.')
    })
    scope.addHook('onSend', async (request, reply, payload: string | Buffer | undefined) => {
      if (!request.peer) return
      const answer = { status: reply.statusCode, body: payload ?? '', counts: countsOf(reply.getHeaders()) }
      reply.header(PEER_HEADER, key.signAnswer(request.peer.mac, answer))
    })
    const post = (path: string, handle: (request: PeerRequest, reply: FastifyReply) => Promise<unknown>) =>
      scope.post<PeerRoute>(PEER_PATH + path, { bodyLimit: MAX_BODY_BYTES, config: { isPeer: true } }, handle)
    for (const { path, run } of calls) {
      const parameters = [...path.matchAll(/:(\w+)/g)]
      post(path, async (request) => {
        const ids = parameters.map(([, name = '']) => request.params[name])
        const args = request.body?.length ? [...ids, bodyOf(request)] : ids
        return JSON.stringify((await run(engine, ...(args as never[]))) ?? null) // as they were signed by a peer
      })
    }
    post('/sinks/:sink/receive', receive)
    post('/calls/:call/end', async ({ params: { call = '' } }) => {
      open.end(call)
      return DONE
    })
  })
}

/** The body was signed by a peer, which checked what its client sent: it has the form that peers send. */
const bodyOf = <T>({ body }: PeerRequest): T => JSON.parse(String(body)) as T

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
