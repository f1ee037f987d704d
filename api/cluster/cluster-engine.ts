/**
 * The engine of a whole cluster, as the API asks it: any process answers any call. A receive takes from the
 * partitions of this process, and when those have nothing, from the owners of the others; acks and nacks go to the owner
 * of each partition; an edit is told to every process before it is answered.
 *
 *  I1. A request hops once: what a peer asks of us goes to our own engine, never through here.
 *  I2. An ack is answered after every owner has answered that it is durable.
 *  I3. A client is counted (max_waiting) where it came in, and nowhere else.
 *  I4. With the state database out of reach the last known owners are asked; who they are is decided by themselves.
 */
import type { MessageRecord, MessageEdit } from '../../engine/dispatch/parked/message-records.ts'
import { EngineError, isRetryable } from '../../engine/errors.ts'
import type { Node } from '../../engine/state/node-registry.ts'
import type { HttpEndpoint } from '../../engine/state/destinations.ts'
import type { EndpointInput, SinkInput } from '../../engine/state/resource-store.ts'
import type { Account, Database, Sink } from '../../engine/state/resources.ts'
import type { StreamStatus } from '../../actors/backlog/stream-figures.ts'
import type { EngineVerbs, LocalEngine } from '../../actors/engine.ts'
import type { Readiness } from '../../actors/readiness.ts'
import type { SinkChanges } from '../../actors/resource-edits.ts'
import type { MessageLook, ShownMessage } from '../../actors/shown-message.ts'
import type { Holder, Replayed } from '../../actors/sink/replays.ts'
import type { EditedMessages, MessageChoice, PulledSink, Receipt, ReceiveRequest } from '../../actors/sink/running-sink.ts'
import type { SourceOutcome } from '../../actors/source/source-actor.ts'
import type { ActorStatus, Health } from '../../engine/status.ts'
import type { ReplayTarget } from '../../engine/dispatch/replay/replay-plan.ts'
import { newest, type RecentAsked, type RecentMessage } from '../../actors/recent-messages.ts'
import { wholeHealth } from './cluster-health.ts'
import { ClusterAcks, type ClusterAcksOptions } from './cluster-acks.ts'
import { takeInTurn, waitEverywhere, type ReceivePlace } from './fan-out.ts'

type ClusterOptions = ClusterAcksOptions &
  Readonly<{
    /** a sink as it is stored, whether it runs here or not */
    findSink: (id: string) => Sink | undefined
  }>

/** A process that doesn't say in this time that an edit has reached it hears of it within seconds by itself. */
const RELOAD_WITHIN_MS = 2_000
/** Share of its visibility time that a message may be on its way from its owner. */
const STALE_AT = 0.5
/** The owners are looked at so often while somebody waits, in case a notice was lost. */
const LOOK_EVERY_MS = 5_000
const EMPTY: Receipt = { body: Buffer.from('{"data":[]}'), count: 0, giveBack: () => undefined }

export class ClusterEngine implements EngineVerbs {
  readonly #options: ClusterOptions
  readonly #acks: ClusterAcks
  /** per sink: receives that wait, and how often peers were asked */
  readonly #waiting = new Map<string, number>()
  #turn = 0

