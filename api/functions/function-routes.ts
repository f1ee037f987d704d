/** The management of functions (contract 9.5, 7.3): what is saved is built first, and what can't be built is refused with its place. */
import type { FastifyRequest } from 'fastify'
import { Type, type Static, type TSchema } from 'typebox'
import { schemaCheck } from '../../engine/schema-check.ts'
import { EngineError } from '../../engine/errors.ts'
import type { Destination } from '../../engine/state/destinations.ts'
import { FUNCTION_TYPES, type StoredFunction } from '../../engine/state/functions.ts'
import type { Account, Database, Sink } from '../../engine/state/resources.ts'
import type { Connection } from '../../engine/postgres/client-config.ts'
import { Name } from '../../engine/resource-name.ts'
import { qualified } from '../../engine/postgres/table-name.ts'
import type { Written } from '../../transforms/compile.ts'
import { parseExact } from '../../transforms/exact-json.ts'
import type { SourcePlace } from '../../transforms/sandbox/source-position.ts'
import { syntheticMessage } from '../../transforms/synthetic-message.ts'
import { EXAMPLE, trialMessage, type TrialMessage } from '../../transforms/trial.ts'
import { usersOf, type FunctionEdits } from './function-edits.ts'
import type { EngineVerbs } from '../../actors/engine.ts'
import { codeOf, sinkTypeOf } from './function-form.ts'
import { enriched, rehearsalOf } from './function-rehearsal.ts'
import { objectBody, pathParameter, type Operation } from '../http/operation.ts'
import { routeTrial } from './route-trial.ts'
import { reasonsOf } from '../../engine/schema-reasons.ts'
import { invalid, readOnly } from '../http/form.ts'

export type FunctionPort = Pick<FunctionEdits, 'create' | 'update' | 'delete' | 'test' | 'rehearse'> &
  Readonly<{
    list: () => readonly StoredFunction[]
    sinks: () => readonly Sink[]
    databases: () => readonly Database[]
    recent: EngineVerbs['recent']
  }>

const MAX_BYTES = 1_048_576
const MAX_MESSAGES = 10
/** What a trial is made with. */
type Given = Readonly<{
  sink?: string | undefined
  database?: string | undefined
  table?: string | undefined
  messages?: readonly unknown[] | undefined
}>
const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i
const strict = { additionalProperties: false } as const
const FunctionName = Type.String({ ...Name, not: { enum: ['none', 'null', 'nil'] } })
const FunctionKind = Type.Union(FUNCTION_TYPES.map((type) => Type.Literal(type)))
const fields = {
  description: Type.Optional(Type.Union([Type.String(), Type.Null()])),
  code: Type.Optional(
    Type.String({
      minLength: 1,
      description: 'JavaScript or TypeScript: a module with a default export; of type enrichment SQL with $1. At most 10,000 bytes',
    }),
  ),
  path: Type.Optional(Type.String({ minLength: 1, description: 'of type path: such as record.id' })),
  sink_type: Type.Optional(
    Type.Union([Type.String(), Type.Null()], { description: 'of type routing: type of the sinks that it routes to, such as webhook' }),
  ),
}
const Message = Type.Object(
  {
    record: Type.Unknown(),
    changes: Type.Optional(Type.Unknown()),
    action: Type.Optional(Type.String()),
    metadata: Type.Optional(Type.Unknown()),
  },
  { additionalProperties: true },
)
const messages = Type.Optional(
  Type.Array(Message, { minItems: 1, maxItems: MAX_MESSAGES, description: 'to run it on; absent: an example' }),
)
const sink = Type.Optional(
  Type.String({
    description:
      'of type routing: name or id of a sink whose settings fill in what it leaves out; of a stored one the only sink that has it',
  }),
)
const database = Type.Optional(Type.String({ description: 'of type enrichment: name or id of the database that the query runs on' }))
const table = Type.Optional(
  Type.String({
    description:
      'instead of messages: the last ones of this table (schema.table) of the database that sinks have read; while there are none, one made up for its columns',
  }),
)
const ignored = readOnly('used_by', 'warnings')
const FunctionIn = Type.Object({ name: FunctionName, type: FunctionKind, ...fields, ...ignored }, strict)
const FunctionPatch = Type.Object({ name: Type.Optional(FunctionName), type: Type.Optional(FunctionKind), ...fields, ...ignored }, strict)
const TestIn = Type.Object(
  { type: FunctionKind, code: fields.code, path: fields.path, sink_type: fields.sink_type, sink, database, table, messages },
  strict,
)
const StoredTestIn = Type.Object({ sink, database, table, messages }, strict)
const FunctionOut = Type.Object({
  id: Type.String({ format: 'uuid' }),
  name: Type.String(),
  type: FunctionKind,
  description: Type.Union([Type.String(), Type.Null()]),
  code: Type.Optional(Type.String()),
  path: Type.Optional(Type.String()),
  sink_type: Type.Optional(Type.String({ description: 'of type routing' })),
  used_by: Type.Array(Type.String(), { description: 'names of sinks' }),
})
const SavedOut = Type.Object({
  ...FunctionOut.properties,
  warnings: Type.Optional(
    Type.Array(Type.String(), {
      description: 'why it fails on the last messages of a sink that has it, or on an example; it is saved all the same',
    }),
  ),
})
const TestOut = Type.Object({
  data: Type.Array(
    Type.Object({
      input: Type.Unknown(),
      synthetic: Type.Optional(Type.Literal(true, { description: 'no message of the table was there: input is made up for its columns' })),
      output: Type.Optional(Type.Unknown({ description: 'what it returned; of a filter true or false' })),
      routing: Type.Optional(
        Type.Object({}, { additionalProperties: true, description: 'of type routing: the result with all that it leaves out' }),
      ),
      parameters: Type.Optional(Type.Array(Type.Array(Type.String()), { description: 'of type enrichment: what the query was given' })),
      error: Type.Optional(
        Type.Object({
          code: Type.String(),
          message: Type.String(),
          line: Type.Optional(Type.Integer()),
          column: Type.Optional(Type.Integer()),
          file: Type.Optional(Type.String({ description: 'of a bundle: where line and column are' })),
        }),
      ),
      time_us: Type.Integer(),
      logs: Type.Array(Type.String()),
    }),
  ),
})

