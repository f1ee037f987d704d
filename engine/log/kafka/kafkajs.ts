/**
 * The only place that uses kafkajs 2.2.4, and the parts of it that are used: its protocol codec and its connections, below its
 * public producer and consumer. Those hide what the rules of the log are about (docs/kafka.md has the list): whether a send
 * that we gave up is sent again, when a heartbeat was last answered, which generation a commit goes out under.
 */
import { createRequire } from 'node:module'
import type { Socket } from 'node:net'

const require = createRequire(import.meta.url)

/** An error as kafkajs throws it. */
export type KafkaFailure = Error & { name: string; type?: string; code?: string | number; errors?: KafkaFailure[]; cause?: unknown }

/** A record that is sent. */
export type ProducedMessage = Readonly<{
  key: Buffer | null
  value: Buffer
  /** ms since the epoch */
  timestamp: number
  headers?: Readonly<Record<string, string>>
}>
/** A record that was fetched. */
export type FetchedMessage = Readonly<{
  offset: string
  /** ms since the epoch */
  timestamp: string
  value: Buffer | null
  headers: Readonly<Record<string, Buffer | Buffer[] | undefined>>
  isControlRecord: boolean
}>
type FetchedPartition = Readonly<{ partition: number; highWatermark: string; messages: readonly FetchedMessage[] }>
/** Holds what brokers say of their cluster. */
export type ClusterMetadata = Readonly<{
  brokers: readonly Readonly<{ nodeId: number; host: string; port: number }>[]
  clusterId: string | null
  controllerId: number
  topicMetadata: readonly Readonly<{
    topic: string
    partitionMetadata: readonly Readonly<{ partitionId: number; leader: number; replicas: number[]; isr: number[] }>[]
  }>[]
}>
type Topics<P> = readonly Readonly<{ topic: string; partitions: readonly P[] }>[]
/** Holds what a broker answers to a member that joins a group. */
export type JoinedGroup = Readonly<{
  generationId: number
  groupProtocol: string
  leaderId: string
  memberId: string
  members: readonly Readonly<{ memberId: string; memberMetadata: Buffer }>[]
}>

/** kafkajs's class of one node. Every call rejects with a Failure; `type` is the protocol's name of an error code. */
export interface Broker {
  connect(): Promise<void>
  /** Brokers and ids of the cluster; with `all` every topic too. One that is in trouble fails nothing, unlike in `metadata`. */
  describe(all: boolean): Promise<ClusterMetadata>
  metadata(topics: readonly string[]): Promise<ClusterMetadata>
  fetch(
    request: Readonly<{
      isolationLevel: number
      maxWaitTime: number
      minBytes: number
      maxBytes: number
      topics: Topics<Readonly<{ partition: number; fetchOffset: string; maxBytes: number }>>
    }>,
  ): Promise<{ responses: readonly Readonly<{ topicName: string; partitions: readonly FetchedPartition[] }>[] }>
  produce(
    request: Readonly<{
      acks: number
      timeout: number
      producerId: string
      producerEpoch: number
      topicData: Topics<Readonly<{ partition: number; firstSequence: number; messages: readonly ProducedMessage[] }>>
    }>,
  ): Promise<{
    topics: readonly Readonly<{ topicName: string; partitions: readonly Readonly<{ partition: number; baseOffset: string }>[] }>[]
  }>
  initProducerId(request: Readonly<{ transactionTimeout: number }>): Promise<{ producerId: string; producerEpoch: number }>
  listOffsets(
    request: Readonly<{ replicaId: number; isolationLevel: number; topics: Topics<Readonly<{ partition: number; timestamp: number }>> }>,
  ): Promise<{ responses: Topics<Readonly<{ partition: number; offset: string }>> }>
  deleteRecords(request: Readonly<{ topics: Topics<Readonly<{ partition: number; offset: string }>> }>): Promise<unknown>
  createTopics(
    request: Readonly<{
      topics: readonly Readonly<{
        topic: string
        numPartitions: number
        replicationFactor: number
        configEntries: readonly Readonly<{ name: string; value: string }>[]
      }>[]
      timeout: number
    }>,
  ): Promise<unknown>
  deleteTopics(request: Readonly<{ topics: readonly string[]; timeout: number }>): Promise<unknown>
  describeConfigs(
    request: Readonly<{ resources: readonly Readonly<{ type: number; name: string; configNames: readonly string[] }>[] }>,
  ): Promise<{ resources: readonly Readonly<{ configEntries: readonly Readonly<{ configName: string; configValue: string | null }>[] }>[] }>
  findGroupCoordinator(
    request: Readonly<{ groupId: string; coordinatorType: number }>,
  ): Promise<{ coordinator: Readonly<{ nodeId: number; host: string; port: number }> }>
  joinGroup(
    request: Readonly<{
      groupId: string
      sessionTimeout: number
      rebalanceTimeout: number
      memberId: string
      groupProtocols: readonly Readonly<{ name: string; metadata: Buffer }>[]
    }>,
  ): Promise<JoinedGroup>
  syncGroup(
    request: Readonly<{
      groupId: string
      generationId: number
      memberId: string
      groupAssignment: readonly Readonly<{ memberId: string; memberAssignment: Buffer }>[]
    }>,
  ): Promise<{ memberAssignment: Buffer }>
  heartbeat(request: Readonly<{ groupId: string; groupGenerationId: number; memberId: string }>): Promise<unknown>
  leaveGroup(request: Readonly<{ groupId: string; memberId: string }>): Promise<unknown>
  /** Lists the groups that this broker coordinates. */
  listGroups(): Promise<{ groups: readonly Readonly<{ groupId: string }>[] }>
  deleteGroups(groupIds: readonly string[]): Promise<unknown>
  offsetCommit(
    request: Readonly<{
      groupId: string
      groupGenerationId: number
      memberId: string
      topics: Topics<Readonly<{ partition: number; offset: string; metadata: string }>>
    }>,
  ): Promise<unknown>
  offsetFetch(
    request: Readonly<{ groupId: string; topics: Topics<Readonly<{ partition: number }>> }>,
  ): Promise<{ responses: Topics<Readonly<{ partition: number; offset: string; metadata: string | null }>> }>
}

