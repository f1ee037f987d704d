/** The form of a database in requests and answers of the API. Nothing here does I/O. */
import { Type, type TSchema } from 'typebox'
import { Name } from '../../engine/resource-name.ts'
import type { Reason } from '../../engine/schema-reasons.ts'
import type { DatabaseInput } from '../../engine/state/resource-store.ts'
import type { DatabaseSight, SlotState } from '../../engine/status.ts'
import { idleDatabaseHealth } from '../source/database-health.ts'
import { TlsMode, type Database } from '../../engine/state/resources.ts'
import {
  changedConnection,
  connectionEntry,
  connectionFields,
  connectionOf,
  gathered,
  type StoredConnection,
  type Tell,
} from './connection-form.ts'
import {
  checkPublicationName,
  checkSlotName,
  DEFAULT_HINTS,
  DEFAULT_POOL_SIZE,
  hintFields,
  hintsOf,
  PRIMARY_WORDS,
  PrimaryForm,
} from './database-form.ts'
import { checker, invalid, readOnly } from './form.ts'
import { HealthOut } from './sink-form.ts'
import { obfuscated } from './secret-form.ts'

const strict = { additionalProperties: false } as const
const SlotStatus = Type.Union([Type.Literal('active'), Type.Literal('disabled')])

const SlotIn = Type.Object(
  {
    id: Type.Optional(Type.String({ description: 'of the slot; needed in an update' })),
    slot_name: Type.Optional(Type.String({ description: 'up to 63 of a-z, 0-9 and "_"' })),
    publication_name: Type.Optional(Type.String({ minLength: 1 })),
    status: Type.Optional(Type.Union(SlotStatus.anyOf, { description: 'disabled: its database is not read' })),
    create_if_not_exists: Type.Optional(Type.Boolean({ description: 'slot and publication are created where they are missing' })),
    init_sql: Type.Optional(Type.String({ minLength: 1, description: 'SQL that creates the publication' })),
    ...readOnly('postgres_database_id', 'state'),
  },
  { ...strict, title: 'ReplicationSlotInput' },
)

/** The schema of a database in a request. */
export const DatabaseIn = Type.Object(
  {
    name: Type.Optional(Name),
    ...connectionFields,
    ...hintFields,
    use_local_tunnel: Type.Optional(Type.Boolean({ description: 'only false: there are no development tunnels to databases' })),
    pool_size: Type.Optional(Type.Integer({ minimum: 1, maximum: 1000, description: 'without effect' })),
    annotations: Type.Optional(
      Type.Record(Type.String(), Type.Unknown(), { description: 'free JSON copied into the metadata of each message' }),
    ),
    replication_slots: Type.Optional(
      Type.Array(SlotIn, { description: 'exactly one; in an update with its id, or absent', minItems: 1, maxItems: 1 }),
    ),
    primary: Type.Optional(Type.Union([PrimaryForm, Type.Null()], { description: `${PRIMARY_WORDS}; null: none` })),
    ...readOnly('tables_refreshed_at'),
  },
  { ...strict, title: 'DatabaseInput' },
)

const ConnectionOut = {
  hostname: Type.String(),
  port: Type.Integer(),
  database: Type.String(),
  username: Type.String(),
  password: Type.String({ description: 'shown only in part, unless show_sensitive=true' }),
  ssl: Type.Union([TlsMode], { description: 'where it was not set: whether the server offered TLS' }),
  ca_cert: Type.Optional(Type.String()),
  ipv6: Type.Boolean(),
}

const Nullable = (schema: TSchema, description: string) => Type.Union([schema, Type.Null()], { description })
const SlotStateOut = Type.Object(
  {
    wal_status: Nullable(Type.String(), 'as pg_replication_slots has it'),
    confirmed_lag_bytes: Type.Number({ description: 'from the confirmed position to the end of the write-ahead log' }),
    restart_lag_bytes: Type.Number({ description: 'what the server keeps for the slot' }),
    safe_wal_size: Nullable(Type.Number(), 'bytes that may be written before the slot is lost; null: no bound is set'),
    seconds_until_lost: Nullable(Type.Number(), 'at the rate of the last five minutes; null: not in sight'),
    catalog_xmin_age: Nullable(Type.Number(), 'transactions since the one from which the catalogue is kept'),
    oldest_transaction: Nullable(
      Type.Object({
        xid: Type.String(),
        pid: Nullable(Type.Integer(), 'of its process; null: it is prepared'),
        prepared: Nullable(Type.String(), 'its name, if it is prepared'),
        seconds: Nullable(Type.Number(), 'its age; null: not shown to the user'),
      }),
      'the open transaction that began first: the slot does not move beyond it',
    ),
    spilled: Type.Object(
      { transactions: Type.Integer(), times: Type.Integer(), bytes: Type.Number() },
      { description: 'to the disk of the server, by decoding' },
    ),
  },
  { title: 'SlotState' },
)

