/**
 * The pull sinks of a whole cluster: a receive takes from the partitions of this process, and when those have nothing, from the
 * owners of the others; acks and nacks go to the owner of each partition.
 *
 *  I1. A request hops once: what a peer asks of us goes to our own engine, never through here.
 *  I2. An ack is answered after every owner has answered that it is durable.
 *  I3. A client is counted (max_waiting) where it came in, and nowhere else.
 *  I4. With the state database out of reach the last known owners are asked; who they are is decided by themselves.
 */
import { EngineError, isRetryable } from '../../engine/errors.ts'
import type { NodeRegistry } from '../../engine/state/node-registry.ts'
import type { PartitionOwners } from '../../engine/state/partition-owners.ts'
import type { Sink } from '../../engine/state/resources.ts'
import type { LocalEngine } from '../../actors/engine.ts'
import type { PulledSink, Receipt, ReceiveRequest } from '../../actors/sink/running-sink.ts'
import type { ClusterAcks } from './cluster-acks.ts'
import { EMPTY, takeInTurn, waitEverywhere, type ReceivePlace } from './fan-out.ts'
import type { PeerClient } from './peer-client.ts'
import { WaitingPlaces } from './receive-call.ts'
import { pulledSink } from './verbs.ts'

type ClusterSinksOptions = Readonly<{
  /** of this process */
  engine: LocalEngine
  /** a sink as it is stored, whether it runs here or not */
  findSink: (id: string) => Sink | undefined
  registry: NodeRegistry
  owners: PartitionOwners
  peers: PeerClient
  acks: ClusterAcks
}>

/** Share of its visibility time that a message may be on its way from its owner. */
const STALE_AT = 0.5
/** While a client waits, the owners are looked up again after this time, because a notice may be lost. */
const LOOK_EVERY_MS = 5_000

/** Gives each pull sink of the cluster to the API, as if all of it ran in this process. */
export class ClusterSinks {
  readonly #options: ClusterSinksOptions
  readonly #waiting = new WaitingPlaces()
  /** which peer is asked first, in turn */
  #turn = 0

  constructor(options: ClusterSinksOptions) {
    this.#options = options
  }

  /** @returns undefined: no process serves it, because it doesn't exist or is off */
  sink(id: string): PulledSink | undefined {
    const { engine, findSink, acks } = this.#options
    const local = engine.sink(id)
    const sink = findSink(id)
    if (!sink || (!local && sink.status !== 'active')) return local
    return {
      receive: (request) => this.#receive(sink, request),
      ack: (ids) => acks.settle(id, 'ack', ids),
      nack: (ids) => acks.settle(id, 'nack', ids),
    }
  }

  async #receive(sink: Sink, request: ReceiveRequest): Promise<Receipt> {
    const { engine } = this.#options
    const startedAt = performance.now()
    const local = engine.sink(sink.id)
    if (local && sink.status !== 'active') return local.receive(request) // off everywhere: it knows how long to hold the client
    if (local) {
      const taken = await local.receive({ ...request, waitMs: 0 }).catch((error: unknown) => {
        if (isRetryable(error)) return EMPTY // it stops or begins anew: others may have something
        throw error
      })
      if (taken.count > 0) return taken
    }
    const peers = await this.#peersOf(sink)
    const first = this.#turn++ % Math.max(1, peers.length)
    const taken = await takeInTurn([...peers.slice(first), ...peers.slice(0, first)], request).catch((error: unknown) => {
      if (local || request.waitMs > 0) return undefined // others may have something yet
      throw error
    })
    if (taken) return taken
    if (!local && peers.length === 0 && request.waitMs === 0) throw notServed(sink)
    const waitMs = Math.floor(request.waitMs - (performance.now() - startedAt))
    if (waitMs <= 0 || request.signal.aborted) return EMPTY
    return this.#wait(sink, { ...request, waitMs, isCounted: true })
  }

  async #wait(sink: Sink, request: ReceiveRequest): Promise<Receipt> {
    using places = new DisposableStack()
    places.use(this.#waiting.take(sink))
    let asked = 0
    const placesNow = async () => {
      const found = [...this.#localPlace(sink.id), ...(await this.#peersOf(sink))]
      asked += found.length
      return found
    }
    const watch = (listener: () => void) => this.#watch(sink.id, listener)
    const taken = await waitEverywhere({ places: placesNow, watch, lookEveryMs: LOOK_EVERY_MS }, request)
    if (!taken && asked === 0 && !request.signal.aborted) throw notServed(sink)
    return taken ?? EMPTY
  }

  #localPlace(sinkId: string): ReceivePlace[] {
    const { engine, registry } = this.#options
    if (!engine.sink(sinkId)) return []
    return [{ id: registry.id, receive: async (request) => pulledSink(engine, sinkId).receive(request) }] // another one after a restart
  }

  /** The other live processes that own partitions of the sink. */
  async #peersOf({ id: sinkId, ack_wait_ms: ackWaitMs }: Sink): Promise<ReceivePlace[]> {
    const { registry, peers, acks } = this.#options
    const owners = await acks.ownersOf(sinkId)
    const giveBack = (ids: readonly string[]) => acks.giveBack(sinkId, ids)
    const holders = new Set(owners?.values())
    return registry.peers
      .filter(({ id }) => holders.has(id))
      .map((node) => ({
        id: node.id,
        receive: (request) => peers.receive(node, { ...request, sinkId, staleMs: ackWaitMs * STALE_AT, giveBack }),
      }))
  }

  #watch(sinkId: string, listener: () => void): () => void {
    const { registry, owners } = this.#options
    const unwatchNodes = registry.watch(listener)
    const unwatchOwners = owners.watch((changed) => {
      if (changed === undefined || changed === sinkId) listener()
    })
    return () => {
      unwatchNodes()
      unwatchOwners()
    }
  }
}

const notServed = (sink: Sink) => new EngineError('SINK_NOT_RUNNING', `no node serves sink ${sink.name} at the moment`, { sink: sink.name })
