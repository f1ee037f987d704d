/**
 * The wire form of a sink: how one is printed, and what a partial update may say. Fields are checked by the
 * schema of the resource itself; here is only what the wire adds to it: spellings that are taken in and left out again, an
 * output that can be sent back, and rules that span fields. Nothing here does I/O.
 */
import { isDeepStrictEqual } from 'node:util'
import { Type } from 'typebox'
import { schemaCheck } from '../../engine/schema-check.ts'
import { EngineError } from '../../engine/errors.ts'
import { durationMs } from '../../engine/duration.ts'
import { SinkSettings, TableSettings, type Sink, PartitionsIn } from '../../engine/state/resources.ts'
import { SourceFilter } from '../../engine/state/source-filter.ts'
import { FUNCTION_FIELDS } from '../../engine/state/function-kinds.ts'
import { Name } from '../../engine/resource-name.ts'
import { qualified } from '../../engine/postgres/table-name.ts'
import { FILE_DESTINATIONS, isKeyed, PUSH_TYPES, STORED_DESTINATIONS } from '../../sinks/destination-types.ts'
import { isUnsupported, unsupportedWords } from '../../sinks/unsupported-types.ts'
import { DestinationIn, destinationOf, DestinationOut, destinationOut } from './destination-form.ts'
import { NOUN_OF, type SinkInput } from '../../engine/state/resource-store.ts'
import type { Destination, DestinationSchemas } from '../../engine/state/destinations.ts'
import type { Health } from '../../engine/status.ts'
import { reasonsOf, type Reason } from '../../engine/schema-reasons.ts'
import { invalid, readOnly, type ResourceForm } from './form.ts'
import { BackfillOut, backfillOut, initialBackfill, InitialBackfillIn, type ShownBackfill } from './backfill-form.ts'

const nullable = (name: keyof typeof SourceFilter.properties) => Type.Union([Type.Array(Type.String()), Type.Null()], { description: name })

/** The schema of the health of a sink in an answer. */
export const HealthOut = Type.Object(
  {
    name: Type.String(),
    status: Type.Union(['healthy', 'warning', 'error', 'initializing', 'paused'].map((status) => Type.Literal(status))),
    checks: Type.Array(Type.Object({ name: Type.String(), status: Type.String(), error: Type.Optional(Type.Unknown()) })),
  },
  { title: 'Health' },
)

/** Settings that are shown as they are stored. */
// prettier-ignore
const SHOWN_ALIKE = [
  'message_grouping', 'partitions', 'replay_window', 'batch_size', 'max_retry_count', 'load_shedding_policy', 'timestamp_format',
  'key_changes', 'concurrency', 'traceparent_column', 'sensitive', 'annotations',
] as const

/** The schema of a sink in an answer. */
export const SinkOut = Type.Object(
  {
    id: Type.String({ format: 'uuid' }),
    name: Name,
    status: SinkSettings.properties.status,
    database: Name,
    source: Type.Object(
      {
        include_schemas: nullable('include_schemas'),
        exclude_schemas: nullable('exclude_schemas'),
        include_tables: nullable('include_tables'),
        exclude_tables: nullable('exclude_tables'),
      },
      { title: 'Source' },
    ),
    tables: Type.Array(TableSettings),
    actions: SinkSettings.properties.actions,
    destination: DestinationOut,
    ...Object.fromEntries(FUNCTION_FIELDS.map((field) => [field, Type.String({ description: 'name of a function, or "none"' })])),
    ...Object.fromEntries(SHOWN_ALIKE.map((name) => [name, SinkSettings.properties[name]])),
    active_backfills: Type.Array(BackfillOut, { description: 'those that are active or paused, newest first' }),
    health: HealthOut,
  },
  { title: 'Sink' },
)

/** Shows a sink, of its secrets only enough to know them. @param backfills of it that have not ended */
export function sinkOut(sink: Sink, health: Health, backfills: readonly ShownBackfill[] = []): Record<string, unknown> {
  return {
    id: sink.id,
    name: sink.name,
    status: sink.status,
    database: sink.database,
    source: {
      include_schemas: sink.source.include_schemas ?? null,
      exclude_schemas: sink.source.exclude_schemas ?? null,
      include_tables: sink.source.include_tables?.map(qualified) ?? null,
      exclude_tables: sink.source.exclude_tables?.map(qualified) ?? null,
    },
    tables: sink.tables.map((table) => ({ name: qualified(table.name), group_column_names: table.group_column_names ?? null })),
    actions: sink.actions,
    destination: destinationOut(sink.destination),
    ...Object.fromEntries(FUNCTION_FIELDS.map((field) => [field, sink[field] ?? 'none'])),
    ...Object.fromEntries(SHOWN_ALIKE.map((name) => [name, sink[name]])),
    active_backfills: backfills.map((backfill) => backfillOut(backfill, sink)),
    health,
  }
}