/** @throws EngineError VALIDATION_FAILED */
function checker<S extends TSchema>(schema: S): (body: Readonly<Record<string, unknown>>) => Static<S> {
  const check = schemaCheck(schema)
  return (body) => {
    if (check(body)) return body as Static<S>
    throw invalid(reasonsOf(check.errors ?? []))
  }
}
const checkIn = checker(FunctionIn)
const checkPatch = checker(FunctionPatch)
const checkTest = checker(TestIn)
const checkStoredTest = checker(StoredTestIn)

export function functionOperations(port: FunctionPort): Operation[] {
  const shown = (fn: StoredFunction) => ({
    id: fn.id,
    name: fn.name,
    type: fn.type,
    description: fn.description,
    ...(fn.type === 'path' ? { path: fn.code } : { code: fn.code }),
    ...(fn.sinkType !== null && { sink_type: fn.sinkType }),
    used_by: usersOf(fn, port.sinks()).map(({ name }) => name),
  })
  const enrichmentOf = ({ accountId, enrichment }: Sink) => port.list().find((fn) => fn.accountId === accountId && fn.name === enrichment)
  const saved = async (fn: StoredFunction) => {
    const databaseOf = (sink: Sink) => port.databases().find(({ id }) => id === sink.databaseId)
    const recent: FunctionPort['recent'] = (asked) => port.recent(asked)
    const rehearsal = await rehearsalOf(usersOf(fn, port.sinks()), { databaseOf, enrichmentOf, recent })
    const warnings = await port.rehearse(fn, rehearsal)
    return { ...shown(fn), ...(warnings.length > 0 && { warnings }) }
  }
  const found = (request: FastifyRequest, account: Account): StoredFunction => {
    const idOrName = pathParameter(request, 'id_or_name')
    const field = UUID.test(idOrName) ? 'id' : 'name'
    const fn = port
      .list()
      .find((one) => one.accountId === account.id && one[field] === (field === 'id' ? idOrName.toLowerCase() : idOrName))
    if (!fn) throw new EngineError('NOT_FOUND', `There is no function "${idOrName.slice(0, 100)}".`)
    return fn
  }
  const destinationOf = (account: Account, sinkType: StoredFunction['sinkType'], idOrName: string): Destination => {
    const sinks = port.sinks().filter(({ accountId }) => accountId === account.id)
    const { destination } = sinks.find(({ id, name }) => id === idOrName.toLowerCase() || name === idOrName) ?? {}
    if (destination && destination.type === sinkType) return destination
    const reason = destination ? `names a sink of type ${destination.type}` : 'names a sink that does not exist'
    throw new EngineError('VALIDATION_FAILED', `sink ${reason}`, { sink: reason })
  }
  const databaseOf = (account: Account, idOrName: string): Database => {
    const databases = port.databases().filter(({ accountId }) => accountId === account.id)
    const found = databases.find(({ id, name }) => id === idOrName.toLowerCase() || name === idOrName)
    if (found) return found
    throw new EngineError('VALIDATION_FAILED', 'database names one that does not exist', { database: 'names one that does not exist' })
  }
  const recentOf = async ({ id, name, annotations, connection }: Database, table: string): Promise<MessagesOfTable> => {
    const seen = await port.recent({ databaseId: id, table: qualified(table) })
    const about = {
      database_name: name,
      database: { id, name, annotations, database: connection.database, hostname: connection.hostname },
    }
    const made = seen.length === 0 ? [await madeUp(connection, table)] : seen.map(({ text }) => parseExact(text) as TrialMessage)
    const messages = made.map(({ metadata, ...message }) => ({ ...message, metadata: { ...(metadata as object), ...about } }))
    return { messages, isSynthetic: seen.length === 0 }
  }
  const tested = async (account: Account, written: Written, given: Given, user?: Sink) => {
    const { sinkType = null } = written
    const destination = given.sink === undefined ? undefined : destinationOf(account, sinkType, given.sink)
    const database = given.database === undefined ? undefined : databaseOf(account, given.database)
    const place = { connection: database?.connection, routed: routeTrial(sinkType, destination) }
    if (given.table !== undefined && !database)
      throw new EngineError('VALIDATION_FAILED', 'database is missing', { database: 'is missing: which one has the table' })
    const ofTable = given.table === undefined || !database ? undefined : await recentOf(database, given.table)
    const messages = ofTable ? ofTable.messages : given.messages?.map(trialMessage)
    const query = user && database && given.table !== undefined && user.databaseId === database.id ? enrichmentOf(user) : undefined
    const whole = messages && query && database ? await enriched(messages, query, database.connection) : messages
    const results = await port.test(account, written, whole ?? [EXAMPLE], place)
    return {
      data: results.map(({ input, output, parameters, routing, error, timeUs, logs }) => ({
        input,
        ...(ofTable?.isSynthetic && { synthetic: true }),
        ...(parameters && { parameters }),
        ...(output !== undefined && { output }),
        ...(routing && { routing }),
        ...(error && {
          error: { code: error.code, message: error.text, ...placeOf(error) },
        }),
        time_us: timeUs,
        logs,
      })),
    }
  }
  const writes = { auth: true, maxBodyBytes: MAX_BYTES } as const
  return [
    {
      id: 'listFunctions',
      methods: ['GET'],
      paths: ['/api/functions'],
      summary: 'List functions',
      auth: true,
      answer: { description: 'All functions of the account.', schema: Type.Object({ data: Type.Array(FunctionOut) }) },
      handle: (_request, _reply, account) => ({
        data: port
          .list()
          .filter(({ accountId }) => accountId === account.id)
          .map(shown),
      }),
    },
    {
      id: 'createFunction',
      methods: ['POST'],
      paths: ['/api/functions'],
      summary: 'Create a function',
      ...writes,
      body: FunctionIn,
      answer: { description: 'The function.', schema: SavedOut },
      errors: [400, 413, 422, 503],
      handle: async (request, _reply, account) => {
        const { name, type, description = null, sink_type, ...given } = checkIn(objectBody(request))
        return saved(await port.create(account, { name, type, description, sinkType: sinkTypeOf(sink_type), code: codeOf(type, given) }))
      },
    },
    {
      id: 'testFunction',
      methods: ['POST'],
      paths: ['/api/functions/test'],
      summary: 'Run code that is not saved',
      description: 'Runs it on the messages of the body, or on an example, apart from what is at work. Nothing is stored.',
      ...writes,
      body: TestIn,
      exactNumbers: true,
      answer: { description: 'For each message what came of it.', schema: TestOut },
      errors: [400, 413, 422, 503],
      handle: (request, _reply, account) => {
        const { type, sink_type, code, path, ...given } = checkTest(objectBody(request))
        const sinkType = sinkTypeOf(sink_type)
        return tested(account, { name: 'test', type, description: null, sinkType, code: codeOf(type, { code, path }) }, given)
      },
    },
    {
      id: 'getFunction',
      methods: ['GET'],
      paths: ['/api/functions/{id_or_name}'],
      summary: 'Read a function',
      auth: true,
      answer: { description: 'The function.', schema: FunctionOut },
      errors: [404],
      handle: (request, _reply, account) => shown(found(request, account)),
    },
    {
      id: 'updateFunction',
      methods: ['PATCH', 'PUT'],
      paths: ['/api/functions/{id_or_name}'],
      summary: 'Update a function',
      description:
        'Both methods are partial. It holds for messages that are processed after the answer; sinks that have it go on without a restart.',
      ...writes,
      body: FunctionPatch,
      answer: { description: 'The function as it is now.', schema: SavedOut },
      errors: [400, 404, 413, 422, 503],
      handle: async (request, _reply, account) => {
        const fn = found(request, account)
        const { code, path, sink_type, name = fn.name, type = fn.type, description = fn.description } = checkPatch(objectBody(request))
        const kept = type === 'routing' ? fn.sinkType : null
        const sinkType = sink_type === undefined ? kept : sinkTypeOf(sink_type)
        const given =
          code === undefined && path === undefined && (type === 'path') === (fn.type === 'path') ? fn.code : codeOf(type, { code, path })
        return saved(await port.update(fn, { name, type, description, sinkType, code: given }))
      },
    },
    {
      id: 'deleteFunction',
      methods: ['DELETE'],
      paths: ['/api/functions/{id_or_name}'],
      summary: 'Delete a function',
      description: 'Refused while a sink has it.',
      auth: true,
      answer: { description: 'It is gone.', schema: Type.Object({ id: Type.String(), deleted: Type.Literal(true) }) },
      errors: [404, 422],
      handle: async (request, _reply, account) => {
        const fn = found(request, account)
        await port.delete(fn)
        return { id: fn.id, deleted: true }
      },
    },
    {
      id: 'testStoredFunction',
      methods: ['POST'],
      paths: ['/api/functions/{id_or_name}/test'],
      summary: 'Run a function',
      description: 'Runs it on the messages of the body, or on an example, apart from what is at work.',
      ...writes,
      body: StoredTestIn,
      exactNumbers: true,
      answer: { description: 'For each message what came of it.', schema: TestOut },
      errors: [400, 404, 413, 422, 503],
      handle: (request, _reply, account) => {
        const fn = found(request, account)
        const given = checkStoredTest(objectBody(request))
        const [user, ...others] = usersOf(fn, port.sinks())
        if (!user || others.length > 0) return tested(account, fn, given)
        return tested(account, fn, { ...(fn.type === 'routing' && { sink: user.name }), database: user.database, ...given }, user)
      },
    },
  ]
}

/** @property isSynthetic there was none */
type MessagesOfTable = Readonly<{ messages: readonly TrialMessage[]; isSynthetic: boolean }>

/** @throws EngineError VALIDATION_FAILED: there is no such table; SOURCE_UNREACHABLE, … */
async function madeUp(connection: Connection, table: string): Promise<TrialMessage> {
  try {
    return await syntheticMessage(connection, table)
  } catch (error) {
    if (!(error instanceof EngineError) || error.code !== 'ARGUMENT_INVALID') throw error
    throw new EngineError('VALIDATION_FAILED', `table: ${error.message}`, { table: 'is not one of the database' }, { cause: error })
  }
}

const placeOf = ({ line, column, file }: SourcePlace): SourcePlace =>
  line === undefined ? {} : { line, column, ...(file !== undefined && { file }) }