/** The schema of a database in an answer. */
export const DatabaseOut = Type.Object(
  {
    id: Type.String({ format: 'uuid' }),
    name: Name,
    ...ConnectionOut,
    use_local_tunnel: Type.Boolean(),
    pool_size: Type.Integer(),
    queue_interval: Type.Integer(),
    queue_target: Type.Integer(),
    annotations: Type.Object({}, { additionalProperties: true }),
    replication_slots: Type.Array(
      Type.Object(
        {
          id: Type.String({ format: 'uuid' }),
          publication_name: Type.String(),
          slot_name: Type.String(),
          status: SlotStatus,
          state: Nullable(SlotStateOut, 'as it stood some seconds ago; null: not known'),
        },
        { title: 'ReplicationSlot' },
      ),
    ),
    primary: Type.Optional(Type.Object(ConnectionOut)),
    health: HealthOut,
  },
  { title: 'Database' },
)

type Body = Readonly<Record<string, unknown>>
/** A database that is to be created. @property create slot and publication are made where they are missing */
export type NewDatabase = Readonly<{ input: DatabaseInput; create: boolean; initSql?: string }>
/** The fields that an update of a database changes, and whether a slot or publication that its server lacks is made. */
export type DatabaseChanges = Readonly<{ changes: Partial<DatabaseInput>; create: boolean; initSql?: string }>

const check = checker(DatabaseIn)

/** Reads the body that creates a database. @throws EngineError VALIDATION_FAILED */
export function newDatabase(body: Body): NewDatabase {
  const form = check(body)
  const reasons: Reason[] = []
  const tell = gathered(reasons)
  const { name, pool_size: poolSize = DEFAULT_POOL_SIZE, annotations = {}, replication_slots: [slot, another] = [] } = form
  if (name === undefined) tell('name', 'is missing')
  if (form.url === undefined)
    for (const field of ['username', 'password'] as const) if (form[field] === undefined) tell(field, 'is missing (or give url)')
  if (form.use_local_tunnel) refuseTunnel(tell)
  const connection = connectionOf(form, undefined, tell)
  const primary = form.primary ? (connectionOf(form.primary, undefined, gathered(reasons, 'primary.')) ?? null) : null
  const { slot_name: slotName, publication_name: publicationName, status = 'active' } = slot ?? {}
  if (!slot || another) tell('replication_slots', 'must have one element: { "slot_name": …, "publication_name": … }')
  else {
    if (slotName === undefined) tell('replication_slots.0.slot_name', 'is missing')
    if (publicationName === undefined) tell('replication_slots.0.publication_name', 'is missing')
    checkNames(slot, tell)
  }
  if (reasons.length > 0 || name === undefined || !connection || slotName === undefined || publicationName === undefined)
    throw invalid(reasons)
  return {
    input: { name, connection, primary, poolSize, annotations, hints: hintsOf(form), slotName, publicationName, slotStatus: status },
    ...making(slot),
  }
}

/**
 * Reads the body that changes a database: what is absent stays. @param mayMove its password may be sent to another server without being
 * given again
 * @throws EngineError VALIDATION_FAILED
 */
