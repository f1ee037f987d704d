/** Accounts, tokens, databases, HTTP endpoints and sinks in the state database. Every look-up is within an account. */
import { isDeepStrictEqual } from 'node:util'
import { FUNCTION_FIELDS, type FunctionInput, type StoredFunction } from './functions.ts'
import { shapeOf } from './generation-shape.ts'
import { secretFields, withoutLogin, type Destination, type DestinationSchemas, type HttpEndpoint } from './destinations.ts'
import { SinkSettings, type Account, type Database, type Sink, type SinkSettingsInput } from './resources.ts'
import type { Connection } from '../postgres/client-config.ts'
import { RowMemory, versionOf } from './row-memory.ts'
import type { Vault } from './secrets.ts'
import type { StateQuery, RowLock } from './store.ts'
import { hashToken } from './tokens.ts'

export type DatabaseInput = Readonly<{
  name: string
  connection: Connection
  poolSize: number
  annotations: Readonly<Record<string, unknown>>
  slotName: string
  publicationName: string
}>
export type SinkInput = Readonly<{ settings: SinkSettingsInput; destination: Destination }>
export type EndpointInput = Readonly<Omit<HttpEndpoint, 'id' | 'accountId'>>

/** Every edit of an account begins with this lock, so that one at a time is made, of all processes. */
export const accountLock = (id: string): RowLock => ({ table: 'account', id, how: 'update' })

/** What is stored, at one moment. */
export type Resources = Readonly<{
  /** differs whenever any of it does */
  print: string
  /** account by hash of the token */
  tokens: ReadonlyMap<string, Account>
  databases: readonly Database[]
  sinks: readonly Sink[]
  functions: readonly StoredFunction[]
  endpoints: readonly HttpEndpoint[]
}>

/** It knows its database by name. */
const SINK_VERSION = versionOf('s', { also: ['d.name'] })
const DATABASE_NAME = '(select d.name from source_database d where d.id = s.database_id)'
/** It knows its account by name. */
const TOKEN_VERSION = versionOf('t', { writtenAt: 'inserted_at', also: ['a.name'] })

type Stored = {
  sinks: Sink
  databases: Database
  functions: StoredFunction
  endpoints: HttpEndpoint
  tokens: readonly [hash: string, account: Account]
}