  constructor(options: ClusterOptions) {
    this.#options = options
    this.#acks = new ClusterAcks(options)
    options.engine.among((sinkId) => this.#holdersElsewhere(sinkId))
  }

  /** @returns undefined: no process serves it, because it doesn't exist or is off */
  sink(id: string): PulledSink | undefined {
    const local = this.#options.engine.sink(id)
    const sink = this.#options.findSink(id)
    if (!sink || (!local && sink.status !== 'active')) return local
    return {
      receive: (request) => this.#receive(sink, request),
      ack: (ids) => this.#acks.settle(id, 'ack', ids),
      nack: (ids) => this.#acks.settle(id, 'nack', ids),
    }
  }

  async sinkHealth(ids: readonly string[]): Promise<ReadonlyMap<string, Health>> {
    const { engine, registry, peers } = this.#options
    const own = registry.live.get(registry.id)?.name ?? registry.name
    const others = registry.peers.map(async (node) => ({ node: node.name, of: await peers.sinkHealth(node, ids).catch(() => undefined) }))
    const all = [{ node: own, of: await engine.sinkHealth(ids) }, ...(await Promise.all(others))]
    return new Map(
      ids.flatMap((id) => {
        const parts = all.filter(({ of }) => of === undefined || of.has(id)).map(({ node, of }) => ({ node, health: of?.get(id) }))
        const health = wholeHealth(parts)
        return health ? [[id, health] as const] : []
      }),
    )
  }

  actors(): readonly ActorStatus[] {
    return this.#options.engine.actors()
  }

  /** They stand in the state database and the log: no other process knows more. */
  streams(): readonly StreamStatus[] {
    return this.#options.engine.streams()
  }

  ready(): Readiness {
    return this.#options.engine.ready()
  }

  async updateSink(sinkId: string, changes: SinkChanges): Promise<Sink> {
    return this.#everywhere((engine) => engine.updateSink(sinkId, changes))
  }

  createSink(account: Account, database: Database, input: SinkInput): Promise<Sink> {
    return this.#everywhere((engine) => engine.createSink(account, database, input))
  }
  deleteSink(sinkId: string): Promise<void> {
    return this.#everywhere((engine) => engine.deleteSink(sinkId))
  }
  createEndpoint(account: Account, input: EndpointInput): Promise<HttpEndpoint> {
    return this.#everywhere((engine) => engine.createEndpoint(account, input))
  }
  updateEndpoint(endpoint: HttpEndpoint, changes: Partial<EndpointInput>): Promise<HttpEndpoint> {
    return this.#everywhere((engine) => engine.updateEndpoint(endpoint, changes))
  }
  deleteEndpoint(endpoint: HttpEndpoint): Promise<void> {
    return this.#everywhere((engine) => engine.deleteEndpoint(endpoint))
  }
  messages(...asked: Parameters<EngineVerbs['messages']>): ReturnType<EngineVerbs['messages']> {
    return this.#options.engine.messages(...asked)
  }
  /** What a process that doesn't answer has delivered is left out. */
  async delivered(sinkId: string, limit: number): Promise<readonly MessageRecord[]> {
    const others = this.#options.registry.peers.map((node) => this.#options.peers.delivered(node, sinkId, limit).catch(() => []))
    const all = await Promise.all([this.#options.engine.delivered(sinkId, limit), ...others])
    const at = ({ last_delivered_at }: MessageRecord) => last_delivered_at ?? ''
    return all.flat().sort((a, b) => (at(a) < at(b) ? 1 : at(a) > at(b) ? -1 : 0)).slice(0, limit) // prettier-ignore
  }
  async message(sinkId: string, id: string, look: MessageLook): Promise<ShownMessage | undefined> {
    const { engine, registry, peers } = this.#options
    const found = await engine.message(sinkId, id, look)
    if (found) return found
    const others = await Promise.all(registry.peers.map((node) => peers.message(node, sinkId, { id, ...look }).catch(() => undefined)))
    return others.find((one) => one !== undefined)
  }
  /** What a process that doesn't answer has read is left out. */
  async recent(asked: RecentAsked): Promise<readonly RecentMessage[]> {
    const { engine, registry, peers } = this.#options
    const others = registry.peers.map((node) => peers.recent(node, asked).catch(() => []))
    return newest((await Promise.all([engine.recent(asked), ...others])).flat())
  }
  /** Asked of every owner: each edits what its own partitions have. @throws EngineError the first failure, when all have answered */
  async editMessages(sinkId: string, edit: MessageEdit, choice: MessageChoice): Promise<EditedMessages> {
    const { engine, registry, peers } = this.#options
    const owners = await this.#acks.ownersOf(sinkId)
    const holders = new Set(owners?.values())
    const others = registry.peers.filter(({ id }) => !owners || holders.has(id))
    const asked = [engine.editMessages(sinkId, edit, choice), ...others.map((node) => peers.editMessages(node, { sinkId, edit, choice }))]
    const answers = await Promise.allSettled(asked)
    const failed = answers.find((answer) => answer.status === 'rejected')
    if (failed) throw failed.reason
    const all = answers.map((answer) => (answer as PromiseFulfilledResult<EditedMessages>).value)
    const sum = (of: (one: EditedMessages) => number) => all.reduce((total, one) => total + of(one), 0)
    return { known: Math.max(...all.map(({ known }) => known)), served: sum(({ served }) => served), edited: sum(({ edited }) => edited) }
  }
  testSink(sink: Sink): Promise<string | undefined> {
    return this.#options.engine.testSink(sink)
  }
  testEndpoint(endpoint: HttpEndpoint): Promise<string | undefined> {
    return this.#options.engine.testEndpoint(endpoint)
  }

  /** An edit is answered when every live process has taken it in. */
  async #everywhere<T>(edit: (engine: LocalEngine) => Promise<T>): Promise<T> {
    const result = await edit(this.#options.engine)
    await this.tellPeers()
    return result
  }

  /** Asked of the process whose source has stopped; then all others try again too, so that they stand by. */
  async acceptGap(databaseId: string): Promise<string> {
    const { engine, registry, peers } = this.#options
    const tries = [() => engine.acceptGap(databaseId), ...registry.peers.map((node) => () => peers.acceptGap(node, databaseId))]
    let refused: unknown
    for (const accept of tries) {
      try {
        const accepted = await accept()
        await Promise.all([
          engine.retrySource(databaseId, 0),
          this.#tellAll((node) => peers.retrySource(node, databaseId, 0), SAYS_NOTHING),
        ])
        return accepted
      } catch (error) {
        const says = error instanceof EngineError && error.code === 'NO_GAP'
        if (!says || refused === undefined) refused = error // what went wrong tells more than that there was nothing
      }
    }
    throw refused
  }

  /** On every process, for any of them may get the lock. The one that streams answers for all, else one that failed. */
  async retrySource(databaseId: string, waitMs: number): Promise<SourceOutcome> {
    const { engine, peers } = this.#options
    const others: SourceOutcome[] = []
    const ask = async (node: Node) => void others.push(await peers.retrySource(node, databaseId, waitMs))
    const [own] = await Promise.all([engine.retrySource(databaseId, waitMs), this.#tellAll(ask, SAYS_NOTHING)])
    const all = [own, ...others]
    return all.find(({ state }) => state === 'streaming') ?? all.find(({ code }) => code !== undefined) ?? own
  }

  /** All processes that live stop what they serve of the sink meanwhile. */
  replay(sinkId: string, target: ReplayTarget): Promise<Replayed> {
    return this.#options.engine.replay(sinkId, target)
  }

  /** Settles when every live process has taken in what is stored now, or has not answered in time. */
  async tellPeers(): Promise<void> {
    await this.#tellAll((node) => this.#options.peers.reload(node, RELOAD_WITHIN_MS), READS_IT_ITSELF)
  }

  /** The other processes that live at the moment of the call. */
  #holdersElsewhere(sinkId: string): readonly Holder[] {
    const { registry, peers } = this.#options
    const holderOf = (node: Node): Holder => ({
      id: node.id,
      hold: (by) => peers.holdSink(node, sinkId, by),
      release: (by) => peers.releaseSink(node, sinkId, by),
    })
    return registry.peers.map(holderOf)
  }

  async #tellAll(tell: (node: Node) => Promise<unknown>, otherwise: string): Promise<void> {
    const { registry, logger } = this.#options
    const told = async (node: Node) => {
      try {
        await tell(node)
      } catch (err) {
        logger.warn({ node: node.name, err }, otherwise)
      }
    }
    await Promise.all(registry.peers.map(told))
  }

  // ── receive ─────────────────────────────────────────────────────────────────────────────────────

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
    const waiting = this.#waiting.get(sink.id) ?? 0
    if (waiting >= sink.max_waiting)
      throw new EngineError('TOO_MANY_WAITING', `${waiting} receives wait for messages of this sink already`, { max: sink.max_waiting })
    this.#waiting.set(sink.id, waiting + 1)
    let asked = 0
    try {
      const places = async () => {
        const found = [...this.#localPlace(sink.id), ...(await this.#peersOf(sink))]
        asked += found.length
        return found
      }
      const taken = await waitEverywhere(
        { places, watch: (listener) => this.#watch(sink.id, listener), lookEveryMs: LOOK_EVERY_MS },
        request,
      )
      if (!taken && asked === 0 && !request.signal.aborted) throw notServed(sink)
      return taken ?? EMPTY
    } finally {
      const left = (this.#waiting.get(sink.id) ?? 1) - 1
      if (left > 0) this.#waiting.set(sink.id, left)
      else this.#waiting.delete(sink.id)
    }
  }

  #localPlace(sinkId: string): ReceivePlace[] {
    const { engine, registry } = this.#options
    if (!engine.sink(sinkId)) return []
    const receive = async (request: ReceiveRequest): Promise<Receipt> => {
      const running = engine.sink(sinkId) // another one after a restart
      if (!running) throw new EngineError('SINK_NOT_RUNNING', 'the sink has no actor on this node')
      return running.receive(request)
    }
    return [{ id: registry.id, receive }]
  }

  /** The other live processes that own partitions of the sink. */
  async #peersOf({ id: sinkId, ack_wait_ms: ackWaitMs }: Sink): Promise<ReceivePlace[]> {
    const { registry, peers } = this.#options
    const owners = await this.#acks.ownersOf(sinkId)
    const giveBack = (ids: readonly string[]) => this.#acks.giveBack(sinkId, ids)
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

const READS_IT_ITSELF = 'a node has not said that an edit has reached it; it reads it by itself within seconds'
const SAYS_NOTHING = 'a node has not answered: its source may still have to be told to try again'

const notServed = (sink: Sink) => new EngineError('SINK_NOT_RUNNING', `no node serves sink ${sink.name} at the moment`, { sink: sink.name })
