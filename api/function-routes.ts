/** The management of functions (docs/functions.md): what is saved is built first, and what can't be built is refused with its place. */
import { Type } from 'typebox'
import { FUNCTION_TYPES } from '../engine/state/function-kinds.ts'
import { usersOf, type StoredFunction } from '../engine/state/functions.ts'
import type { Sink } from '../engine/state/resources.ts'
import { Name } from '../engine/resource-name.ts'
import { compileFunction } from '../transforms/compile.ts'
import type { SourcePlace } from '../transforms/sandbox/source-position.ts'
import type { FunctionPool } from '../transforms/sandbox/pool.ts'
import type { ResourceLookup } from '../engine/state/resource-cache.ts'
import type { ResourceLists } from '../engine/state/resource-store.ts'
import { MAX_RESOURCE_BYTES, namedResource, resourceOperations, type ResourcePorts } from './http/resource-routes.ts'
import type { EngineVerbs } from '../actors/engine.ts'
import { runTrial, type Trial } from '../actors/resources/function-trial.ts'
import { codeIn, sinkTypeOf } from '../actors/resources/function-form.ts'
import { rehearsalOf, rehearse } from '../actors/resources/function-rehearsal.ts'
import { objectBody, type Operation } from './http/operation.ts'
import { checker, readOnly } from '../actors/resources/form.ts'

/** The calls that the routes of functions make. */
export type FunctionPorts = ResourcePorts &
  Readonly<{
    /** has the functions, sinks and databases of all accounts, too */
    resources: ResourceLookup & ResourceLists
    engine: Pick<EngineVerbs, 'recent'>
    /** what builds functions and tries them, apart from those at work */
    pool: FunctionPool
  }>

