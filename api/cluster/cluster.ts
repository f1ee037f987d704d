/**
 * Makes one of many processes of this one: the engine of the whole cluster for the API to ask, and what this process does
 * for the others. Composed only where the log is shared; a process that is alone needs none of it.
 */
import { findParked } from '../../engine/dispatch/parked/parked-store.ts'
import type { Logger } from '../../engine/logger.ts'
import type { NodeRegistry } from '../../engine/state/node-registry.ts'
import { PartitionOwners } from '../../engine/state/partition-owners.ts'
import type { Sink } from '../../engine/state/resources.ts'
import type { StateFeed } from '../../engine/state/state-feed.ts'
import type { StateQuery } from '../../engine/state/store.ts'
import { ClusterEngine } from './cluster-engine.ts'
import type { LocalEngine } from '../../actors/engine.ts'
import { clusterNodes, reportOf } from './node-report.ts'
import { PeerClient } from './peer-client.ts'
import type { ServedCluster } from './peer-routes.ts'
import { PeerKey } from './peer-key.ts'

type ClusterParts = Readonly<{
  /** of this process */
  engine: LocalEngine
  findSink: (id: string) => Sink | undefined
  registry: NodeRegistry
  feed: Pick<StateFeed, 'watch'>
  /** the state database */
  query: StateQuery
  /** the one that all processes share */
  vaultKey: Buffer
  logger: Logger
}>

interface Cluster extends AsyncDisposable {
  /** what the API asks */
  readonly engine: ClusterEngine
  /** goes to the API server as it is */
  readonly served: ServedCluster
}

export function openCluster({ engine, findSink, registry, feed, query, vaultKey, logger }: ClusterParts): Cluster {
  const key = new PeerKey(vaultKey)
  const peers = new PeerClient(key)
  const owners = new PartitionOwners(query)
  const unwatchNodes = registry.watch(() => peers.keepOnly(registry.peers))
  const unwatchFeed = feed.watch((notice) => {
    owners.heard(notice)
    if (notice.about === 'owners') engine.ownersChanged(notice.sinkId)
    if (notice.about === 'everything') engine.ownersChanged()
    if (notice.about === 'nodes') registry.look().catch(() => undefined) // the next heartbeat looks again
  })
  return {
    engine: new ClusterEngine({
      engine,
      findSink,
      registry,
      owners,
      peers,
      logger,
      findOlder: (sinkId, refs) => findParked(query, sinkId, refs),
    }),
    served: {
      service: { key, nodeId: registry.id, engine, report: () => reportOf(engine) },
      nodes: () => clusterNodes({ engine, registry, peers, logger }),
    },
    [Symbol.asyncDispose]: async () => {
      unwatchFeed()
      unwatchNodes()
      await peers[Symbol.asyncDispose]()
    },
  }
}
