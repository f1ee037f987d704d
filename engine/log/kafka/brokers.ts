/**
 * The cluster as one purpose sees it: which broker leads a partition or coordinates a group, and a link to each. Nothing is
 * retried in here: a failure forgets what it may have been caused by (a leader, a coordinator, a connection), so that the
 * next call looks again. After a connection was refused the same broker is left alone for a while, longer each time.
 */
import { EngineError } from '../../errors.ts'
import { addressOf, type BrokerAddress, type KafkaConnection } from './connection.ts'
import { kafkaCode } from './failure.ts'
import type { Broker, ClusterMetadata } from './kafkajs.ts'
import { Link } from './link.ts'
import { backOff } from '../../back-off.ts'

const PAUSE = { firstMs: 100, maxMs: 3_000 }
const GROUP = 0

type TopicLayout = Readonly<{ topic: string; leaders: readonly number[]; replicas: number }>
type Refusal = { until: number; failures: number; error: EngineError }

/** Calls the brokers of a cluster. */
export class Brokers {
  readonly #connection: KafkaConnection
  readonly #links = new Map<string, Promise<Link>>()
  readonly #refusals = new Map<string, Refusal>()
  readonly #topics = new Map<string, TopicLayout>()
  readonly #coordinators = new Map<string, number>()
  readonly #stop = new AbortController()
  #nodes = new Map<number, BrokerAddress>()

  constructor(connection: KafkaConnection) {
    this.#connection = connection
  }

