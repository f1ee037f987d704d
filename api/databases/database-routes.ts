/** The management of databases (docs/databases.md). */
import type { FastifyReply, FastifyRequest } from 'fastify'
import { Type, type TSchema } from 'typebox'
import { DatabaseIn, databaseChanges, databaseOut, DatabaseOut, newDatabase } from '../../actors/resources/database-body.ts'
import { isUnfit, type DatabaseEdits } from '../../actors/resources/database-edits.ts'
import type { EngineVerbs } from '../../actors/engine.ts'
import { EngineError, ERRORS, type ErrorCode } from '../../engine/errors.ts'
import { redactText } from '../../engine/redaction.ts'
import type { ResourceLookup } from '../../engine/state/resource-cache.ts'
import type { Account, Database } from '../../engine/state/resources.ts'
import type { SourceTable } from '../../engine/wal/source-tables.ts'
import { isAdmin, requireScope } from '../http/auth.ts'
import { objectBody, pathParameter, queryOf, type Operation } from '../http/operation.ts'
import { MAX_RESOURCE_BYTES, namedResource } from '../http/resource-routes.ts'
import { listOut, pageOf, PageQuery } from '../http/pages.ts'

/** Holds what the routes of databases look up, and edit by. */
export type DatabasePorts = Readonly<{
  resources: ResourceLookup
  engine: Pick<EngineVerbs, 'databaseSights' | 'lookAtDatabase'>
  databases: Pick<DatabaseEdits, 'create' | 'update' | 'delete' | 'test' | 'tables'>
}>

const LIST = '/api/postgres_databases'
const ONE = `${LIST}/{id_or_name}`

const ShowSensitive = Type.Object({
  show_sensitive: Type.Optional(Type.Boolean({ description: 'true: passwords are shown whole, for which the scope admin is needed' })),
})
const Slot = Type.Object(
  {
    id: Type.String({ format: 'uuid' }),
    slot_name: Type.String(),
    publication_name: Type.String(),
    postgres_database_id: Type.String({ format: 'uuid' }),
    status: Type.String({ description: 'active or disabled' }),
  },
  { title: 'Replication' },
)
const TableOut = Type.Object(
  {
    schema: Type.String(),
    name: Type.String(),
    partitioned: Type.Boolean(),
    partition_root: Type.Union([Type.String(), Type.Null()], { description: 'of a partition: the partitioned table at the top' }),
    published: Type.Boolean({ description: 'its changes come, under its own name' }),
    published_as: Type.Union([Type.String(), Type.Null()], { description: 'of a partition: the table under whose name its changes come' }),
    primary_key: Type.Array(Type.String()),
    replica_identity: Type.String({ description: 'default, full, index or nothing' }),
    replica_identity_columns: Type.Array(Type.String(), { description: 'what Postgres sends of a deleted or changed row' }),
    row_level_security: Type.Boolean({ description: 'the user of the database sees only some of its rows: backfills read no others' }),
    unlogged: Type.Boolean({ description: 'its changes can’t be streamed' }),
    may_select: Type.Boolean({ description: 'the user of the database may read it, as backfills do' }),
  },
  { title: 'Table' },
)
const TestOut = Type.Object({ success: Type.Boolean(), reason: Type.Optional(Type.String()), code: Type.Optional(Type.String()) })