interface RequestQueue {
  readonly pending: readonly unknown[]
  scheduleCheckPendingRequests(): void
}
interface Connection {
  readonly requestQueue: RequestQueue
  /** of its authentication, as the broker said; ms as a Long, 0: without end */
  readonly sessionLifetime: { toString(): string }
}
interface ConnectionPool {
  pool: Connection[]
  send<T>(protocol: { request: object; response: object }): Promise<T>
}
type SocketFactory = (at: { host: string; port: number; onConnect: () => void }) => Socket
type ConnectionOptions = {
  host: string
  port: number
  clientId: string
  logger: typeof SILENT
  socketFactory: SocketFactory
  ssl: object | null
  sasl: object | null
  connectionTimeout: number
  requestTimeout: number
  enforceRequestTimeout: boolean
  reauthenticationThreshold: number
}

const BrokerClass = require('kafkajs/src/broker') as new (options: {
  connectionPool: ConnectionPool
  logger: typeof SILENT
  authenticationTimeout: number
  allowAutoTopicCreation: boolean
}) => Omit<Broker, 'describe'>
const PoolClass = require('kafkajs/src/network/connectionPool') as new (options: ConnectionOptions) => ConnectionPool
interface Encoder {
  writeInt32(value: number): Encoder
  writeBoolean(value: boolean): Encoder
}
const EncoderClass = require('kafkajs/src/protocol/encoder') as new () => Encoder
const { decode: decodeMetadata } = require('kafkajs/src/protocol/requests/metadata/v6/response') as {
  decode(answer: Buffer): Promise<ClusterMetadata>
}
const { AssignerProtocol } = require('kafkajs') as {
  AssignerProtocol: {
    MemberMetadata: {
      encode(data: { version: number; topics: readonly string[]; userData: Buffer }): Buffer
      decode(buffer: Buffer): { version: number; topics: string[]; userData: Buffer | null }
    }
    MemberAssignment: {
      encode(data: { version: number; assignment: Record<string, readonly number[]>; userData: Buffer }): Buffer
      decode(buffer: Buffer): { version: number; assignment: Record<string, number[]> } | null
    }
  }
}
/** The forms in which members of a group say what they serve. */
export const { MemberMetadata, MemberAssignment } = AssignerProtocol

const METADATA = 3

/** Its failures reach us as rejections; its lines would say them again, and more than once. */
const SILENT = {
  namespace: () => SILENT,
  debug: () => undefined,
  info: () => undefined,
  warn: () => undefined,
  error: () => undefined,
}

/**
 * Makes a connection to one broker over one socket.
 * @param sessionLifetimeMs asked after `connect`
 */
export function makeBroker(
  options: Readonly<{
    host: string
    port: number
    clientId: string
    socketFactory: SocketFactory
    sasl: object | null
    connectTimeoutMs: number
  }>,
): { broker: Broker; sessionLifetimeMs: () => number } {
  const { host, port, clientId, socketFactory, sasl, connectTimeoutMs } = options
  const connectionPool = new PoolClass({
    host,
    port,
    clientId,
    socketFactory,
    sasl,
    logger: SILENT,
    ssl: null, // the socket factory knows
    connectionTimeout: connectTimeoutMs,
    requestTimeout: connectTimeoutMs,
    // its way of enforcing is a timer of 100 ms for each connection, for ever: our calls have deadlines of their own
    enforceRequestTimeout: false,
    // authenticating again on a connection with requests in flight mixes up their answers: ours are replaced in time
    reauthenticationThreshold: -(2 ** 40),
  })
  const connection = connectionPool.pool[0] as Connection
  connectionPool.pool = [connection, connection] // fetches have a socket of their own otherwise, opened without a lock
  const queue = connection.requestQueue
  const schedule = queue.scheduleCheckPendingRequests.bind(queue)
  // with nothing pending it sets a timer of a negative time after every answer (TimeoutNegativeWarning on Node 24)
  queue.scheduleCheckPendingRequests = () => {
    if (queue.pending.length > 0) schedule()
  }
  const plain = new BrokerClass({
    connectionPool,
    logger: SILENT,
    authenticationTimeout: connectTimeoutMs,
    allowAutoTopicCreation: false,
  })
  const broker = Object.assign(plain, {
    describe: (all: boolean) =>
      connectionPool.send<ClusterMetadata>({
        request: {
          apiKey: METADATA,
          apiVersion: 6,
          apiName: 'Metadata',
          encode: async () => new EncoderClass().writeInt32(all ? -1 : 0).writeBoolean(false),
        },
        response: { decode: decodeMetadata, parse: async (data: ClusterMetadata) => data },
      }),
  })
  return { broker, sessionLifetimeMs: () => Number(connection.sessionLifetime.toString()) }
}
