/** The management of functions (contract 9.5, 7.3): what is saved is built first, and what can't be built is refused with its place. */
import { Ajv } from 'ajv'
import type { FastifyRequest } from 'fastify'
import { Type, type Static, type TSchema } from 'typebox'
import { EngineError } from '../engine/errors.ts'
import { FUNCTION_TYPES, type StoredFunction } from '../engine/state/functions.ts'
import { Name, type Account, type Sink } from '../engine/state/resources.ts'
import type { Written } from '../transforms/compile.ts'
import { EXAMPLE, trialMessage } from '../transforms/trial.ts'
import { usersOf, type FunctionEdits } from './function-edits.ts'
import { objectBody, pathParameter, type Operation } from './operation.ts'
import { reasonsOf } from './schema-reasons.ts'

export type FunctionPort = Pick<FunctionEdits, 'create' | 'update' | 'delete' | 'test'> &
  Readonly<{ list: () => readonly StoredFunction[]; sinks: () => readonly Sink[] }>

const MAX_BYTES = 1_048_576
const MAX_MESSAGES = 10
const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i
const strict = { additionalProperties: false } as const
const FunctionName = Type.String({ ...Name, not: { enum: ['none', 'null', 'nil'] } })
const FunctionKind = Type.Union(FUNCTION_TYPES.map((type) => Type.Literal(type)))
const fields = {
  description: Type.Optional(Type.Union([Type.String(), Type.Null()])),
  code: Type.Optional(
    Type.String({ minLength: 1, description: 'JavaScript or TypeScript: a module with a default export, at most 10,000 bytes' }),
  ),
  path: Type.Optional(Type.String({ minLength: 1, description: 'of type path: such as record.id' })),
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
const FunctionIn = Type.Object({ name: FunctionName, type: FunctionKind, ...fields }, strict)
const FunctionPatch = Type.Object({ name: Type.Optional(FunctionName), type: Type.Optional(FunctionKind), ...fields }, strict)
const TestIn = Type.Object({ type: FunctionKind, code: fields.code, path: fields.path, messages }, strict)
const StoredTestIn = Type.Object({ messages }, strict)
const FunctionOut = Type.Object({
  id: Type.String({ format: 'uuid' }),
  name: Type.String(),
  type: FunctionKind,
  description: Type.Union([Type.String(), Type.Null()]),
  code: Type.Optional(Type.String()),
  path: Type.Optional(Type.String()),
  used_by: Type.Array(Type.String(), { description: 'names of sinks' }),
})
const TestOut = Type.Object({
  data: Type.Array(
    Type.Object({
      input: Type.Unknown(),
      output: Type.Optional(Type.Unknown({ description: 'what it returned; of a filter true or false' })),
      error: Type.Optional(
        Type.Object({
          code: Type.String(),
          message: Type.String(),
          line: Type.Optional(Type.Integer()),
          column: Type.Optional(Type.Integer()),
        }),
      ),
      time_us: Type.Integer(),
      logs: Type.Array(Type.String()),
    }),
  ),
})
const ajv = new Ajv({ allErrors: true })

/** @throws EngineError VALIDATION_FAILED */
function checker<S extends TSchema>(schema: S): (body: Readonly<Record<string, unknown>>) => Static<S> {
  const check = ajv.compile(schema)
  return (body) => {
    if (check(body)) return body as Static<S>
    const reasons = reasonsOf(check.errors ?? [])
    throw new EngineError(
      'VALIDATION_FAILED',
      `Validation failed: ${reasons.map(([field, reason]) => `${field} ${reason}`).join('; ').slice(0, 500)}.`, // prettier-ignore
      Object.fromEntries(reasons),
    )
  }
}
const checkIn = checker(FunctionIn)
const checkPatch = checker(FunctionPatch)
const checkTest = checker(TestIn)
const checkStoredTest = checker(StoredTestIn)

export function functionOperations(port: FunctionPort): Operation[] {
  const shown = (fn: StoredFunction) => ({
    ...{ id: fn.id, name: fn.name, type: fn.type, description: fn.description },
    ...(fn.type === 'path' ? { path: fn.code } : { code: fn.code }),
    used_by: usersOf(fn, port.sinks()).map(({ name }) => name),
  })
  const found = (request: FastifyRequest, account: Account): StoredFunction => {
    const idOrName = pathParameter(request, 'id_or_name')
    const field = UUID.test(idOrName) ? 'id' : 'name'
    const fn = port
      .list()
      .find((one) => one.accountId === account.id && one[field] === (field === 'id' ? idOrName.toLowerCase() : idOrName))
    if (!fn) throw new EngineError('NOT_FOUND', `There is no function "${idOrName.slice(0, 100)}".`)
    return fn
  }
  const tested = async (written: Written, given: readonly unknown[] | undefined) => ({
    data: (await port.test(written, given?.map(trialMessage) ?? [EXAMPLE])).map(({ input, output, error, timeUs, logs }) => ({
      input,
      ...(error
        ? { error: { code: error.code, message: error.text, ...(error.line !== undefined && { line: error.line, column: error.column }) } }
        : { output }),
      time_us: timeUs,
      logs,
    })),
  })
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
      answer: { description: 'The function.', schema: FunctionOut },
      errors: [400, 413, 422, 503],
      handle: async (request, _reply, account) => {
        const { name, type, description = null, ...given } = checkIn(objectBody(request))
        return shown(await port.create(account, { name, type, description, code: codeOf(type, given) }))
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
      answer: { description: 'For each message what came of it.', schema: TestOut },
      errors: [400, 413, 422, 503],
      handle: (request) => {
        const { type, messages: given, ...code } = checkTest(objectBody(request))
        return tested({ name: 'test', type, description: null, code: codeOf(type, code) }, given)
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
      answer: { description: 'The function as it is now.', schema: FunctionOut },
      errors: [400, 404, 413, 422, 503],
      handle: async (request, _reply, account) => {
        const fn = found(request, account)
        const { code, path, ...changes } = checkPatch(objectBody(request))
        const type = changes.type ?? fn.type
        const given =
          code === undefined && path === undefined && (type === 'path') === (fn.type === 'path') ? fn.code : codeOf(type, { code, path })
        return shown(await port.update(fn, { ...changes, code: given }))
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
      answer: { description: 'For each message what came of it.', schema: TestOut },
      errors: [400, 404, 413, 422, 503],
      handle: (request, _reply, account) => tested(found(request, account), checkStoredTest(objectBody(request)).messages),
    },
  ]
}

/** @throws EngineError VALIDATION_FAILED: of path and code the type needs one */
function codeOf(type: StoredFunction['type'], { code, path }: { code?: string | undefined; path?: string | undefined }): string {
  const [wanted, given, other] = type === 'path' ? (['path', path, code] as const) : (['code', code, path] as const)
  if (given !== undefined && other === undefined) return given
  const reason = given === undefined ? 'is missing' : 'is what this type has, and nothing beside it'
  throw new EngineError('VALIDATION_FAILED', `${wanted} ${reason}`, { [wanted]: reason })
}