/** Makes the routes of databases. */
export function databaseOperations({ engine, resources, databases }: DatabasePorts): Operation[] {
  const databaseOf = (request: FastifyRequest, account: Account) => namedResource(resources, 'database', request, account)
  const shown = async (those: readonly Database[], showSensitive = false) => {
    const sights = await engine.databaseSights(those.map(({ id }) => id))
    return those.map((database) => databaseOut(database, { showSensitive, sight: sights[database.id] }))
  }
  const slotOut = ({ id, slot }: Database) => ({
    ...{ id: slot.id, slot_name: slot.name, publication_name: slot.publication },
    ...{ postgres_database_id: id, status: slot.status },
  })
  const operations: Operation[] = [
    {
      id: 'listDatabases',
      methods: ['GET'],
      paths: [LIST],
      summary: 'List databases',
      scope: 'read',
      query: Type.Object({ ...ShowSensitive.properties, ...PageQuery.properties }),
      answer: { description: 'All databases of the account, or a page of them.', schema: listOut(DatabaseOut) },
      handle: async (request, _reply, account) => {
        const { those, next } = pageOf(request, resources.list('database', account.id), { key: ({ id }) => id })
        return { data: await shown(those, isSensitiveShown(request)), ...next }
      },
    },
    {
      id: 'createDatabase',
      methods: ['POST'],
      paths: [LIST],
      summary: 'Create a database',
      description:
        'It is tried first: the network, the login, the rights, whether it is a standby, publication and slot. What can’t be read is answered by 422 with the reason, and nothing is stored. It is read when the answer comes.',
      scope: 'manage',
      body: DatabaseIn,
      maxBodyBytes: MAX_RESOURCE_BYTES,
      answer: { status: 201, description: 'The database.', schema: DatabaseOut },
      errors: [400, 413, 422, 503],
      handle: async (request, _reply, account) => (await shown([await databases.create(account, newDatabase(objectBody(request)))]))[0],
    },
    {
      id: 'getDatabase',
      methods: ['GET'],
      paths: [ONE],
      summary: 'Read a database',
      scope: 'read',
      query: ShowSensitive,
      answer: { description: 'The database.', schema: DatabaseOut },
      errors: [400, 404],
      handle: async (request, _reply, account) => (await shown([databaseOf(request, account)], isSensitiveShown(request)))[0],
    },
    {
      id: 'updateDatabase',
      methods: ['PATCH', 'PUT'],
      paths: [ONE],
      summary: 'Update a database',
      description:
        'Both methods are partial. A password that is sent back as it was shown stays what it is. One that isn’t sent in full stays only where it goes to the same server: `hostname`, `port`, `ssl` and `ca_cert` take the whole password with them, or the scope `admin`. Another connection, slot or publication is tried first, as of a new database, and its source begins anew; other fields disturb nothing.',
      scope: 'manage',
      body: DatabaseIn,
      maxBodyBytes: MAX_RESOURCE_BYTES,
      answer: { description: 'The database as it is now.', schema: DatabaseOut },
      errors: [400, 404, 413, 422, 503],
      handle: async (request, _reply, account) => {
        const database = databaseOf(request, account)
        return (
          await shown([await databases.update(database, databaseChanges(objectBody(request), database, { mayMove: isAdmin(request) }))])
        )[0]
      },
    },
    {
      id: 'deleteDatabase',
      methods: ['DELETE'],
      paths: [ONE],
      summary: 'Delete a database',
      description: 'Its slot and publication stay on its server: drop the slot there, or the server keeps its write-ahead log for it.',
      scope: 'manage',
      answer: {
        description: 'It is deleted.',
        schema: Type.Object({
          success: Type.Boolean(),
          id: Type.Optional(Type.String({ format: 'uuid' })),
          summary: Type.Optional(Type.String()),
          error: Type.Optional(Type.String()),
          code: Type.Optional(Type.String()),
        }),
        negative: { status: 422, description: 'Sinks use it.' },
      },
      errors: [404, 503],
      handle: async (request, reply, account) => {
        const database = databaseOf(request, account)
        try {
          await databases.delete(database)
          return { success: true, id: database.id }
        } catch (error) {
          if (!(error instanceof EngineError) || error.code !== 'RESOURCE_IN_USE') throw error
          reply.status(422)
          return { success: false, summary: error.message, error: error.message, code: error.code }
        }
      },
    },
    {
      id: 'testDatabase',
      methods: ['POST'],
      paths: [`${ONE}/test_connection`],
      summary: 'Test the connection to a database',
      description: 'Tries all that reading it needs, as when it is created, and makes nothing.',
      scope: 'manage',
      answer: {
        description: 'It can be read.',
        schema: TestOut,
        negative: { status: 422, description: 'What is wrong, and its code.' },
      },
      errors: [404],
      handle: async (request, reply, account) => negative(reply, await databases.test(databaseOf(request, account))),
    },
    {
      id: 'refreshTables',
      methods: ['POST'],
      paths: [`${ONE}/refresh_tables`],
      summary: 'Look at the tables of a database again',
      description: 'New tables are found without it. It says whether they can be read, and has the health of the database looked at again.',
      scope: 'manage',
      answer: { description: 'They were read.', schema: TestOut, negative: { status: 422, description: 'What is wrong, and its code.' } },
      errors: [404],
      handle: async (request, reply, account) => {
        const database = databaseOf(request, account)
        const tables = await databases.tables(database)
        await engine.lookAtDatabase(database.id)
        return negative(reply, tables instanceof EngineError ? tables : undefined)
      },
    },
    {
      id: 'listTables',
      methods: ['GET'],
      paths: [`${ONE}/tables`],
      summary: 'List the tables of a database',
      description: 'As they are now, with what decides how their changes come.',
      scope: 'read',
      query: PageQuery,
      answer: { description: 'All tables, by schema and name, or a page of them.', schema: listOut(TableOut) },
      errors: [404, 422],
      handle: async (request, _reply, account) => {
        const tables = await databases.tables(databaseOf(request, account))
        if (tables instanceof EngineError) throw tables
        const { those, next } = pageOf(request, tables, { key: ({ schema, name }) => `${schema}.${name}` })
        return { data: those.map(tableOut), ...next }
      },
    },
    {
      id: 'listReplications',
      methods: ['GET'],
      paths: ['/api/postgres_replications'],
      summary: 'List the replication slots of all databases',
      description: 'They are set with their databases.',
      scope: 'read',
      query: PageQuery,
      answer: { description: 'A slot for each database, or a page of them.', schema: listOut(Slot) },
      handle: (request, _reply, account) => {
        const { those, next } = pageOf(request, resources.list('database', account.id), { key: ({ slot }) => slot.id })
        return { data: those.map(slotOut), ...next }
      },
    },
    {
      id: 'getReplication',
      methods: ['GET'],
      paths: ['/api/postgres_replications/{id}'],
      summary: 'Read a replication slot',
      scope: 'read',
      answer: { description: 'The slot.', schema: Slot },
      errors: [404],
      handle: (request, _reply, account) => {
        const id = pathParameter(request, 'id').toLowerCase()
        const found = resources.list('database', account.id).find(({ slot }) => slot.id === id)
        if (!found) throw new EngineError('NOT_FOUND', `There is no replication slot "${id.slice(0, 100)}".`)
        return slotOut(found)
      },
    },
    {
      id: 'listLocalTunnels',
      methods: ['GET'],
      paths: ['/api/local_tunnels'],
      summary: 'List development tunnels',
      description: 'This service has none.',
      scope: 'read',
      answer: { description: 'None.', schema: Type.Object({ data: Type.Array(noTunnel) }) },
      handle: () => ({ data: [] }),
    },
  ]
  return operations.map((operation) => ({ ...operation, handle: answered(operation.handle) }))
}

