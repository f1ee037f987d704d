/** The form of a database in the configuration file. Nothing here does I/O. */
import { Type } from 'typebox'
import { Name } from '../../engine/resource-name.ts'
import type { Reason } from '../../engine/schema-reasons.ts'
import { NOUN_OF, type DatabaseInput } from '../../engine/state/resource-store.ts'
import type { DatabaseHints } from '../../engine/state/resources.ts'
import { connectionEntry, connectionFields, connectionOf, gathered } from './connection-form.ts'
import { checker, invalid, readOnly, type ResourceForm } from './form.ts'

const strict = { additionalProperties: false } as const
const text = (description: string) => Type.String({ minLength: 1, description })

/** A document may have a start wait so long for its servers, for all its databases together. */
export const MAX_AWAIT_MS = 300_000

/** The connections of the original to a database; here it has no effect. */
export const DEFAULT_POOL_SIZE = 10
/** The defaults of Sequin's settings. */
export const DEFAULT_HINTS = { ipv6: false, queue_interval: 1000, queue_target: 50 } as const

/** The schemas of settings that Sequin has, and that have no effect here. */
export const hintFields = {
  ipv6: Type.Optional(Type.Boolean({ description: 'without effect: both kinds of addresses are tried' })),
  queue_interval: Type.Optional(Type.Integer({ minimum: 0, description: 'without effect' })),
  queue_target: Type.Optional(Type.Integer({ minimum: 0, description: 'without effect' })),
}
/** Says what the primary of a database is for. */
export const PRIMARY_WORDS =
  'of a database that is a standby (PostgreSQL 16 and later): the connection of its primary, where what has to be written is written'
/** The schema of the connection to the primary of a database that is a standby. */
export const PrimaryForm = Type.Object(
  { ...connectionFields, ipv6: Type.Optional(Type.Boolean({ description: 'without effect' })) },
  { ...strict, description: PRIMARY_WORDS },
)

/** Reads the settings that have no effect; those that have their default are left out. */
export const hintsOf = (form: DatabaseHints): DatabaseHints =>
  Object.fromEntries(
    Object.entries(DEFAULT_HINTS).flatMap(([name, usual]) => {
      const given = form[name as keyof DatabaseHints]
      return given === undefined || given === usual ? [] : [[name, given]]
    }),
  )

/** Names the settings of a database that are set to something else than their default, and have no effect. */
export const withoutEffect = ({ poolSize, hints = {} }: Pick<DatabaseInput, 'poolSize' | 'hints'>): readonly string[] => [
  ...(poolSize === DEFAULT_POOL_SIZE ? [] : ['pool_size']),
  ...Object.keys(hints),
]

/** The schema of an entry of `databases`. */
export const DatabaseForm = Type.Object(
  {
    name: Name,
    ...connectionFields,
    pool_size: Type.Optional(Type.Integer({ minimum: 1, maximum: 1000 })),
    annotations: Type.Optional(Type.Record(Type.String(), Type.Unknown())),
    slot: Type.Optional(
      Type.Object(
        {
          name: text('name of the slot'),
          create_if_not_exists: Type.Optional(Type.Boolean()),
          status: Type.Optional(Type.Union([Type.Literal('active'), Type.Literal('disabled')])),
        },
        strict,
      ),
    ),
    publication: Type.Optional(
      Type.Object(
        {
          name: text('name of the publication'),
          create_if_not_exists: Type.Optional(Type.Boolean()),
          init_sql: Type.Optional(text('SQL that makes it')),
        },
        strict,
      ),
    ),
    slot_name: Type.Optional(text('older form of slot.name')),
    publication_name: Type.Optional(text('older form of publication.name')),
    await_database: Type.Optional(
      Type.Object(
        {
          timeout_ms: Type.Optional(Type.Integer({ minimum: 0, maximum: MAX_AWAIT_MS })),
          interval_ms: Type.Optional(Type.Integer({ minimum: 500, maximum: MAX_AWAIT_MS })),
        },
        strict,
      ),
    ),
    primary: Type.Optional(PrimaryForm),
    ...hintFields,
    use_local_tunnel: Type.Optional(Type.Literal(false)),
    ...readOnly(),
  },
  strict,
)