/** Writes are upserts by name; they are given the query of a transaction, so that a whole file is applied or nothing. */
export class ResourceStore {
  readonly #vault: Vault
  readonly #destinations: DestinationSchemas
  readonly #partitions: number
  readonly #rows = new RowMemory<Stored>({
    sinks: {
      versions: `select s.id, s.name, ${SINK_VERSION} as version, s.xmin as writer from sink s join source_database d on d.id = s.database_id`,
      rows: `select s.*, d.name as database, ${SINK_VERSION} as version from sink s join source_database d on d.id = s.database_id where s.id = any ($1)`,
      decode: (row: SinkRow) => this.#sink(row),
    },
    databases: {
      versions: `select d.id, d.name, ${versionOf('d')} as version, d.xmin as writer from source_database d`,
      rows: `select d.*, ${versionOf('d')} as version from source_database d where id = any ($1)`,
      decode: (row: DatabaseRow) => this.#database(row),
    },
    functions: {
      versions: `select f.id, f.name, ${versionOf('f')} as version, f.xmin as writer from function f`,
      rows: `select id, account_id as "accountId", name, type, description, sink_type as "sinkType", code, compiled, uses_metadata as "usesMetadata",
         ${versionOf('f')} as version from function f where id = any ($1)`,
      decode: ({ version: _version, ...stored }: StoredFunction & { version: string }) => stored,
    },
    endpoints: {
      versions: `select e.id, e.name, ${versionOf('e')} as version, e.xmin as writer from http_endpoint e`,
      rows: `select e.*, ${versionOf('e')} as version from http_endpoint e where id = any ($1)`,
      decode: (row: EndpointRow) => this.#endpoint(row),
    },
    tokens: {
      versions: `select t.id, t.name, ${TOKEN_VERSION} as version, t.xmin as writer from api_token t join account a on a.id = t.account_id`,
      rows: `select t.id, encode(t.hash, 'hex') as hash, a.id as account_id, a.name, ${TOKEN_VERSION} as version
         from api_token t join account a on a.id = t.account_id where t.id = any ($1)`,
      decode: ({ hash, account_id, name }: TokenRow) => [hash, { id: account_id, name }] as const,
    },
  })
  /** as they were loaded last */
  #loaded: Resources | undefined

  /** @param destinations the types that sinks may have. @param partitions of a new sink that doesn't say how many */
  constructor(vault: Vault, { destinations, partitions = 1 }: Readonly<{ destinations: DestinationSchemas; partitions?: number }>) {
    this.#vault = vault
    this.#destinations = destinations
    this.#partitions = partitions
  }

  async saveAccount(query: StateQuery, name: string): Promise<Account> {
    const { rows } = await query<{ id: string }>(
      'insert into account (name) values ($1) on conflict (name) do update set name = excluded.name returning id',
      [name],
    )
    return { id: (rows[0] as { id: string }).id, name }
  }

  async saveToken(query: StateQuery, account: Account, name: string, token: string): Promise<void> {
    await query(
      `insert into api_token (account_id, name, hash) values ($1, $2, decode($3, 'hex'))
       on conflict (account_id, name) do update set hash = excluded.hash`,
      [account.id, name, hashToken(token)],
    )
  }

  async saveDatabase(query: StateQuery, account: Account, input: DatabaseInput): Promise<string> {
    const { password, ...connection } = input.connection
    const { rows } = await query<{ id: string }>(
      `insert into source_database (account_id, name, connection, password, pool_size, annotations, slot_name, publication_name)
       values ($1, $2, $3, $4, $5, $6, $7, $8)
       on conflict (account_id, name) do update set
         connection = excluded.connection, password = excluded.password, pool_size = excluded.pool_size,
         annotations = excluded.annotations, updated_at = now()
       returning id`,
      [
        account.id,
        input.name,
        connection,
        this.#vault.encrypt(password),
        input.poolSize,
        input.annotations,
        input.slotName,
        input.publicationName,
      ],
    )
    return (rows[0] as { id: string }).id
  }

  /**
   * Another shape than that of the newest generation begins the next one, in the same transaction.
   * @param before the sink as it is stored, which has a generation of its shape; absent: it may be new
   */
  async saveSink(
    query: StateQuery,
    account: Account,
    databaseId: string,
    { settings, destination }: SinkInput,
    before?: Sink,
  ): Promise<string> {
    const { name, status, database: _, ...given } = settings
    const partitions = given.partitions ?? (await this.#fittingPartitions(query, account, { settings, destination }))
    const rest = { ...given, partitions }
    const { shown, secrets } = this.#parted(destination)
    const { rows } = await query<SinkRow & { version: string }>(
      `insert into sink as s (account_id, database_id, name, status, settings, destination, secrets) values ($1, $2, $3, $4, $5, $6, $7)
       on conflict (account_id, name) do update set
         status = excluded.status, settings = excluded.settings, destination = excluded.destination, secrets = excluded.secrets, updated_at = now()
       returning s.*, ${DATABASE_NAME} as database, ${versionOf('s', { also: [DATABASE_NAME] })} as version`,
      [account.id, databaseId, name, status, rest, shown, secrets && this.#vault.encrypt(JSON.stringify(secrets))],
    )
    const [row] = rows as [SinkRow & { version: string }]
    this.#rows.wrote('sinks', row)
    const { id } = row
    if (before && isDeepStrictEqual(shapeOf(id, before), shapeOf(id, rest))) return id
    await query(
      `insert into generation (sink_id, generation, shape)
       select $1, coalesce(max(generation), 0) + 1, $2::jsonb from generation where sink_id = $1
       having coalesce((
         select shape <> case when shape ? 'stream' then $2::jsonb else $2::jsonb - 'stream' end
         from generation where sink_id = $1 order by generation desc limit 1), true)`, // of former versions it goes on as it is
      [id, JSON.stringify(shapeOf(id, rest))],
    )
    return id
  }

  /** Those that the sink has; a new one gets the usual number. */
  async #fittingPartitions(query: StateQuery, account: Account, { settings, destination }: SinkInput): Promise<number> {
    const { rows } = await query<{ partitions: number }>(
      `select coalesce((settings ->> 'partitions')::int, 1) as partitions from sink where account_id = $1 and name = $2`,
      [account.id, settings.name],
    )
    const kept = rows[0]?.partitions ?? this.#partitions
    return destination.type === 'sequin_stream' ? Math.min(kept, settings.max_ack_pending) : kept // each needs a share of it
  }

  async saveFunction(
    query: StateQuery,
    account: Account,
    { name, type, description, sinkType, code, compiled, usesMetadata }: FunctionInput,
  ): Promise<string> {
    const { rows } = await query<{ id: string }>(
      `insert into function (account_id, name, type, description, sink_type, code, compiled, uses_metadata)
       values ($1, $2, $3, $4, $5, $6, $7, $8)
       on conflict (account_id, name) do update set type = excluded.type, description = excluded.description,
         sink_type = excluded.sink_type, code = excluded.code, compiled = excluded.compiled, uses_metadata = excluded.uses_metadata, updated_at = now()
       returning id`,
      [account.id, name, type, description, sinkType, code, compiled, usesMetadata],
    )
    return (rows[0] as { id: string }).id
  }

  /** The sinks that have it by its name have it by the new one. */
  async renameFunction(query: StateQuery, { id, accountId, name }: StoredFunction, newName: string): Promise<void> {
    await query('update function set name = $2, updated_at = now() where id = $1', [id, newName])
    for (const field of FUNCTION_FIELDS)
      await query(
        `update sink set settings = jsonb_set(settings, array[$4], to_jsonb($3::text)), updated_at = now()
         where account_id = $1 and settings ->> $4 = $2`,
        [accountId, name, newName, field],
      )
  }

  async deleteFunction(query: StateQuery, id: string): Promise<void> {
    await query('delete from function where id = $1', [id])
  }

  async renameSink(query: StateQuery, sinkId: string, name: string): Promise<void> {
    await query('update sink set name = $2, updated_at = now() where id = $1', [sinkId, name])
  }

  /** With everything that is kept of it in the state database. */
  async deleteSink(query: StateQuery, sinkId: string): Promise<void> {
    await query('delete from sink where id = $1', [sinkId])
  }

  async saveEndpoint(query: StateQuery, account: Account, { name, kind, url, headers, encryptedHeaders }: EndpointInput): Promise<string> {
    const { rows } = await query<{ id: string }>(
      `insert into http_endpoint (account_id, name, kind, url, headers, encrypted_headers) values ($1, $2, $3, $4, $5, $6)
       on conflict (account_id, name) do update set
         kind = excluded.kind, url = excluded.url, headers = excluded.headers, encrypted_headers = excluded.encrypted_headers, updated_at = now()
       returning id`,
      [account.id, name, kind, url, headers, this.#vault.encrypt(JSON.stringify(encryptedHeaders))],
    )
    return (rows[0] as { id: string }).id
  }

  /** Those of older versions, which kept user and password where everyone reads them. It needs the key, so it is no migration. */
  async encryptLogins(query: StateQuery): Promise<void> {
    const { rows } = await query<EndpointRow>(`select * from http_endpoint where url ~ '^[^:/?#]*://[^/?#]*@' for update`)
    for (const row of rows) {
      const { accountId, ...endpoint } = this.#endpoint(row)
      await this.saveEndpoint(query, { id: accountId, name: '' }, endpoint)
    }
  }

  /** The sinks that go by its name go by the new one. */
  async renameEndpoint(query: StateQuery, { id, accountId, name }: HttpEndpoint, newName: string): Promise<void> {
    await query('update http_endpoint set name = $2, updated_at = now() where id = $1', [id, newName])
    await query(
      `update sink set destination = jsonb_set(destination, '{http_endpoint}', to_jsonb($3::text)), updated_at = now()
       where account_id = $1 and destination ->> 'http_endpoint' = $2`,
      [accountId, name, newName],
    )
  }

  async deleteEndpoint(query: StateQuery, id: string): Promise<void> {
    await query('delete from http_endpoint where id = $1', [id])
  }

  /** The print of what `load` would give: cheap to ask for again and again. */
  print(query: StateQuery): Promise<string> {
    return this.#rows.print(query)
  }

  /** How the databases of an account are reached, by their names; undefined where the password was stored under another key. */
  async connections(query: StateQuery, account: string): Promise<ReadonlyMap<string, Connection | undefined>> {
    const { rows } = await query<DatabaseRow>('select d.* from source_database d join account a on a.id = d.account_id where a.name = $1', [
      account,
    ])
    const readable = (row: DatabaseRow): Connection | undefined => {
      try {
        return this.#database(row).connection
      } catch {
        return undefined
      }
    }
    return new Map(rows.map((row) => [row.name, readable(row)]))
  }

  /** @returns the same object as before when nothing has changed */
  async load(query: StateQuery): Promise<Resources> {
    const { print, rows } = await this.#rows.read(query)
    if (this.#loaded?.print !== print) this.#loaded = { print, ...rows, tokens: new Map(rows.tokens) }
    return this.#loaded
  }

  /** The same, when a transaction that had loaded `before` has saved this sink under its name, and nothing else, and is committed. */
  afterSaved(before: Resources, sinkId: string): Resources | undefined {
    const after = this.#rows.committed('sinks', sinkId, before.print)
    return after && (this.#loaded = { ...before, print: after.print, sinks: after.rows.sinks })
  }

  /** Whether nothing was loaded since. */
  isNewest(resources: Resources): boolean {
    return this.#loaded === resources
  }

  #sink({ id, account_id, database_id, database, name, status, settings, destination, secrets }: SinkRow): Sink {
    return {
      ...whole({ ...settings, name, database, status }),
      id,
      accountId: account_id,
      databaseId: database_id,
      destination: this.#destination(destination, secrets),
    }
  }

  #destination(shown: Destination, secrets: Buffer | null): Destination {
    const schema = this.#destinations.get(shown.type)
    const all = secrets ? { ...shown, ...(JSON.parse(this.#vault.decrypt(secrets)) as object) } : shown
    return schema ? (withDefaults(schema.properties, all) as Destination) : all
  }

  /** Separates the settings of a destination that are stored as they are from its secrets, which are stored encrypted. */
  #parted(destination: Destination): { shown: Record<string, unknown>; secrets: Record<string, unknown> | null } {
    const hidden = new Set(secretFields(this.#destinations, destination.type))
    const entries = Object.entries(destination).filter(([, value]) => value !== undefined && value !== null)
    const secrets = entries.filter(([name]) => hidden.has(name))
    return {
      shown: Object.fromEntries(entries.filter(([name]) => !hidden.has(name))),
      secrets: secrets.length > 0 ? Object.fromEntries(secrets) : null,
    }
  }

  #endpoint({ id, account_id, name, kind, url, headers, encrypted_headers }: EndpointRow): HttpEndpoint {
    const encryptedHeaders = JSON.parse(this.#vault.decrypt(encrypted_headers)) as Record<string, string>
    return withoutLogin({ id, accountId: account_id, name, kind, url, headers, encryptedHeaders })
  }

  #database(row: DatabaseRow): Database {
    return {
      id: row.id,
      accountId: row.account_id,
      name: row.name,
      connection: { ...row.connection, password: this.#vault.decrypt(row.password) },
      poolSize: row.pool_size,
      annotations: row.annotations,
      slot: { id: row.slot_id, name: row.slot_name, publication: row.publication_name, status: row.slot_status },
    }
  }
}

/** With the defaults of settings that came after the version that stored it. */
const whole = (stored: Partial<SinkSettings>): SinkSettings => withDefaults(SinkSettings.properties, stored) as SinkSettings

/** All defaults stand at a resource's own fields: what it takes to fill those in is not worth loading a library of 300 files at each start. */
function withDefaults<T extends object>(fields: Readonly<Record<string, object>>, stored: T): T {
  const defaults = Object.entries(fields).flatMap(([name, field]) => ('default' in field ? [[name, structuredClone(field.default)]] : []))
  return { ...(Object.fromEntries(defaults) as object), ...stored }
}

type DatabaseRow = {
  id: string
  account_id: string
  name: string
  connection: Omit<Connection, 'password'>
  password: Buffer
  pool_size: number
  annotations: Record<string, unknown>
  slot_id: string
  slot_name: string
  publication_name: string
  slot_status: 'active' | 'disabled'
}
type SinkRow = {
  id: string
  account_id: string
  database_id: string
  database: string
  name: string
  status: Sink['status']
  settings: Partial<Omit<SinkSettings, 'name' | 'database' | 'status'>>
  destination: Destination
  secrets: Buffer | null
}
type TokenRow = { hash: string; account_id: string; name: string }
type EndpointRow = {
  id: string
  account_id: string
  name: string
  kind: HttpEndpoint['kind']
  url: string
  headers: Record<string, string>
  encrypted_headers: Buffer
}