/** Makes the health of a sink without an actor: it is off by its status, or about to start. */
export function idleHealth(sink: Sink): Health {
  const status = sink.status === 'active' ? 'initializing' : 'paused'
  return { name: 'Consumer health', status, checks: [{ name: 'Sink configuration', status }] }
}

/** Parts of an output, and keys of older versions: taken in and left out. */
const LEFT_OUT = readOnly('active_backfill', 'active_backfills', 'replication_slot_id', 'sequence_id', 'consumer_start', 'message_kind')
const MAX_ANNOTATION_BYTES = 8_192
const MAX_DEPTH = 64
const MAX_REPLAY_WINDOW_MS = durationMs('30d')

type SinkChanges = Partial<SinkInput>

const { database: _database, ...settable } = SinkSettings.properties
/** The schema of an update of a sink: every field that can be set, none required, and fields that exist on the wire alone. */
export const SinkPatch = Type.Object(
  {
    ...Object.fromEntries(Object.entries(settable).map(([name, schema]) => [name, Type.Optional(schema)])),
    partitions: Type.Optional(PartitionsIn),
    source: Type.Optional(Type.Union([SourceFilter, Type.Null()])),
    tables: Type.Optional(Type.Union([SinkSettings.properties.tables, Type.Null()])),
    destination: Type.Optional(DestinationIn),
    database: Type.Optional(Type.String({ description: 'name of the database; of a sink that exists it can’t be changed' })),
    table: Type.Optional(Type.String({ description: 'older than source: its one table' })),
    schema: Type.Optional(Type.String({ description: 'older than source: the schema of its table, or its one schema' })),
    initial_backfill: Type.Optional(InitialBackfillIn),
    ...LEFT_OUT,
  },
  { additionalProperties: false, title: 'SinkInput' },
)
const check = schemaCheck(Type.Partial(Type.Object(settable)), { formats: { uuid: true } })

/**
 * Reads what an update changes of a sink. @param sink as it is @param body the partial sink of the request
 * @returns the fields to set, of the resource's own form
 * @throws EngineError VALIDATION_FAILED: the context has a reason for each wrong field, all at once
 */
export function sinkChanges(sink: Sink, body: Readonly<Record<string, unknown>>): SinkChanges {
  refuseDeep(body)
  const given = settableOf(body)
  const isFit = check(given)
  const reasons: Reason[] = [
    ...oddFields(body),
    ...fixedFields(sink, body),
    ...lateBackfills(body),
    ...(isFit ? [] : reasonsOf(check.errors ?? [])),
  ]
  const { destination, reasons: wrong = [] } = body['destination'] === undefined ? {} : destinationOf(body['destination'], sink)
  reasons.push(...wrong)
  const changes = isFit ? { ...given, ...(destination && { destination }) } : undefined
  if (changes?.status === 'active' && isUnsupported(sink.destination))
    reasons.push(['status', `can't be active: ${unsupportedWords(sink.destination)}`])
  if (changes && reasons.length === 0) reasons.push(...acrossFields({ ...sink, ...changes }, changes))
  if (!changes || reasons.length > 0) throw invalid(reasons)
  return changes
}

/**
 * Reads a whole sink. @param body as it came
 * @param beside `known`: whose secrets may be given as they are shown; `taken`: the types of destinations, where others are taken, too
 * @returns the sink with its defaults filled in
 * @throws EngineError VALIDATION_FAILED: the context has a reason for each wrong field, all at once
 */
