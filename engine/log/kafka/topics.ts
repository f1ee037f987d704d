/**
 * Topics in Kafka: one for each stream, and of versions without streams one for each generation of a sink, which gave it its
 * name; and the groups of their readers. Nothing in them expires: what is below the committed offset is deleted by us
 * (docs/rules.md, rule 28). Making and deleting may be repeated.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { EngineError } from '../../errors.ts'
import type { ReaderName, TopicName, Topic } from '../log.ts'
import type { Brokers } from './brokers.ts'
import { kafkaCode } from './failure.ts'
import { patiently } from './patience.ts'
import { Recent } from './recent.ts'

type TopicSettings = Readonly<{
  /** in front of every name of ours: topics and groups */
  prefix: string
  /** copies of each partition; absent: 3, or as many as there are brokers */
  replication?: number | undefined
  /** how large a record may be, when the cluster lets us say so */
  maxRecordBytes: number
}>

/** The largest record where the brokers don't tell theirs: their own default. */
const DEFAULT_RECORD_BYTES = 1_048_588
/** No limit is taken to be below this. */
const LEAST_RECORD_BYTES = 16 * 1024
const SEGMENT_BYTES = 64 * 1024 * 1024
const DEFAULT_REPLICATION = 3
const WAIT_MS = 30_000
const POLL_MS = 50
const TOPIC_RESOURCE = 2

/** Makes, deletes and lists topics. */
export class Topics {
  readonly #brokers: Brokers
  readonly #settings: TopicSettings
  readonly #listed = new Recent<readonly Topic[]>()
  readonly #limits = new Recent<number>()

  constructor(brokers: Brokers, settings: TopicSettings) {
    this.#brokers = brokers
    this.#settings = settings
  }

  /** The name of a topic in Kafka, or of a reader's group. */
  nameOf(topic: TopicName): string {
    return this.#settings.prefix + topic
  }