  /** A call to any broker. */
  async any<T>(what: (broker: Broker) => Promise<T>, waitsMs = 0): Promise<T> {
    return (await this.#anyLink()).call(what, waitsMs)
  }

  /** A call to the leader of a partition. */
  async leader<T>(topic: string, partition: number, what: (broker: Broker) => Promise<T>, waitsMs = 0): Promise<T> {
    const node = await this.leaderOf(topic, partition)
    try {
      return await (await this.#link(await this.#addressOf(node))).call(what, waitsMs)
    } catch (error) {
      this.forget(topic)
      throw error
    }
  }

  /** A call to a broker by its id. */
  async node<T>(id: number, what: (broker: Broker) => Promise<T>, waitsMs = 0): Promise<T> {
    return (await this.#link(await this.#addressOf(id))).call(what, waitsMs)
  }

  /** A call to the coordinator of a group. */
  async coordinator<T>(groupId: string, what: (broker: Broker) => Promise<T>): Promise<T> {
    try {
      return await (await this.#link(await this.coordinatorOf(groupId))).call(what)
    } catch (error) {
      const code = kafkaCode(error)
      if (code === undefined || ELSEWHERE.has(code)) this.#coordinators.delete(groupId)
      throw error
    }
  }

  /** A call to the broker that makes and deletes topics. */
  async controller<T>(what: (broker: Broker) => Promise<T>, waitsMs = 0): Promise<T> {
    const { controllerId } = await this.describe()
    return (await this.#link(await this.#addressOf(controllerId))).call(what, waitsMs)
  }

  async coordinatorOf(groupId: string): Promise<BrokerAddress> {
    const known = this.#coordinators.get(groupId)
    if (known !== undefined) return this.#addressOf(known)
    const { coordinator } = await this.any((broker) => broker.findGroupCoordinator({ groupId, coordinatorType: GROUP }))
    this.#coordinators.set(groupId, coordinator.nodeId)
    this.#nodes.set(coordinator.nodeId, { host: coordinator.host, port: coordinator.port })
    return { host: coordinator.host, port: coordinator.port }
  }

  forgetCoordinator(groupId: string): void {
    this.#coordinators.delete(groupId)
  }

  /** @throws EngineError LOG_TOPIC_UNKNOWN, LOG_UNREACHABLE: no leader at the moment */
  async layout(topic: string): Promise<TopicLayout> {
    const known = this.#topics.get(topic)
    if (known) return known
    const metadata = this.#learn(await this.any((broker) => broker.metadata([topic])))
    const found = metadata.topicMetadata.find((t) => t.topic === topic)
    if (!found) throw new EngineError('LOG_TOPIC_UNKNOWN', `Kafka has no topic ${topic}`, { topic })
    const leaders: number[] = []
    for (const { partitionId, leader } of found.partitionMetadata) leaders[partitionId] = leader
    const layout = { topic, leaders, replicas: found.partitionMetadata[0]?.replicas.length ?? 0 }
    this.#topics.set(topic, layout)
    return layout
  }

  async leaderOf(topic: string, partition: number): Promise<number> {
    const leader = (await this.layout(topic)).leaders[partition]
    if (leader === undefined)
      throw new EngineError('LOG_TOPIC_UNKNOWN', `topic ${topic} has no partition ${partition}`, { topic, partition })
    if (leader >= 0) return leader
    this.forget(topic)
    throw new EngineError('LOG_UNREACHABLE', `partition ${partition} of topic ${topic} has no leader in Kafka at the moment`, {
      topic,
      partition,
    })
  }

  async leaderAddress(topic: string, partition: number): Promise<BrokerAddress> {
    return this.#addressOf(await this.leaderOf(topic, partition))
  }

  /** Looks again who leads the topic before the next call. */
  forget(topic: string): void {
    this.#topics.delete(topic)
  }

  /** Asks the cluster to describe itself; with `all`, every topic too. */
  async describe(all = false): Promise<ClusterMetadata> {
    return this.#learn(await this.any((broker) => broker.describe(all)))
  }

  close(): void {
    this.#stop.abort()
    for (const link of this.#links.values())
      link.then(
        (open) => open.close(),
        () => undefined,
      )
    this.#links.clear()
  }

  // ── inside ──────────────────────────────────────────────────────────────────────────────────────

  #learn(metadata: ClusterMetadata): ClusterMetadata {
    this.#nodes = new Map(metadata.brokers.map(({ nodeId, host, port }) => [nodeId, { host, port }]))
    return metadata
  }

  async #addressOf(node: number): Promise<BrokerAddress> {
    const known = this.#nodes.get(node)
    if (known) return known
    await this.describe()
    const address = this.#nodes.get(node)
    if (!address) throw new EngineError('LOG_UNREACHABLE', `the Kafka cluster names no broker ${node} at the moment`)
    return address
  }

  /** The broker asked last if it is still there, else the others the cluster named, else those of the settings. */
  async #anyLink(): Promise<Link> {
    for (const opening of this.#links.values()) {
      const link = await opening.catch(() => undefined)
      if (link?.usable) return link
    }
    const candidates = new Map([...this.#nodes.values(), ...this.#connection.brokers].map((at) => [addressOf(at), at]))
    let failed: unknown
    for (const address of candidates.values()) {
      try {
        return await this.#link(address)
      } catch (error) {
        failed = error
        if (error instanceof EngineError && error.code === 'LOG_REFUSED') throw error
      }
    }
    throw failed
  }

  async #link(address: BrokerAddress): Promise<Link> {
    const key = addressOf(address)
    const known = this.#links.get(key)
    const link = await known?.catch(() => undefined)
    if (link?.usable) return link
    if (known && this.#links.get(key) === known) this.#links.delete(key)
    const opening = this.#links.get(key) ?? this.#open(address, key)
    this.#links.set(key, opening)
    return opening
  }

  async #open(address: BrokerAddress, key: string): Promise<Link> {
    const refusal = this.#refusals.get(key)
    if (refusal && performance.now() < refusal.until) throw refusal.error
    try {
      const link = await Link.open(this.#connection, address, this.#stop.signal)
      this.#refusals.delete(key)
      return link
    } catch (error) {
      const failures = (refusal?.failures ?? 0) + 1
      if (error instanceof EngineError) this.#refusals.set(key, { until: performance.now() + backOff(PAUSE, failures), failures, error })
      throw error
    }
  }
}

/** Codes that say: ask another broker. */
const ELSEWHERE: ReadonlySet<string> = new Set(['NOT_COORDINATOR_FOR_GROUP', 'GROUP_COORDINATOR_NOT_AVAILABLE'])
