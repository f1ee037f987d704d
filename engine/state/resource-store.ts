/** Accounts, databases, HTTP endpoints and sinks in the state database. Every look-up is within an account. */
import { isDeepStrictEqual } from 'node:util'
import { EngineError } from '../errors.ts'
import type { Query, Row } from '../postgres/query.ts'
import { oneOf, rowOf, rowsOf } from '../postgres/rows.ts'
import { FUNCTION_FIELDS, FUNCTION_TYPES } from './function-kinds.ts'
import type { FunctionInput, StoredFunction } from './functions.ts'
import { splitSinks } from './change-retentions.ts'
import { beginAnew, RUNNING, UNENDED, type InitialBackfill, type RunningBackfill } from './backfills.ts'
import { shapeOf } from './generation-shape.ts'
import { secretFields, withoutLogin, type Destination, type DestinationSchemas, type HttpEndpoint } from './destinations.ts'
import {
  SinkSettings,
  SINK_STATUSES,
  type Account,
  type Database,
  type DatabaseHints,
  type Sink,
  type SinkSettingsInput,
} from './resources.ts'
import type { Connection } from '../postgres/client-config.ts'
import { RowMemory, versionOf } from './row-memory.ts'
import type { Vault } from './secrets.ts'
import { keyInUse, type KeyInUse } from './vault-rotation.ts'
import type { RowLock } from './store.ts'
import { renameSinkInTokens } from './token-store.ts'

/** A database as a user says it. */
export type DatabaseInput = Readonly<{
  name: string
  connection: Connection
  /** of the primary of a standby */
  primary?: Connection | null
  poolSize: number
  annotations: Readonly<Record<string, unknown>>
  hints?: DatabaseHints
  slotName: string
  publicationName: string
  /** absent: as it is; of a new one "active" */
  slotStatus?: Database['slot']['status']
}>
/** A sink as a user says it. @property initial_backfill of a new one alone: the backfills that it begins with */
export type SinkInput = Readonly<SinkSettingsInput & { destination: Destination; initial_backfill?: InitialBackfill | undefined }>
/** An HTTP endpoint as a user says it. */
export type EndpointInput = Readonly<Omit<HttpEndpoint, 'id' | 'accountId'>>

/** Names the lock with which every edit of an account begins, so that one edit is made at a time, over all processes. */
export const accountLock = (id: string): RowLock => ({ table: 'account', id, how: 'update' })

/** Every type of resource that users set up, in the order of a configuration file. */
export const RESOURCE_TYPES = ['database', 'change_retention', 'http_endpoint', 'function', 'sink'] as const
/** The name of a type of resource. */
export type ResourceType = (typeof RESOURCE_TYPES)[number]
/** What users say of a resource of each type, and what is stored of it. */
type ResourceTypes = {
  database: { input: DatabaseInput; stored: Database }
  change_retention: { input: SinkInput; stored: Sink }
  http_endpoint: { input: EndpointInput; stored: HttpEndpoint }
  function: { input: FunctionInput; stored: StoredFunction }
  sink: { input: SinkInput; stored: Sink }
}
/** The type of what a user says of a resource. */
export type InputOf<T extends ResourceType> = ResourceTypes[T]['input']
/** The type of what is stored of a resource. */
export type StoredOf<T extends ResourceType> = ResourceTypes[T]['stored']

/** The names of the lists of resources, by type. Change retentions are among the sinks, as the engine has them. */
const LISTS = {
  database: 'databases',
  change_retention: 'sinks',
  http_endpoint: 'endpoints',
  function: 'functions',
  sink: 'sinks',
} as const
/** The resources of all accounts. */
export type ResourceLists = { readonly [T in ResourceType as (typeof LISTS)[T]]: readonly StoredOf<T>[] }

/** The resources before anything was set up: none. */
export const NO_RESOURCES: ResourceLists = { databases: [], endpoints: [], functions: [], sinks: [] }