const noTunnel: TSchema = Type.Object({ entity_id: Type.String(), entity_name: Type.String(), bastion_port: Type.Integer() })

/** @throws EngineError REQUEST_INVALID, SCOPE_MISSING */
function isSensitiveShown(request: FastifyRequest): boolean {
  const { show_sensitive: shown = 'false' } = queryOf(request)
  if (shown === 'true') requireScope(request, 'admin', 'show_sensitive')
  else if (shown !== 'false') throw new EngineError('REQUEST_INVALID', 'show_sensitive must be true or false.')
  return shown === 'true'
}

function negative(reply: FastifyReply, error: EngineError | undefined): Readonly<{ success: boolean; reason?: string; code?: ErrorCode }> {
  if (!error) return { success: true }
  reply.status(422)
  return { success: false, reason: redactText(error.message), code: error.code }
}

/** Clients of the original read the reason of a 404 at another place than those of other resources; and what a database lacks is no 5xx. */
function answered(handle: Operation['handle']): Operation['handle'] {
  return async (request, reply, account) => {
    try {
      return await handle(request, reply, account)
    } catch (error) {
      if (!(error instanceof EngineError)) throw error
      const { code, message } = error
      const summary = redactText(message)
      const { remedy } = ERRORS[code]
      if (code === 'NOT_FOUND') return reply.status(404).send({ summary, code, remedy, errors: { detail: summary } })
      if (!isUnfit(error)) throw error
      return reply.status(422).send({ summary, code, remedy, validation_errors: {} })
    }
  }
}

const tableOut = (table: SourceTable) => ({
  schema: table.schema,
  name: table.name,
  partitioned: table.isPartitioned,
  partition_root: table.partitionRoot ?? null,
  published: table.isPublished,
  published_as: table.publishedAs ?? null,
  primary_key: table.primaryKey,
  replica_identity: table.replicaIdentity,
  replica_identity_columns: table.identityColumns,
  row_level_security: table.isRowSecured,
  unlogged: table.isUnlogged,
  may_select: table.mayRead,
})