export function newSink(
  body: Readonly<Record<string, unknown>>,
  beside: Readonly<{ known?: Destination | undefined; taken?: DestinationSchemas }> = {},
): SinkInput {
  refuseDeep(body)
  const { destination, reasons: wrong } = destinationOf(body['destination'], { name: body['name'], ...beside })
  const settings: Record<string, unknown> = {
    source: {},
    batch_size: batchSizeOf(destination),
    ...settableOf(body),
    database: body['database'],
  }
  const isFit = checkSettings(settings)
  const reasons = [...oddFields(body), ...(isFit ? [] : reasonsOf(checkSettings.errors ?? []))]
  reasons.push(...wrong)
  const { initial, reasons: odd } = initialBackfill(body['initial_backfill'], isFit ? settings.source : {})
  reasons.push(...odd)
  const sink = isFit && destination ? { ...settings, destination, ...(initial && { initial_backfill: initial }) } : undefined
  if (sink && reasons.length === 0) reasons.push(...acrossFields(sink, sink))
  if (!sink || reasons.length > 0) throw invalid(reasons)
  return sink
}
/** Gives the batch size of a sink that doesn't say. */
const batchSizeOf = (destination: Destination | undefined): number => PUSH_TYPES.get(destination?.type ?? '')?.batchSize ?? 1

/** Fills in the defaults of the settings that a sink does not say, and are no matter of its destination. @throws EngineError VALIDATION_FAILED */
export function newSettings(given: Readonly<Record<string, unknown>>): Omit<SinkInput, 'destination'> {
  const settings: Record<string, unknown> = { ...given }
  if (checkSettings(settings)) return settings
  throw invalid(reasonsOf(checkSettings.errors ?? []))
}

const checkSettings = schemaCheck(
  Type.Object({ ...SinkSettings.properties, partitions: Type.Optional(PartitionsIn) }, { additionalProperties: false }),
  { useDefaults: true, formats: { uuid: true } },
)

/** Only so many of them are named. */
const MAX_UNKNOWN = 10

/** Reasons to refuse fields that a sink does not have. */
function oddFields(body: Readonly<Record<string, unknown>>): Reason[] {
  const unknown = Object.keys(body).filter((name) => !Object.hasOwn(SinkPatch.properties, name))
  const reasons = unknown.slice(0, MAX_UNKNOWN).map((name): Reason => [name.slice(0, 60), 'is not a field of a sink'])
  for (const name of ['table', 'schema'])
    if (body[name] !== undefined && typeof body[name] !== 'string') reasons.push([name, 'must be a text'])
  return reasons
}

/** Takes what can be set, and brings older spellings to the resource's form. */
function settableOf(body: Readonly<Record<string, unknown>>): Record<string, unknown> {
  const changes: Record<string, unknown> = {}
  for (const [name, value] of Object.entries(body)) if (Object.hasOwn(settable, name)) changes[name] = value
  for (const field of FUNCTION_FIELDS) if (changes[field] === 'none' || changes[field] === '') changes[field] = null
  if (changes['tables'] === null) changes['tables'] = []
  if (changes['message_grouping'] === 'true' || changes['message_grouping'] === 'false')
    changes['message_grouping'] = changes['message_grouping'] === 'true'
  const { table, schema } = body // older than source
  const isOlder = (changes['source'] ?? undefined) === undefined
  if (isOlder && typeof table === 'string')
    changes['source'] = { include_tables: [typeof schema === 'string' ? `${schema}.${table}` : qualified(table)] }
  else if (isOlder && typeof schema === 'string') changes['source'] = { include_schemas: [schema] }
  else if (changes['source'] === null) changes['source'] = {}
  return changes
}

function fixedFields(sink: Sink, body: Readonly<Record<string, unknown>>): Reason[] {
  return body['database'] !== undefined && body['database'] !== sink.database ? [['database', 'cannot be changed']] : []
}

/** Backfills that a sink begins with are for one that is not there yet. */
function lateBackfills({ initial_backfill: given }: Readonly<Record<string, unknown>>): Reason[] {
  const isNone = given === undefined || given === null || given === false || (Array.isArray(given) && given.length === 0)
  return isNone ? [] : [['initial_backfill', 'is for a new sink: POST /api/sinks/NAME/backfills begins one of a sink that exists']]
}

