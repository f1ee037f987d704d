/**
 * Acks and nacks across the processes of a cluster: each goes to the owner of its partition, and is answered when every owner
 * has answered that it is durable.
 */
import { ackIdPrefix, ackIdsByPartition, readOlderAckIds, sinkTag, type OlderRefs } from '../../engine/dispatch/ack-id.ts'
import { HANDED_OVER } from '../../engine/dispatch/generations.ts'
import type { OwnedRefs } from '../../engine/dispatch/parked/parked-store.ts'
import { REWOUND } from '../../engine/dispatch/replay/replay.ts'
import { EngineError, isRetryable } from '../../engine/errors.ts'
import type { Logger } from '../../engine/logger.ts'
import type { NodeRegistry } from '../../engine/state/node-registry.ts'
import type { Owners, PartitionOwners } from '../../engine/state/partition-owners.ts'
import type { LocalEngine } from '../../actors/engine.ts'
import type { PeerClient } from './peer-client.ts'
import { PEER_CALLS, pulledSink } from './verbs.ts'

type ClusterAcksOptions = Readonly<{
  /** of this process */
  engine: LocalEngine
  registry: NodeRegistry
  owners: PartitionOwners
  /** the partitions that own messages which ended generations have named */
  findOlder: (sinkId: string, refs: OlderRefs) => Promise<readonly OwnedRefs[]>
  peers: PeerClient
  logger: Logger
}>

type Failure = Readonly<{ ids: readonly string[]; error: unknown }>

/** Settles messages wherever their partitions live. */
export class ClusterAcks {
  readonly #options: ClusterAcksOptions

  constructor(options: ClusterAcksOptions) {
    this.#options = options
  }

  /**
   * A nack is sent again only to another owner: if the first one had it all the same, the message may be with another client by now.
   * @throws EngineError the first failure, when what can be done has been done, by looking up the owners again once
   */
  async settle(sinkId: string, what: 'ack' | 'nack', ids: readonly string[]): Promise<void> {
    const tag = sinkTag(sinkId)
    const parts = ackIdsByPartition(ids, tag)
    if (parts.size === 0) return
    const owners = await this.ownersOf(sinkId)
    let failures = await this.#send(sinkId, what, parts, owners)
    if (failures.length > 0 && failures.every(({ error }) => isRetryable(error))) {
      const again = ackIdsByPartition(
        failures.flatMap((failure) => failure.ids),
        tag,
      )
      const now = await this.#options.owners.read(sinkId).catch(() => undefined)
      if (now) for (const partition of again.keys()) if (!now.has(partition)) again.delete(partition) // without a term it has handed out nothing
      const isDone = (partition: string) => what === 'nack' && (now ?? owners)?.get(partition) === owners?.get(partition)
      const done = new Set([...again.keys()].filter(isDone))
      for (const partition of done) again.delete(partition)
      const kept = failures.filter(({ ids }) => [...ackIdsByPartition(ids, tag).keys()].some((partition) => done.has(partition)))
      failures = [...kept, ...(await this.#send(sinkId, what, again, now ?? owners))]
    }
    const failed = failures.find(({ error }) => !isRetryable(error)) ?? failures[0]
    if (failed) throw failed.error
  }

  /** Sends each owner its part, all at once. */
  async #send(sinkId: string, what: 'ack' | 'nack', named: ReadonlyMap<string, string[]>, owners: Owners | undefined): Promise<Failure[]> {
    const { registry } = this.#options
    const parts = await this.#moved(sinkId, named, owners)
    const failures: Failure[] = []
    const byHolder = new Map<string, string[][]>()
    for (const [partition, ids] of parts) {
      const holder = owners ? owners.get(partition) : registry.id // nothing is known: our own engine knows what is its own
      if (holder === REWOUND) continue // a replay went back behind it: what was handed out there comes again
      if (holder === undefined || (holder !== registry.id && !registry.live.has(holder))) failures.push({ ids, error: moving(partition) })
      else byHolder.set(holder, [...(byHolder.get(holder) ?? []), ids])
    }
    const send = async ([holder, [first = [], ...others]]: [string, string[][]]) => {
      const ids = others.length === 0 ? first : [first, ...others].flat()
      try {
        await this.#sendTo(holder, sinkId, what, ids)
      } catch (error) {
        failures.push({ ids, error })
      }
    }
    await Promise.all([...byHolder].map(send))
    return failures
  }

  /** Names the present owners of messages whose ids are of an ended generation. A message without an owner is finished. */
  async #moved(sinkId: string, parts: ReadonlyMap<string, string[]>, owners: Owners | undefined): Promise<ReadonlyMap<string, string[]>> {
    const hasEnded = ([partition]: [string, string[]]) => owners?.get(partition) === HANDED_OVER
    const ended = [...parts].filter(hasEnded)
    if (ended.length === 0) return parts
    const tag = sinkTag(sinkId)
    const now = new Map([...parts].filter((part) => !hasEnded(part)))
    const ids = ended.flatMap(([, named]) => named)
    for (const { owner, origin, refs } of await this.#options.findOlder(sinkId, readOlderAckIds(ids, tag, Infinity))) {
      const name = `${owner.generation}/${owner.partition}`
      const prefix = ackIdPrefix(tag, origin.generation, origin.partition)
      const found = refs.offsets.map((offset, i) => `${prefix}${offset.toString(36)}.${(refs.indexes[i] as number).toString(36)}`)
      now.set(name, [...(now.get(name) ?? []), ...found])
    }
    return now
  }

  async #sendTo(holder: string, sinkId: string, what: 'ack' | 'nack', ids: readonly string[]): Promise<void> {
    const { engine, registry, peers } = this.#options
    const node = registry.live.get(holder)
    if (holder === registry.id) await pulledSink(engine, sinkId)[what](ids)
    else if (node) await peers.ask(node, PEER_CALLS[what], sinkId, ids)
    else throw new EngineError('PARTITION_MOVING', 'the process that owns the partition is not live any more', { node: holder })
  }

  /** Makes messages deliverable again that a client did not get, as far as their owners can be reached. */
  giveBack(sinkId: string, ids: readonly string[]): void {
    this.settle(sinkId, 'nack', ids).catch((err: unknown) => {
      this.#options.logger.warn(
        { sink: sinkId, messages: ids.length, err },
        'messages could not be given back: they come again after ack_wait_ms',
      )
    })
  }

  /** Finds the owners of the partitions of a sink; undefined: they could not be read. */
  async ownersOf(sinkId: string): Promise<Owners | undefined> {
    try {
      return await this.#options.owners.of(sinkId)
    } catch (err) {
      this.#options.logger.warn({ sink: sinkId, err }, 'the owners of the partitions could not be read')
      return undefined
    }
  }
}

const moving = (partition: string) => new EngineError('PARTITION_MOVING', `partition ${partition} has no live owner`, { partition })
