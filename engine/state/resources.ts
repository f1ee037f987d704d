/**
 * The resources a user manages, each described once: the schema is at the same time the TypeScript type, what the API
 * and the YAML file are checked against, what OpenAPI publishes, and what the state database stores (field names are
 * those of the wire). Defaults stand in the schema and are filled in when a resource is checked.
 */
import { Type, type Static } from 'typebox'
import { DURATION_PATTERN, durationMs } from '../duration.ts'
import type { Connection } from '../postgres/client-config.ts'
import { Name } from '../resource-name.ts'
import type { Destination } from './destinations.ts'
import { FUNCTION_KINDS, type FunctionKind } from './function-kinds.ts'
import type { StreamShape } from './generation-shape.ts'
import { SourceFilter } from './source-filter.ts'

const Annotations = Type.Record(Type.String(), Type.Unknown(), {
  default: {},
  description: 'free JSON copied into each message, at most 8192 bytes',
})

const DEFAULT_REPLAY_WINDOW = '1h'

/** The actions: what can happen to a row. */
export const ACTIONS = ['insert', 'update', 'delete'] as const

/** The schema of what a sink says of one of its tables. */
export const TableSettings = Type.Object(
  {
    name: Type.String({ description: 'schema.table; without a schema: public' }),
    group_column_names: Type.Optional(Type.Union([Type.Array(Type.String(), { minItems: 1 }), Type.Null()])),
  },
  { additionalProperties: false, title: 'TableSettings' },
)

const partitions = {
  minimum: 1,
  maximum: 1024,
  description: 'parallel streams; order holds within a row; may be changed at any time. Of a new sink 1, with the log in Kafka 4',
}
/** The schema of a number of partitions as a user says it: without a default, for that depends on the log. */
export const PartitionsIn = Type.Integer(partitions)

const functionName = (purpose: string) => Type.Optional(Type.Union([Name, Type.Null()], { description: `name of the function ${purpose}` }))
/** The settings that name functions. */
const functionSettings = Object.fromEntries(
  Object.entries(FUNCTION_KINDS).map(([kind, { purpose }]) => [kind, functionName(purpose)]),
) as Readonly<Record<FunctionKind, ReturnType<typeof functionName>>> // an entry for each kind

/** The values of the status of a sink. */
export const SINK_STATUSES = ['active', 'paused', 'disabled'] as const

/** The part of a sink that is the same for every destination. */
export const SinkSettings = Type.Object(
  {
    name: Name,
    database: Type.String({ ...Name, description: 'name of the database it streams' }),
    status: Type.Union([Type.Literal('active'), Type.Literal('paused'), Type.Literal('disabled')], {
      default: 'active',
      description: 'paused keeps changes and delivers none; disabled does not take them at all',
    }),
    source: SourceFilter,
    tables: Type.Array(TableSettings, { default: [], description: 'settings of single tables: the columns that make a message group' }),
    actions: Type.Array(Type.Union([Type.Literal('insert'), Type.Literal('update'), Type.Literal('delete')]), {
      minItems: 1,
      uniqueItems: true,
      default: [...ACTIONS],
      description: 'which changes it takes',
    }),
    message_grouping: Type.Boolean({ default: true, description: 'false gives up the order within a row' }),
    batch_size: Type.Integer({
      minimum: 1,
      maximum: 1000,
      default: 1,
      description: 'messages of one delivery; a pull client says it itself',
    }),
    max_retry_count: Type.Union([Type.Integer({ minimum: 1 }), Type.Null()], {
      default: null,
      description: 'failed deliveries after which a message is discarded; null: never',
    }),
    load_shedding_policy: Type.Union([Type.Literal('pause_on_full'), Type.Literal('discard_on_full')], {
      default: 'pause_on_full',
      description: 'what gives when the backlog is full: the source stops reading, or new messages are lost to this sink',
    }),
    timestamp_format: Type.Union([Type.Literal('iso8601'), Type.Literal('unix_microsecond')], {
      default: 'iso8601',
      description: 'how timestamps of record and changes are written',
    }),
    key_changes: Type.Union([Type.Literal('update'), Type.Literal('delete_insert')], {
      default: 'update',
      description:
        'of pull and webhook sinks: an update that changes the primary key comes as one, or as a delete of the old row and an insert of the new one, each in the group of its key',
    }),
    annotations: Annotations,
    ack_wait_ms: Type.Integer({
      minimum: 500,
      maximum: 86_400_000,
      default: 30_000,
      description: 'visibility timeout of a delivered message',
    }),
    max_ack_pending: Type.Integer({
      minimum: 1,
      maximum: 1_000_000,
      default: 10_000,
      description: 'delivered and unacknowledged messages at once',
    }),
    max_waiting: Type.Integer({ minimum: 1, maximum: 10_000, default: 20, description: 'receives that may wait at once' }),
    batch_timeout_ms: Type.Integer({ minimum: 1, default: 5, description: 'longest wait for a delivery to fill' }),
    max_memory_mb: Type.Integer({
      minimum: 128,
      default: 128,
      description: 'read-ahead window of the sink; all sinks of a process together hold 512 MB, and above that 1 MB a partition',
    }),
    max_backlog_mb: Type.Integer({
      minimum: 1,
      default: 10_240,
      description:
        'bound of what is not finished, in the log and parked; and, by itself, of what the log keeps behind that and its actions leave out',
    }),
    replay_window: Type.Union(
      [
        Type.Integer({ minimum: 0, description: 'milliseconds' }),
        Type.String({ pattern: DURATION_PATTERN, description: 'such as 90s, 30m, 1h, 7d' }),
      ],
      {
        default: DEFAULT_REPLAY_WINDOW,
        description: 'how long acknowledged messages stay in the log, to be replayed; at most 1 GB of them; 0: not at all',
      },
    ),
    concurrency: Type.Union([Type.Integer({ minimum: 1, maximum: 256 }), Type.Null()], {
      default: null,
      description: 'requests to the destination at once; null: as its kind does well with',
    }),
    traceparent_column: Type.Union([Type.String({ minLength: 1, maxLength: 63 }), Type.Null()], {
      default: null,
      description:
        'column that has the trace context of who wrote the row, as in a header traceparent: deliveries of the row are traced as a part of that trace; null: the annotations of its transaction have it',
    }),
    ...functionSettings,
    sensitive: Type.Boolean({ default: false, description: 'true: no payloads are shown or kept beside what delivery needs' }),
    partitions: Type.Integer({ ...partitions, default: 1 }), // of what was stored before there was a choice
  },
  { additionalProperties: false },
)