const MAX_MESSAGES = 10
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
const FunctionIn = Type.Object({ name: FunctionName, type: FunctionKind, ...fields, ...ignored }, { ...strict, title: 'FunctionInput' })
const FunctionPatch = Type.Object(
  { name: Type.Optional(FunctionName), type: Type.Optional(FunctionKind), ...fields, ...ignored },
  { ...strict, title: 'FunctionChange' },
)
const TestIn = Type.Object(
  { type: FunctionKind, code: fields.code, path: fields.path, sink_type: fields.sink_type, sink, database, table, messages },
  strict,
)
const StoredTestIn = Type.Object({ sink, database, table, messages }, strict)
const FunctionOut = Type.Object(
  {
    id: Type.String({ format: 'uuid' }),
    name: Type.String(),
    type: FunctionKind,
    description: Type.Union([Type.String(), Type.Null()]),
    code: Type.Optional(Type.String()),
    path: Type.Optional(Type.String()),
    sink_type: Type.Optional(Type.String({ description: 'of type routing' })),
    used_by: Type.Array(Type.String(), { description: 'names of sinks' }),
  },
  { title: 'Function' },
)
const SavedOut = Type.Object(
  {
    ...FunctionOut.properties,
    warnings: Type.Optional(
      Type.Array(Type.String(), {
        description: 'why it fails on the last messages of a sink that has it, or on an example; it is saved all the same',
      }),
    ),
  },
  { title: 'SavedFunction' },
)
const TestOut = Type.Object(
  {
    data: Type.Array(
      Type.Object({
        input: Type.Unknown(),
        synthetic: Type.Optional(
          Type.Literal(true, { description: 'no message of the table was there: input is made up for its columns' }),
        ),
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
  },
  { title: 'FunctionTest' },
)

const checkIn = checker(FunctionIn)
const checkPatch = checker(FunctionPatch)
const checkTest = checker(TestIn)
const checkStoredTest = checker(StoredTestIn)

/** Makes the routes of functions. */
export function functionOperations(ports: FunctionPorts): Operation[] {
  const { resources, engine, pool } = ports
  const shown = (fn: StoredFunction) => ({
    id: fn.id,
    name: fn.name,
    type: fn.type,
    description: fn.description,
    ...(fn.type === 'path' ? { path: fn.code } : { code: fn.code }),
    ...(fn.sinkType !== null && { sink_type: fn.sinkType }),
    used_by: usersOf(fn, resources.sinks).map(({ name }) => name),
  })
  const enrichmentOf = ({ accountId, enrichment }: Sink) => resources.list('function', accountId).find(({ name }) => name === enrichment)
  const saved = async (fn: StoredFunction) => {
    const databaseOf = (sink: Sink) => resources.databases.find(({ id }) => id === sink.databaseId)
    const rehearsal = await rehearsalOf(usersOf(fn, resources.sinks), { databaseOf, enrichmentOf, recent: (asked) => engine.recent(asked) })
    const warnings = await rehearse(fn, rehearsal, pool.of(fn.accountId))
    return { ...shown(fn), ...(warnings.length > 0 && { warnings }) }
  }
  const tested = async (asked: Omit<Trial, 'enrichmentOf'>) => {
    const { results, isSynthetic } = await runTrial(
      { ...asked, enrichmentOf },
      { resources, pool, recent: (table) => engine.recent(table) },
    )
    return {
      data: results.map(({ input, output, parameters, routing, error, timeUs, logs }) => ({
        input,
        ...(isSynthetic && { synthetic: true }),
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
  const trial = {
    methods: ['POST'],
    scope: 'manage',
    maxBodyBytes: MAX_RESOURCE_BYTES,
    exactNumbers: true,
    answer: { description: 'For each message what came of it.', schema: TestOut },
  } as const
  return [
    ...resourceOperations(ports, {
      type: 'function',
      path: '/api/functions',
      id: 'Function',
      noun: 'a function',
      form: FunctionIn,
      patch: FunctionPatch,
      out: FunctionOut,
      savedOut: SavedOut,
      descriptions: {
        update:
          'Both methods are partial. It holds for messages that are processed after the answer; sinks that have it go on without a restart.',
        delete: 'Refused while a sink has it.',
      },
      errors: { delete: [404, 422] },
      shown: (those) => those.map(shown),
      saved,
      input: (body, account) => {
        const { name, type, description = null, sink_type, ...given } = checkIn(body)
        const written = { name, type, description, sinkType: sinkTypeOf(sink_type), code: codeIn(type, given) }
        return compileFunction(written, pool.of(account.id))
      },
      changes: (body, fn) => {
        const { code, path, sink_type, name = fn.name, type = fn.type, description = fn.description } = checkPatch(body)
        const kept = type === 'routing' ? fn.sinkType : null
        const sinkType = sink_type === undefined ? kept : sinkTypeOf(sink_type)
        const isKept = code === undefined && path === undefined && (type === 'path') === (fn.type === 'path')
        const written = { name, type, description, sinkType, code: isKept ? fn.code : codeIn(type, { code, path }) }
        return compileFunction(written, pool.of(fn.accountId))
      },
    }),
    {
      ...trial,
      id: 'testFunction',
      paths: ['/api/functions/test'],
      summary: 'Run code that is not saved',
      description: 'Runs it on the messages of the body, or on an example, apart from what is at work. Nothing is stored.',
      body: TestIn,
      errors: [400, 413, 422, 503],
      handle: (request, _reply, account) => {
        const { type, sink_type, code, path, ...given } = checkTest(objectBody(request))
        const sinkType = sinkTypeOf(sink_type)
        const written = { name: 'test', type, description: null, sinkType, code: codeIn(type, { code, path }) }
        return tested({ account, written, given })
      },
    },
    {
      ...trial,
      id: 'testStoredFunction',
      paths: ['/api/functions/{id_or_name}/test'],
      summary: 'Run a function',
      description: 'Runs it on the messages of the body, or on an example, apart from what is at work.',
      body: StoredTestIn,
      errors: [400, 404, 413, 422, 503],
      handle: (request, _reply, account) => {
        const fn = namedResource(resources, 'function', request, account)
        const given = checkStoredTest(objectBody(request))
        const [user, ...others] = usersOf(fn, resources.sinks)
        if (!user || others.length > 0) return tested({ account, written: fn, given })
        const place = { ...(fn.type === 'routing' && { sink: user.name }), database: user.database }
        return tested({ account, written: fn, given: { ...place, ...given }, user })
      },
    },
  ]
}

const placeOf = ({ line, column, file }: SourcePlace): SourcePlace =>
  line === undefined ? {} : { line, column, ...(file !== undefined && { file }) }