/** @param sink as it is to be */
function acrossFields(sink: SinkInput, changes: SinkChanges): Reason[] {
  const reasons: Reason[] = []
  const { destination } = sink
  if (isKeyed(destination) && sink.key_changes === 'delete_insert')
    reasons.push([
      'key_changes',
      `is only for pull and webhook sinks: a sink of type ${destination.type} deletes the old document by itself`,
    ])
  const { routing, refused } = PUSH_TYPES.get(destination.type) ?? {}
  if ((sink.routing ?? null) !== null && !routing && !isUnsupported(destination))
    reasons.push(['routing', `is not supported by sinks of type ${destination.type}`])
  reasons.push(...(refused?.(sink) ?? []))
  if (destination.type === 'sequin_stream' && (sink.partitions ?? 1) > sink.max_ack_pending) {
    const field = changes.max_ack_pending === undefined ? 'partitions' : 'max_ack_pending'
    reasons.push([
      field,
      `leaves some partitions without messages: max_ack_pending (${sink.max_ack_pending}) is below partitions (${sink.partitions})`,
    ])
  }
  const source = changes.source ?? sink.source
  if (source.include_schemas && source.exclude_schemas) reasons.push(['source.exclude_schemas', 'cannot be set beside include_schemas'])
  if (source.include_tables && source.exclude_tables) reasons.push(['source.exclude_tables', 'cannot be set beside include_tables'])
  const grouping = changes.message_grouping ?? sink.message_grouping
  const tables = changes.tables ?? sink.tables
  if (!grouping && tables.some((table) => table.group_column_names))
    reasons.push(['tables', 'cannot have group_column_names while message_grouping is false'])
  if (changes.annotations && Buffer.byteLength(JSON.stringify(changes.annotations)) > MAX_ANNOTATION_BYTES) {
    reasons.push(['annotations', `must be at most ${MAX_ANNOTATION_BYTES} bytes`])
  }
  if (changes.replay_window !== undefined && durationMs(changes.replay_window) > MAX_REPLAY_WINDOW_MS)
    reasons.push(['replay_window', 'must be at most 30d'])
  return reasons
}

/** @throws EngineError REQUEST_INVALID */
function refuseDeep(body: Readonly<Record<string, unknown>>): void {
  if (isDeeperThan(body, MAX_DEPTH)) throw new EngineError('REQUEST_INVALID', `The body is nested deeper than ${MAX_DEPTH} levels.`)
}

/** Without recursion: what is to be refused could end the stack. */
function isDeeperThan(value: unknown, limit: number): boolean {
  let level: unknown[] = [value]
  for (let depth = 0; level.length > 0; depth++) {
    if (depth > limit) return true
    level = level.flatMap((item) =>
      typeof item === 'object' && item !== null ? Object.values(item).filter((v) => typeof v === 'object' && v !== null) : [],
    )
  }
  return false
}

/** Describes how sinks stand in a file. */
export const SINK: ResourceForm<'sink', Readonly<{ input: SinkInput }>> = {
  section: 'sinks',
  noun: NOUN_OF.sink,
  schema: SinkPatch,
  read: (entry, { known }) => ({ input: newSink(entry, { known: known?.destination, taken: FILE_DESTINATIONS }) }),
  entry: (
    {
      id: _id,
      accountId: _account,
      databaseId: _database,
      hasBackfills: _hasBackfills,
      name,
      database,
      status,
      source,
      tables,
      destination,
      ...rest
    },
    secret,
    { partitions },
  ) => {
    const named = (names: readonly string[]) => names.map((table) => qualified(table))
    const { include_schemas: schemas, exclude_schemas: otherSchemas, include_tables: included, exclude_tables: excluded } = source
    const { properties = {} } = STORED_DESTINATIONS.get(destination.type) ?? {}
    const defaults = {
      ...SinkSettings.properties,
      batch_size: { default: batchSizeOf(destination) },
      partitions: { default: partitions },
    }
    const isToTell = ([field, value]: [string, unknown]) => value !== undefined && !isDefault(defaults, field, value)
    return {
      name,
      database,
      ...(status !== 'active' && { status }),
      source: {
        ...(schemas && { include_schemas: schemas }),
        ...(otherSchemas && { exclude_schemas: otherSchemas }),
        ...(included && { include_tables: named(included) }),
        ...(excluded && { exclude_tables: named(excluded) }),
      },
      ...(tables.length > 0 && {
        tables: tables.map((table) => ({
          name: qualified(table.name),
          ...(table.group_column_names && { group_column_names: table.group_column_names }),
        })),
      }),
      destination: Object.fromEntries(
        Object.entries(destinationOut(destination, secret)).filter(
          ([field, value]) => field === 'type' || !isDefault(properties, field, value),
        ),
      ),
      ...Object.fromEntries(Object.entries(rest).filter(isToTell)),
    }
  },
}

/** A field that is left out has its default, or null where there is none. */
function isDefault(properties: Readonly<Record<string, object>>, field: string, value: unknown): boolean {
  const { [field]: schema = {} } = properties
  return isDeepStrictEqual(value, 'default' in schema ? schema.default : null)
}