/** A database of a file: what is stored of it, and how its publication and slot are made. */
export type DatabaseEntry = Readonly<{
  input: DatabaseInput
  createSlot: boolean
  createPublication: boolean
  initSql?: string
  awaitMs: number
  intervalMs: number
}>

/** Postgres cuts longer ones without an error, so that what is made is never found again. */
const MAX_NAME_BYTES = 63

/** Looks whether Postgres takes a text as the name of a slot. */
export function checkSlotName(name: string, tell: (reason: string) => void): void {
  if (!/^[a-z0-9_]{1,63}$/.test(name)) tell(`"${name.slice(0, 80)}" is not a slot name: up to 63 of a-z, 0-9 and "_"`)
}

/** Looks whether Postgres takes a text as the name of a publication. */
export function checkPublicationName(name: string, tell: (reason: string) => void): void {
  if (Buffer.byteLength(name) > MAX_NAME_BYTES)
    tell(`"${name.slice(0, 80)}" is too long: Postgres takes names of up to ${MAX_NAME_BYTES} bytes`)
}

const check = checker(DatabaseForm)

/** Describes how databases stand in a file. */
export const DATABASE: ResourceForm<'database', DatabaseEntry> = {
  section: 'databases',
  noun: NOUN_OF.database,
  schema: DatabaseForm,
  ignored: [
    { path: ['tables'], why: 'the publication says which tables are streamed' },
    { path: ['publication', 'schemas'], why: 'a publication that is made has all tables, unless init_sql has another statement' },
  ],
  read: (entry, { known, mayMove }) => {
    const form = check(entry)
    const reasons: Reason[] = []
    const here = gathered(reasons)
    const slotName = form.slot?.name ?? form.slot_name
    const publicationName = form.publication?.name ?? form.publication_name
    if (slotName === undefined) here('slot', 'is missing: slot: { name: …, create_if_not_exists: true }')
    else checkSlotName(slotName, (reason) => here('slot', reason))
    if (publicationName === undefined) here('publication', 'is missing: publication: { name: …, create_if_not_exists: true }')
    else checkPublicationName(publicationName, (reason) => here('publication', reason))
    const connection = connectionOf(form, known && { connection: known.connection, mayMove }, here)
    const primary = form.primary
      ? (connectionOf(form.primary, known?.primary ? { connection: known.primary, mayMove } : undefined, gathered(reasons, 'primary.')) ??
        null)
      : null
    if (reasons.length > 0 || !connection || slotName === undefined || publicationName === undefined) throw invalid(reasons)
    const { init_sql: initSql } = form.publication ?? {}
    return {
      input: {
        name: form.name,
        connection,
        primary,
        poolSize: form.pool_size ?? DEFAULT_POOL_SIZE,
        annotations: form.annotations ?? {},
        hints: hintsOf(form),
        slotName,
        publicationName,
        ...(form.slot?.status !== undefined && { slotStatus: form.slot.status }),
      },
      createSlot: form.slot?.create_if_not_exists ?? false,
      createPublication: form.publication?.create_if_not_exists ?? false,
      ...(initSql === undefined ? {} : { initSql }),
      awaitMs: form.await_database ? (form.await_database.timeout_ms ?? 30_000) : 0,
      intervalMs: form.await_database?.interval_ms ?? 3000,
    }
  },
  entry: ({ name, connection, primary, poolSize, annotations, hints, slot }, secret) => ({
    name,
    ...connectionEntry(connection, secret),
    ...(primary && { primary: connectionEntry(primary, secret) }),
    ...(poolSize !== DEFAULT_POOL_SIZE && { pool_size: poolSize }),
    ...(Object.keys(annotations).length > 0 && { annotations }),
    ...hints,
    slot: { name: slot.name, ...(slot.status === 'disabled' && { status: slot.status }) },
    publication: { name: slot.publication },
  }),
}