/** The settings of a sink, but for its destination. */
export type SinkSettings = Static<typeof SinkSettings>
/**
 * The settings of a sink as a user gives them: without `partitions` a sink keeps the number it has, and a new one gets the default
 * of the log.
 */
export type SinkSettingsInput = Omit<SinkSettings, 'partitions'> & { partitions?: number | undefined }

/** Gives the replay window of a sink in milliseconds. @param stored as in the settings; absent: the default */
export const replayWindowMs = (stored: SinkSettings['replay_window'] | null | undefined): number =>
  durationMs(stored ?? DEFAULT_REPLAY_WINDOW)

/** Names who has resources, and tokens to reach them. */
export type Account = Readonly<{ id: string; name: string }>

/** Holds a sink as it is stored: ids beside what the user set. A change of generation is decided by the routing, not by the user. */
export type Sink = Readonly<
  SinkSettings & {
    id: string
    accountId: string
    databaseId: string
    destination: Destination
    /** some have not ended: it has a stream of its own (docs/rules.md, rule 47) */
    hasBackfills: boolean
  }
>

/** The schema of how a connection to a database is encrypted, and whose certificate is taken. */
export const TlsMode = Type.Union([
  Type.Boolean(),
  Type.Literal('disable'),
  Type.Literal('prefer'),
  Type.Literal('require'),
  Type.Literal('verify-ca'),
  Type.Literal('verify-full'),
])

/** Settings of a database that Sequin has. They are kept and shown, and have no effect. */
export type DatabaseHints = Readonly<{ ipv6?: boolean; queue_interval?: number; queue_target?: number }>

/** A source database, and how it is reached and read. */
export type Database = Readonly<{
  id: string
  accountId: string
  name: string
  connection: Connection
  /** of the primary, where the database is one of its standbys: what has to be written is written there */
  primary?: Connection | null
  poolSize: number
  annotations: Readonly<Record<string, unknown>>
  /** settings of Sequin that have no effect here, shown as they were given */
  hints?: DatabaseHints
  slot: Readonly<{ id: string; name: string; publication: string; status: 'active' | 'disabled' }>
}>

/**
 * Says what goes where, as an immutable numbered version (docs/rules.md, rule 6): which streams are written, and who reads them. It takes
 * effect where a transactional logical message naming it stands in the write-ahead log, so that every run over the same log
 * cuts at the same place.
 */
export type RoutingVersion = Routing & Readonly<{ databaseId: string; version: number }>

/** Says which streams are written, and who reads them. Who reads a stream changes nothing of what is written to it. */
export type Routing = Readonly<{ streams: readonly RoutedStream[]; readers: readonly RoutedReader[] }>

/** Describes a stream that is written, and its topic. */
export type RoutedStream = StreamShape &
  Readonly<{
    topic: string
    /** of a topic that a single generation has: what else is not written to it; absent: all actions are */
    actions?: readonly (typeof ACTIONS)[number][]
    /** a change of the primary key is a delete and an insert; absent: it is an update */
    splitsKeyChanges?: boolean
  }>

/** A generation of a sink. */
export type RoutedReader = Readonly<{
  sinkId: string
  generation: number
  topic: string
  /** what it takes of the stream */
  actions: readonly (typeof ACTIONS)[number][]
}>