  /** @throws EngineError LOG_REFUSED: not allowed, or the topic exists and would lose messages; INTERNAL: it has other partitions */
  async create(topic: TopicName, partitions: number): Promise<void> {
    const name = this.nameOf(topic)
    if (!(await this.#exists(name))) await this.#make(name, partitions)
    this.#listed.forget('')
    const { leaders } = await this.#brokers.layout(name)
    if (leaders.length !== partitions)
      throw new EngineError('INTERNAL', `topic ${name} has ${leaders.length} partitions, not ${partitions}`, { topic: name })
    await this.recordLimit(topic)
  }

  async delete(topic: TopicName): Promise<void> {
    const name = this.nameOf(topic)
    this.#limits.forget(name)
    this.#listed.forget('')
    if (!(await this.#exists(name))) return
    await this.#controller((broker) => broker.deleteTopics({ topics: [name], timeout: WAIT_MS }), 'UNKNOWN_TOPIC_OR_PARTITION')
    await this.#until(async () => !(await this.#exists(name)), `topic ${name} is still there`)
  }

  /** @param maxAgeMs how old the answer may be as to what other processes made or deleted */
  list(maxAgeMs: number): Promise<readonly Topic[]> {
    return this.#listed.get('', maxAgeMs, () => this.#list())
  }

  /** Lists the readers of the groups that the brokers know. */
  async readers(): Promise<readonly ReaderName[]> {
    const { prefix } = this.#settings
    const { brokers } = await patiently(() => this.#brokers.describe())
    const listed = await Promise.all(
      brokers.map(({ nodeId }) => patiently(() => this.#brokers.node(nodeId, (broker) => broker.listGroups()))),
    )
    const ours = listed
      .flatMap(({ groups }) => groups)
      .filter(({ groupId }) => groupId.startsWith(prefix) && READER.test(groupId.slice(prefix.length)))
    return ours.map(({ groupId }) => groupId.slice(prefix.length))
  }

  async #list(): Promise<readonly Topic[]> {
    const { prefix } = this.#settings
    const { topicMetadata } = await patiently(() => this.#brokers.describe(true))
    return topicMetadata
      .filter(({ topic }) => topic.startsWith(prefix) && OURS.test(topic.slice(prefix.length)))
      .map(({ topic, partitionMetadata }) => ({ topic: topic.slice(prefix.length), partitions: partitionMetadata.length }))
  }

  /**
   * Bytes that a record of the topic may have, as its configuration says.
   * @throws EngineError LOG_REFUSED: its configuration would let messages expire
   */
  recordLimit(topic: TopicName): Promise<number> {
    const name = this.nameOf(topic)
    return this.#limits.get(name, Infinity, () => this.#check(name))
  }

  /** A record of fewer bytes than the limit was refused. */
  lowerLimit(topic: TopicName, bytes: number): void {
    const name = this.nameOf(topic)
    this.#limits.forget(name)
    void this.#limits.get(name, Infinity, async () => Math.max(LEAST_RECORD_BYTES, bytes))
  }

  async #exists(name: string): Promise<boolean> {
    this.#brokers.forget(name)
    try {
      await patiently(() => this.#brokers.layout(name))
      return true
    } catch (error) {
      if (error instanceof EngineError && error.code === 'LOG_TOPIC_UNKNOWN') return false
      throw error
    }
  }

  async #make(name: string, partitions: number): Promise<void> {
    const { brokers } = await this.#brokers.describe()
    const replication = this.#settings.replication ?? Math.min(DEFAULT_REPLICATION, brokers.length)
    const configs: Record<string, string> = {
      'retention.ms': '-1',
      'retention.bytes': '-1',
      'cleanup.policy': 'delete',
      'segment.bytes': String(SEGMENT_BYTES),
      'min.insync.replicas': replication > 1 ? '2' : '1',
      'unclean.leader.election.enable': 'false',
      'message.timestamp.type': 'CreateTime',
      'max.message.bytes': String(this.#settings.maxRecordBytes),
    }
    const create = (entries: Record<string, string>) =>
      this.#controller(
        (broker) =>
          broker.createTopics({
            topics: [
              {
                topic: name,
                numPartitions: partitions,
                replicationFactor: replication,
                configEntries: Object.entries(entries).map(([key, value]) => ({ name: key, value })),
              },
            ],
            timeout: WAIT_MS,
          }),
        'TOPIC_ALREADY_EXISTS',
      )
    try {
      await create(configs)
    } catch (error) {
      const code = kafkaCode(error)
      if (code !== 'POLICY_VIOLATION' && code !== 'INVALID_CONFIG') throw error
      const { 'max.message.bytes': _, ...rest } = configs // hosted clusters have a ceiling of their own
      await create(rest)
    }
    await this.#until(async () => {
      if (!(await this.#exists(name))) return false
      const { leaders } = await this.#brokers.layout(name)
      return leaders.every((leader) => leader >= 0)
    }, `topic ${name} has no leaders`)
  }

  /** @param harmless what was wanted is so already */
  async #controller(what: Parameters<Brokers['controller']>[0], harmless: string): Promise<void> {
    try {
      await patiently(() => this.#brokers.controller(what, WAIT_MS))
    } catch (error) {
      if (kafkaCode(error) !== harmless) throw error
    }
  }

  async #until(done: () => Promise<boolean>, otherwise: string): Promise<void> {
    const until = performance.now() + WAIT_MS
    for (;;) {
      const isDone = await done().catch((error: unknown) => {
        if (error instanceof EngineError && error.code === 'LOG_UNREACHABLE') return false // leaders are being elected
        throw error
      })
      if (isDone) return
      if (performance.now() > until) throw new EngineError('LOG_UNREACHABLE', `${otherwise} after ${WAIT_MS} ms`)
      await delay(POLL_MS)
    }
  }

  async #check(name: string): Promise<number> {
    const configs = await this.#configs(name)
    for (const expiring of ['retention.ms', 'retention.bytes']) {
      const value = configs.get(expiring) ?? '-1'
      if (value !== '-1')
        throw new EngineError(
          'LOG_REFUSED',
          `topic ${name} has ${expiring}=${value}, so messages would be deleted before they are delivered: set it to -1`,
          { topic: name, [expiring]: value },
        )
    }
    return Number(configs.get('max.message.bytes') ?? DEFAULT_RECORD_BYTES)
  }

  /** Empty when we may not ask. */
  async #configs(name: string): Promise<ReadonlyMap<string, string>> {
    const resource = { type: TOPIC_RESOURCE, name, configNames: ['max.message.bytes', 'retention.ms', 'retention.bytes'] }
    try {
      const { resources } = await patiently(() => this.#brokers.any((broker) => broker.describeConfigs({ resources: [resource] })))
      return new Map((resources[0]?.configEntries ?? []).map(({ configName, configValue }) => [configName, configValue ?? '']))
    } catch (error) {
      if (error instanceof EngineError && error.code === 'LOG_REFUSED') return new Map()
      throw error
    }
  }
}

/**
 * `stream.` or `copy.<number>.<8 hexadecimal digits>`, and of versions without streams `<sink id>.<generation>`: another prefix may
 * begin like this one.
 */
const OURS = /^(?:(?:stream|copy)\.\d+\.[0-9a-f]{8}|[^.@]+\.\d+)$/
/** One of the former topics, or `<topic>@<sink id>.<generation>`. */
const READER = /^(?:(?:stream|copy)\.\d+\.[0-9a-f]{8}@)?[^.@]+\.\d+$/
