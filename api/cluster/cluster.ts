/**
 * Makes one of many processes of this one: the engine of the whole cluster for the API to ask, and what this process does
 * for the others. Composed only where the log is shared; a process that is alone needs none of it.
 */
import type { OlderRefs } from '../../engine/dispatch/ack-id.ts'
import { findParked } from '../../engine/dispatch/parked/parked-store.ts'
import type { Logger } from '../../engine/logger.ts'
import type { Query } from '../../engine/postgres/query.ts'
import type { NodeRegistry } from '../../engine/state/node-registry.ts'
import { PartitionOwners } from '../../engine/state/partition-owners.ts'
import type { Resources } from '../../engine/state/resource-store.ts'
import type { Sink } from '../../engine/state/resources.ts'
import type { StateFeed } from '../../engine/state/state-feed.ts'
import type { EngineVerbs, LocalEngine } from '../../actors/engine.ts'
import { ClusterAcks } from './cluster-acks.ts'
import { ClusterSinks } from './cluster-sinks.ts'
import { reportOf, type KnownNode } from './node-report.ts'
import { PeerClient, type Authority } from './peer-client.ts'
import type { ServedCluster } from './peer-routes.ts'
import { PeerKey } from './peer-key.ts'
import { PEER_CALLS, VERBS, type Verb, type WholeCall } from './verbs.ts'

type ClusterParts = Readonly<{
  /** of this process */
  engine: LocalEngine
  findSink: (id: string) => Sink | undefined
  registry: NodeRegistry
  feed: Pick<StateFeed, 'watch'>
  /** the state database */
  query: Query
  /** the one that all processes share */
  vaultKey: Buffer
  /** one that is accepted too, while the key is changed */
  otherVaultKey?: Buffer | undefined
  logger: Logger
  /** of the certificates of the other processes; absent: any that Node trusts */
  authority?: Authority | undefined
}>

interface Cluster extends AsyncDisposable {
  /** what the API asks */
  readonly engine: EngineVerbs
  /** Settles when every live process knows the API tokens that are stored now, or has not answered in time. */
  readonly loadTokens: () => Promise<void>
  /** goes to the API server as it is */
  readonly served: ServedCluster
}

/** Joins this process's engine with those of its peers; the parts must be disposed of before the registry and the feed end. */
export function openCluster({
  engine,
  findSink,
  registry,
  feed,
  query,
  vaultKey,
  otherVaultKey,
  logger,
  authority,
}: ClusterParts): Cluster {
  const key = new PeerKey(vaultKey, otherVaultKey)
  const peers = new PeerClient(key, logger, authority)
  const owners = new PartitionOwners(query)
  const unwatchNodes = registry.watch(() => peers.keepOnly(registry.peers))
  const unwatchFeed = feed.watch((notice) => {
    owners.take(notice)
    if (notice.about === 'owners') engine.ownersChanged(notice.sinkId)
    if (notice.about === 'everything') engine.ownersChanged()
    if (notice.about === 'nodes') registry.look().catch(() => undefined) // the next heartbeat looks again
  })
  engine.among((sinkId) =>
    registry.peers.map((node) => ({
      id: node.id,
      hold: (by) => peers.ask(node, PEER_CALLS.holdSink, sinkId, by),
      release: async (by) => void (await peers.ask(node, PEER_CALLS.releaseSink, sinkId, by)),
    })),
  )
  const findOlder = (sinkId: string, refs: OlderRefs) => findParked(query, sinkId, refs)
  const acks = new ClusterAcks({ engine, registry, owners, peers, logger, findOlder })
  const sinks = new ClusterSinks({ engine, findSink, registry, owners, peers, acks })

  /** Settles when every live process has taken in what is stored now, or has not answered in time. */
  const reload = async (stored?: Resources) => {
    await engine.reload(stored)
    await Promise.allSettled(peers.asked(registry.peers, PEER_CALLS.reload).map(({ answer }) => answer()))
  }
  /** Settles when every live process knows the API tokens that are stored now, or has not answered in time. */
  const loadTokens = async () => {
    await engine.loadTokens()
    await Promise.allSettled(peers.asked(registry.peers, PEER_CALLS.loadTokens).map(({ answer }) => answer()))
  }
  /** A verb as its row says. */
  const methodOf = (verb: Verb, place: (typeof VERBS)[Verb]) => {
    const here = (...args: never[]): unknown => Reflect.apply(engine[verb], engine, args)
    if (place === 'here') return here
    const call: WholeCall<never[], unknown> = place
    return async (...args: never[]) => {
      const [sinkId = ''] = args
      const holders = call.ofOwners && (await acks.ownersOf(sinkId))
      const served = new Set(holders?.values())
      const nodes = registry.peers.filter(({ id }) => !holders || served.has(id))
      const own = { node: registry.live.get(registry.id)?.name ?? registry.name, answer: async () => call.run(engine, ...args) }
      return call.merge([own, ...peers.asked(nodes, call, ...args)], whole, ...args)
    }
  }
  const methods = Object.entries(VERBS).map(([verb, place]) => [verb, methodOf(verb as Verb, place)] as const)
  const whole = { ...Object.fromEntries(methods), reload, sink: (id: string) => sinks.sink(id) } as EngineVerbs // the table has every other verb

  const nodes = async (): Promise<KnownNode[]> => {
    await registry.look().catch(() => undefined) // else as of the last heartbeat
    const live = [...registry.live.values()].map(async (node): Promise<KnownNode> => {
      if (node.id === registry.id) return { ...node, reachable: true, report: reportOf(engine) }
      const report = await peers.ask(node, PEER_CALLS.report).catch(() => undefined)
      return { ...node, reachable: report !== undefined, report }
    })
    return Promise.all(live)
  }
  return {
    engine: whole,
    loadTokens,
    served: { service: { key, nodeId: registry.id, engine }, nodes },
    [Symbol.asyncDispose]: async () => {
      unwatchFeed()
      unwatchNodes()
      await peers[Symbol.asyncDispose]()
    },
  }
}