const LIST_OF: { readonly [T in ResourceType]: (lists: ResourceLists) => readonly StoredOf<T>[] } = {
  database: ({ databases }) => databases,
  change_retention: ({ sinks }) => splitSinks(sinks).retentions,
  http_endpoint: ({ endpoints }) => endpoints,
  function: ({ functions }) => functions,
  sink: ({ sinks }) => splitSinks(sinks).sinks,
}
/** Gives all resources of a type. */
export const listOf = <T extends ResourceType>(lists: ResourceLists, type: T): readonly StoredOf<T>[] => LIST_OF[type](lists)

/** Gives the resources of a type that an account has. */
export const ownList = <T extends ResourceType>(lists: ResourceLists, type: T, ofAccount: string): readonly StoredOf<T>[] =>
  listOf(lists, type).filter(({ accountId }) => accountId === ofAccount)

/** Gives the resources of all types that an account has. */
export function ownLists({ databases, endpoints, functions, sinks }: ResourceLists, ofAccount: string): ResourceLists {
  const own = <T extends Readonly<{ accountId: string }>>(list: readonly T[]) => list.filter(({ accountId }) => accountId === ofAccount)
  return { databases: own(databases), endpoints: own(endpoints), functions: own(functions), sinks: own(sinks) }
}

/** Puts a resource in the place of the one that has its id. */
export const withResource = <T extends ResourceType>(lists: ResourceLists, type: T, resource: StoredOf<T>): ResourceLists => ({
  ...lists,
  [LISTS[type]]: [...lists[LISTS[type]].filter(({ id }) => id !== resource.id), resource],
})

/** The words by which messages name a type of resource. */
export const NOUN_OF: Readonly<Record<ResourceType, string>> = {
  database: 'database',
  change_retention: 'change retention',
  http_endpoint: 'HTTP endpoint',
  function: 'function',
  sink: 'sink',
}

/** Holds all resources as they are stored at one moment. */
export type Resources = ResourceLists &
  Readonly<{
    /** differs whenever any of it does */
    print: string
    /** those that have not ended, the oldest first */
    backfills: readonly RunningBackfill[]
  }>

/** Reads a JSON document as this service wrote it: it was checked by its schema then. */
const document =
  <T>() =>
  (value: unknown): T =>
    value as T
const textOrNull = (value: unknown): string | null => (typeof value === 'string' ? value : null)

/** What is read of each type, by the names that it has here: a column is named `account_id` where this says `accountId`. */
const OWN = { id: 'text', accountId: 'text', name: 'text' } as const
const DATABASE = {
  ...OWN,
  connection: document<Omit<Connection, 'password'>>(),
  password: 'bytes',
  primaryConnection: document<Omit<Connection, 'password'> | null>(),
  primaryPassword: 'bytes?',
  hints: document<DatabaseHints>(),
  poolSize: 'int',
  annotations: document<Database['annotations']>(),
  slotId: 'text',
  slotName: 'text',
  publicationName: 'text',
  slotStatus: oneOf('active', 'disabled'),
} as const
const ENDPOINT = {
  ...OWN,
  kind: oneOf('external', 'local'),
  url: 'text',
  headers: document<HttpEndpoint['headers']>(),
  encryptedHeaders: 'bytes',
} as const
const FUNCTION = {
  ...OWN,
  type: oneOf(...FUNCTION_TYPES),
  description: textOrNull,
  sinkType: textOrNull,
  code: 'text',
  compiled: 'text',
  usesMetadata: 'boolean',
} as const
const SINK = {
  ...OWN,
  databaseId: 'text',
  database: 'text',
  status: oneOf(...SINK_STATUSES),
  settings: document<Partial<SinkSettings>>(),
  destination: document<Destination>(),
  secrets: 'bytes?',
  hasBackfills: 'boolean',
} as const

/**
 * @property before the resource as it is stored; absent: it may be new @property databaseId of a sink that is known to be new; absent:
 * it is looked up @property key by which secrets are encrypted; absent: it is asked for @property beside writes what else is to be
 * written of it, in one go with what belongs to it
 */
type Saving<T extends ResourceType> = Readonly<{
  query: Query
  account: Account
  before?: StoredOf<T> | undefined
  databaseId?: string | undefined
  key?: KeyInUse
  beside?: (stored: StoredOf<T>) => Promise<void>
}>
type Values = Readonly<Record<string, unknown>>
type KeyPrint = Readonly<{ keyPrint: string | undefined }>