export function databaseChanges(body: Body, stored: Database, { mayMove }: Readonly<{ mayMove: boolean }>): DatabaseChanges {
  const form = check(body)
  const reasons: Reason[] = []
  const tell = gathered(reasons)
  if (form.use_local_tunnel) refuseTunnel(tell)
  const { name, pool_size: poolSize, annotations, replication_slots: [slot] = [] } = form
  if (slot) {
    if (slot.id === undefined) tell('replication_slots.0.id', 'is missing: an update names the slot that it changes')
    else if (slot.id !== stored.slot.id) tell('replication_slots.0.id', `is not the slot of this database, ${stored.slot.id}`)
    checkNames(slot, tell)
  }
  const connection = changedConnection(form, { connection: stored.connection, mayMove }, tell)
  const known = stored.primary && { connection: stored.primary, mayMove }
  const primary = changedPrimary(form.primary, known ?? null, gathered(reasons, 'primary.'))
  if (reasons.length > 0 || !connection || primary === undefined) throw invalid(reasons)
  const hints = hintsOf({ ...DEFAULT_HINTS, ...stored.hints, ...hintsGiven(form) })
  const changes: Partial<DatabaseInput> = {
    ...(name !== undefined && { name }),
    ...(connection !== stored.connection && { connection }),
    ...(form.primary !== undefined && { primary }),
    ...(poolSize !== undefined && { poolSize }),
    ...(annotations !== undefined && { annotations }),
    ...(Object.keys(hintsGiven(form)).length > 0 && { hints }),
    ...(slot?.slot_name !== undefined && { slotName: slot.slot_name }),
    ...(slot?.publication_name !== undefined && { publicationName: slot.publication_name }),
    ...(slot?.status !== undefined && { slotStatus: slot.status }),
  }
  return { changes, ...making(slot) }
}

/** Shows a database. @param sight how it is; absent: no process that answers has its source */
export function databaseOut(
  database: Database,
  { showSensitive, sight }: Readonly<{ showSensitive: boolean; sight?: DatabaseSight | undefined }>,
): Record<string, unknown> {
  const { id, name, connection, primary, poolSize, annotations, hints, slot } = database
  const secret = showSensitive ? (text: string) => text : obfuscated
  const { ipv6, ...others } = { ...DEFAULT_HINTS, ...hints }
  const shown = (one: Database['connection']) => ({
    ...connectionEntry(one, secret),
    ...(one.ssl === 'prefer' && { ssl: !one.withoutTls }),
  })
  return {
    id,
    name,
    ...shown(connection),
    ipv6,
    use_local_tunnel: false,
    pool_size: poolSize,
    ...others,
    annotations,
    replication_slots: [
      {
        ...{ id: slot.id, publication_name: slot.publication, slot_name: slot.name, status: slot.status },
        state: sight?.slot ? slotStateOut(sight.slot) : null,
      },
    ],
    ...(primary && { primary: { ...shown(primary), ipv6: false } }),
    health: sight?.health ?? idleDatabaseHealth(database),
  }
}

const slotStateOut = (state: SlotState) => ({
  wal_status: state.walStatus,
  confirmed_lag_bytes: state.confirmedBytes,
  restart_lag_bytes: state.retainedBytes,
  safe_wal_size: state.safeWalBytes,
  seconds_until_lost: state.secondsUntilLost === null ? null : Math.round(state.secondsUntilLost),
  catalog_xmin_age: state.catalogXminAge,
  oldest_transaction: state.oldest,
  spilled: state.spilled,
})

type SlotForm = Readonly<{ slot_name?: string; publication_name?: string; create_if_not_exists?: boolean; init_sql?: string }>

const making = ({ create_if_not_exists: create = false, init_sql: initSql }: SlotForm = {}) => ({
  create,
  ...(initSql !== undefined && { initSql }),
})

function checkNames({ slot_name: slotName, publication_name: publicationName }: SlotForm, tell: Tell): void {
  if (slotName !== undefined) checkSlotName(slotName, (reason) => tell('replication_slots.0.slot_name', reason))
  if (publicationName !== undefined) checkPublicationName(publicationName, (reason) => tell('replication_slots.0.publication_name', reason))
}

const refuseTunnel = (tell: Tell): void => tell('use_local_tunnel', 'is not supported: this service has no development tunnels')

const hintsGiven = (form: Readonly<Record<string, unknown>>) =>
  Object.fromEntries(Object.keys(DEFAULT_HINTS).flatMap((name) => (form[name] === undefined ? [] : [[name, form[name]]])))

/** @returns undefined: something is wrong with it, and told */
function changedPrimary(
  form: Parameters<typeof connectionOf>[0] | null | undefined,
  known: StoredConnection | null,
  tell: Tell,
): Database['connection'] | null | undefined {
  if (form === undefined) return known?.connection ?? null
  if (form === null) return null
  return known ? changedConnection(form, known, tell) : connectionOf(form, undefined, tell)
}