/** How a value of another table is read, and how a statement that writes gives it back. */
type Joined = Readonly<{ from?: string; read: string; returned: string }>

/** How the state database holds a type of resource. In SQL its table is `r`. */
type StoredTable<T extends ResourceType> = Readonly<{
  table: string
  columns: Values
  /** what stands in other tables, by its name here */
  joined?: Readonly<Record<string, Joined>>
  /** columns that stay as they were first written */
  kept?: readonly string[]
  /** Gives the columns that hold something else than the field of their name. */
  encode?: (input: InputOf<T>, saving: Saving<T> & KeyPrint) => Values | Promise<Values>
  decode: (row: Row) => StoredOf<T>
  /** Writes what belongs to it. */
  saved?: (query: Query, stored: StoredOf<T>, before: StoredOf<T> | undefined) => Promise<void>
}>

const HAS_BACKFILLS = `exists (select from backfill b where b.sink_id = r.id and ${UNENDED})`
/** Writes are upserts by name; they are given the query of a transaction, so that a whole file is applied or nothing. */
export class ResourceStore {
  readonly #vault: Vault
  readonly #destinations: DestinationSchemas
  /** what a resource has that doesn't say: partitions of a sink */
  readonly defaults: Readonly<{ partitions: number }>
  readonly #tables: { readonly [T in ResourceType]: StoredTable<T> } = {
    database: {
      table: 'source_database',
      columns: DATABASE,
      encode: ({ connection: { password, ...connection }, primary, hints = {} }, { keyPrint }) => {
        const { password: primaryPassword, ...primaryConnection } = primary ?? {}
        return {
          connection,
          hints,
          password: this.#vault.encrypt(password, keyPrint),
          primaryConnection: primary ? primaryConnection : null,
          primaryPassword: primaryPassword === undefined ? null : this.#vault.encrypt(primaryPassword, keyPrint),
        }
      },
      decode: (row) => {
        const { slotId, slotName, publicationName, slotStatus, password, primaryConnection, primaryPassword, ...database } = rowOf(
          DATABASE,
          row,
        )
        const connection = { ...database.connection, password: this.#vault.decrypt(password) }
        const primary =
          primaryConnection && primaryPassword ? { ...primaryConnection, password: this.#vault.decrypt(primaryPassword) } : null
        const slot = { id: slotId, name: slotName, publication: publicationName, status: slotStatus }
        return { ...database, connection, primary, slot }
      },
    },
    http_endpoint: {
      table: 'http_endpoint',
      columns: ENDPOINT,
      encode: ({ encryptedHeaders }, { keyPrint }) => ({ encryptedHeaders: this.#encrypted(encryptedHeaders, keyPrint) }),
      decode: (row) => this.#endpoint(row),
    },
    function: { table: 'function', columns: FUNCTION, decode: (row) => rowOf(FUNCTION, row) },
    sink: this.#sinkTable(),
    change_retention: this.#sinkTable(),
  }
  readonly #rows = new RowMemory<
    { [T in ResourceType as (typeof LISTS)[T]]: StoredOf<T> } & {
      backfills: RunningBackfill
    }
  >({
    databases: remembered(this.#tables.database),
    endpoints: remembered(this.#tables.http_endpoint),
    functions: remembered(this.#tables.function),
    sinks: remembered(this.#tables.sink),
    backfills: RUNNING,
  })
  /** as they were loaded last */
  #loaded: Resources | undefined

  #sinkTable(): StoredTable<'sink'> {
    return {
      table: 'sink',
      columns: SINK,
      joined: {
        database: {
          from: 'join source_database d on d.id = r.database_id',
          read: 'd.name',
          returned: '(select d.name from source_database d where d.id = r.database_id)',
        },
        hasBackfills: { read: HAS_BACKFILLS, returned: HAS_BACKFILLS },
      },
      kept: ['databaseId'],
      encode: (input, saving) => this.#sinkValues(input, saving),
      decode: (row) => this.#sink(row),
      saved: async (query, sink, before) => {
        await saveGeneration(query, sink, before)
        if (before?.status === 'disabled' && sink.status !== 'disabled') await beginAnew(query, sink.id)
      },
    }
  }

  /** @param destinations the types that sinks may have. @param partitions of a new sink that doesn't say how many */
  constructor(vault: Vault, { destinations, partitions = 1 }: Readonly<{ destinations: DestinationSchemas; partitions?: number }>) {
    this.#vault = vault
    this.#destinations = destinations
    this.defaults = { partitions }
  }

  async saveAccount(query: Query, name: string): Promise<Account> {
    const { rows } = await query(
      'insert into account (name) values ($1) on conflict (name) do update set name = excluded.name returning id, name',
      [name],
    )
    return rowOf({ id: 'text', name: 'text' }, rows[0])
  }

  /**
   * Stores a resource under its name, in the place of one that has it. A sink that gets another shape than that of its newest
   * generation begins the next one, in the same transaction.
   */
  async save<T extends ResourceType>(
    query: Query,
    type: T,
    { input, account, before, databaseId, key, beside }: Omit<Saving<T>, 'query'> & Readonly<{ input: InputOf<T> }>,
  ): Promise<StoredOf<T>> {
    const { table, columns, joined = {}, kept = [], encode, decode, saved }: StoredTable<T> = this.#tables[type]
    const fields = Object.entries(input).filter(([field]) => field in columns && !(field in joined) && !(field in OWN))
    const values = {
      ...Object.fromEntries(fields),
      ...(encode && (await encode(input, { query, account, before, databaseId, keyPrint: (key ?? (await keyInUse(query))).print }))),
    }
    const names = Object.keys(values)
    const renewed = names.filter((name) => !kept.includes(name)).map((name) => `${columnOf(name)} = excluded.${columnOf(name)}`)
    const { rows } = await query(
      `insert into ${table} as r (account_id, name, ${names.map(columnOf).join(', ')})
       values ($1, $2, ${names.map((_, i) => `$${i + 3}`).join(', ')})
       on conflict (account_id, name) do update set ${renewed.join(', ')}, updated_at = now()
       returning ${selected(columns, valuesOf(joined, 'returned'))}`,
      [account.id, input.name, ...Object.values(values)],
    )
    const [row] = rows
    if (!row) throw new Error(`the row that was saved in ${table} was not answered`)
    this.#rows.wrote(LISTS[type], row)
    const stored = decode(row)
    await Promise.all([saved?.(query, stored, before), beside?.(stored)])
    return stored
  }

  /** Gives a resource another name; those that go by its name go by the new one. */
  async rename(query: Query, type: ResourceType, { id, accountId, name }: StoredOf<ResourceType>, newName: string): Promise<void> {
    await query(`update ${this.#tables[type].table} set name = $2, updated_at = now() where id = $1`, [id, newName])
    for (const [column, field] of REFERENCES[type])
      await query(
        `update sink set ${column} = jsonb_set(${column}, array[$4], to_jsonb($3::text)), updated_at = now()
         where account_id = $1 and ${column} ->> $4 = $2`,
        [accountId, name, newName, field],
      )
    if (type === 'sink') await renameSinkInTokens(query, accountId, [name, newName])
  }

  /** Deletes a resource with everything that is kept of it in the state database. */
  async delete(query: Query, type: ResourceType, id: string): Promise<void> {
    await query(`delete from ${this.#tables[type].table} where id = $1`, [id])
  }

  /** Encrypts logins of older versions, which kept user and password where everyone reads them. It needs the key, so it is no migration. */
  async encryptLogins(query: Query): Promise<void> {
    const { rows } = await query(`select ${selected(ENDPOINT)} from http_endpoint r where url ~ '^[^:/?#]*://[^/?#]*@' for update`)
    for (const row of rows) {
      const input = this.#endpoint(row)
      await this.save(query, 'http_endpoint', { account: { id: input.accountId, name: '' }, input })
    }
  }

  /** Gives the print of what `load` would give: cheap to ask for again and again. */
  print(query: Query): Promise<string> {
    return this.#rows.print(query)
  }

  /** @returns the same object as before when nothing has changed */
  async load(query: Query): Promise<Resources> {
    const { print, rows } = await this.#rows.read(query)
    if (this.#loaded?.print !== print) this.#loaded = { print, ...rows }
    return this.#loaded
  }

  /**
   * Gives what `load` would give when a transaction that had loaded `before` has saved this resource under its name, and nothing
   * else, and is committed; undefined: it has to be read.
   */
  afterSaved(before: Resources, type: ResourceType, id: string): Resources | undefined {
    const list = LISTS[type]
    return this.#after(before, list, this.#rows.committed(list, id, before.print))
  }

  /** Gives, as `afterSaved` does, what there is when such a transaction has deleted this resource. */
  afterDeleted(before: Resources, type: ResourceType, id: string): Resources | undefined {
    const list = LISTS[type]
    const hadBackfills = before.backfills.some(({ sinkId }) => sinkId === id) // they go with it
    return hadBackfills ? undefined : this.#after(before, list, this.#rows.removed(list, id, before.print))
  }

  #after(
    before: Resources,
    list: (typeof LISTS)[ResourceType],
    after: (Pick<Resources, 'print'> & Readonly<{ rows: Readonly<Record<string, readonly unknown[]>> }>) | undefined,
  ): Resources | undefined {
    return after && (this.#loaded = { ...before, print: after.print, [list]: after.rows[list] })
  }

  /** What was loaded last. */
  get loaded(): Resources | undefined {
    return this.#loaded
  }

  /** Whether nothing was loaded since. */
  isNewest(resources: Resources): boolean {
    return this.#loaded === resources
  }

  #encrypted(secrets: object, keyPrint: string | undefined): Buffer {
    return this.#vault.encrypt(JSON.stringify(secrets), keyPrint)
  }

  /** A sink keeps its partitions where it doesn't say how many; the secrets of its destination are stored apart from the rest. */
  async #sinkValues(
    { destination, ...input }: SinkInput,
    { query, account, before, databaseId: known, keyPrint }: Saving<'sink'> & KeyPrint,
  ): Promise<Values> {
    const { name, status, database, ...given } = input
    const found = known === undefined ? undefined : { databaseId: known, partitions: undefined }
    const { databaseId, partitions } = before ?? found ?? (await placeOf(query, account, { name, database }))
    const kept = partitions ?? this.defaults.partitions
    const fitting = destination.type === 'sequin_stream' ? Math.min(kept, given.max_ack_pending) : kept // each needs a share of it
    const hidden = new Set(secretFields(this.#destinations, destination.type))
    const set = Object.entries(destination).filter(([, value]) => value !== undefined && value !== null)
    const secrets = set.filter(([field]) => hidden.has(field))
    return {
      databaseId,
      status,
      settings: { ...settingsOf(given), partitions: given.partitions ?? fitting },
      destination: Object.fromEntries(set.filter(([field]) => !hidden.has(field))),
      secrets: secrets.length > 0 ? this.#encrypted(Object.fromEntries(secrets), keyPrint) : null,
    }
  }

  #sink(row: Row): Sink {
    const { settings, destination, secrets, id, accountId, databaseId, hasBackfills, ...sink } = rowOf(SINK, row)
    const whole = { ...destination, ...(secrets && document<object>()(JSON.parse(this.#vault.decrypt(secrets)))) }
    const schema = this.#destinations.get(destination.type)
    return {
      ...withDefaults<SinkSettings>(SinkSettings.properties, { ...settings, ...sink }),
      id,
      accountId,
      databaseId,
      hasBackfills,
      destination: schema ? withDefaults<Destination>(schema.properties, whole) : whole,
    }
  }

  #endpoint(row: Row): HttpEndpoint {
    const { encryptedHeaders, ...endpoint } = rowOf(ENDPOINT, row)
    const headers = document<HttpEndpoint['headers']>()(JSON.parse(this.#vault.decrypt(encryptedHeaders)))
    return withoutLogin({ ...endpoint, encryptedHeaders: headers })
  }
}

/** The fields of sinks that hold the name of a resource, by type. */
const REFERENCES: Readonly<Record<ResourceType, readonly (readonly [column: string, field: string])[]>> = {
  database: [['destination', 'destination_database']],
  change_retention: [],
  http_endpoint: [['destination', 'http_endpoint']],
  function: FUNCTION_FIELDS.map((field) => ['settings', field] as const),
  sink: [],
}

const columnOf = (name: string): string => name.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`)

/**
 * @param elsewhere how columns of other tables are read. @returns SQL that gives columns of `r` under the names that they have
 * here, and the version
 */
function selected(columns: Values, elsewhere: Readonly<Record<string, string>> = {}): string {
  const named = Object.keys(columns).map((name) => `${elsewhere[name] ?? `r.${columnOf(name)}`} as "${name}"`)
  return `${named.join(', ')}, ${versionOf('r', { also: Object.values(elsewhere) })} as version`
}

const valuesOf = (joined: Readonly<Record<string, Joined>>, how: 'read' | 'returned'): Readonly<Record<string, string>> =>
  Object.fromEntries(Object.entries(joined).map(([name, value]) => [name, value[how]]))

/** Says how the rows of a type are found, read and decoded. */
function remembered<S>({
  table,
  columns,
  joined = {},
  decode,
}: Pick<StoredTable<never>, 'table' | 'columns' | 'joined'> & Readonly<{ decode: (row: Row) => S }>) {
  const read = valuesOf(joined, 'read')
  const from = [`from ${table} r`, ...Object.values(joined).map((one) => one.from ?? '')].join(' ')
  const version = versionOf('r', { also: Object.values(read) })
  return {
    versions: `select r.id, r.name, ${version} as version, r.xmin as writer ${from}`,
    rows: `select ${selected(columns, read)} ${from} where r.id = any ($1)`,
    decode,
  }
}

/** The settings among the fields of a sink, which may be a stored sink with fields of its own. */
const settingsOf = (given: object): object => Object.fromEntries(Object.entries(given).filter(([name]) => name in SinkSettings.properties))

/** Finds the database that a sink names, and how many partitions the sink has if it is stored. */
async function placeOf(query: Query, account: Account, { name, database }: Pick<SinkInput, 'name' | 'database'>) {
  const answer = await query(
    `select d.id as "databaseId", (
       select coalesce((s.settings ->> 'partitions')::int, 1) from sink s where s.account_id = d.account_id and s.name = $3
     ) as partitions from source_database d where d.account_id = $1 and d.name = $2`,
    [account.id, database, name],
  )
  const [place] = rowsOf({ databaseId: 'text', partitions: 'int?' }, answer)
  if (!place) throw new EngineError('NOT_FOUND', `there is no database "${database}"`)
  return place
}

/** A sink that gets another shape than that of its newest generation begins the next one. */
export async function saveGeneration(query: Query, sink: Sink, before: Sink | undefined): Promise<void> {
  const shape = shapeOf(sink.id, sink)
  if (before && isDeepStrictEqual(shapeOf(sink.id, before), shape)) return
  await query(
    `insert into generation (sink_id, generation, shape)
     select $1, coalesce(max(generation), 0) + 1, $2::jsonb from generation where sink_id = $1
     having coalesce((
       select shape <> case when shape ? 'stream' then $2::jsonb else $2::jsonb - 'stream' end
       from generation where sink_id = $1 order by generation desc limit 1), true)`, // of former versions it goes on as it is
    [sink.id, JSON.stringify(shape)],
  )
}

/**
 * Fills in the defaults of settings that came after the version that stored them. All of them stand at a resource's own fields: what
 * it takes to fill those in is not worth loading a library of 300 files at each start.
 */
function withDefaults<T extends object>(fields: Readonly<Record<string, object>>, stored: Partial<T>): T {
  const defaults = Object.entries(fields).flatMap(([name, field]) => ('default' in field ? [[name, structuredClone(field.default)]] : []))
  return { ...Object.fromEntries(defaults), ...stored } as T // what is required was there from the first version on
}
