/** Configuration as code over HTTP (docs/configuration.md): what a file would change, changing it, and what is there as a file. */
import type { FastifyReply, FastifyRequest } from 'fastify'
import { Type } from 'typebox'
import { EngineError } from '../engine/errors.ts'
import type { ConfigOutcome } from '../actors/config/config-apply.ts'
import type { ConfigEdits } from '../actors/config/config-edits.ts'
import { MAX_CONFIG_BYTES, MAX_CONFIG_ENTRIES } from '../actors/config/given-config.ts'
import { isAdmin, requireScope } from './http/auth.ts'
import { objectBody, queryOf, type Operation } from './http/operation.ts'
import { checker } from '../actors/resources/form.ts'
import { RESOURCE_TYPES } from '../engine/state/resource-store.ts'

/** The calls that the routes of configuration as code make. */
export type ConfigPort = Pick<ConfigEdits, 'plan' | 'apply' | 'export'>

/** The body of a request may be so long: a file and some bundles of functions. */
const MAX_BYTES = 16_777_216
const texts = (description: string) => Type.Optional(Type.Record(Type.String(), Type.String(), { description }))
const ConfigIn = Type.Object(
  {
    yaml: Type.String({ description: `the configuration file: up to ${MAX_CONFIG_BYTES} bytes and ${MAX_CONFIG_ENTRIES} entries` }),
    file: Type.Optional(Type.String({ minLength: 1, maxLength: 1000, description: 'its name, for errors' })),
    variables: texts('what `${VAR}` in values of the file stands for; absent: `${VAR}` is a text'),
    files: texts('files that functions name as their `file`, by that name; bundled already'),
  },
  { additionalProperties: false, title: 'ConfigInput' },
)
const checkConfig = checker(ConfigIn)

const Form = Type.Union([Type.Object({}, { additionalProperties: true }), Type.Null()])
const Change = Type.Object(
  {
    resource_type: Type.Union([...RESOURCE_TYPES, 'api_token', 'user'].map((type) => Type.Literal(type))),
    action: Type.Union(
      ['create', 'update', 'delete'].map((action) => Type.Literal(action)),
      { description: 'delete: the file lacks it, and it stays; an API token that a file made goes' },
    ),
    name: Type.String(),
    old: Form,
    new: Form,
  },
  { title: 'ConfigChange' },
)
const outcome = {
  changes: Type.Array(Change, { description: 'entries of the file as they were and will be; secrets are shown in part' }),
  actions: Type.Array(Type.Object({ description: Type.String() }), {
    description: 'what is made on the servers of databases, then the notices again: clients of Sequin show only these',
  }),
  notices: Type.Array(Type.String(), { description: 'what should be known, and stops nothing' }),
}
const PlanOut = Type.Object(outcome, { title: 'Plan' })
const ApplyOut = Type.Object({
  resources: Type.Array(
    Type.Object({ resource_type: Type.String(), id: Type.String(), name: Type.String() }, { additionalProperties: true }),
    {
      description: 'those that the file has, as they are now',
    },
  ),
  ...outcome,
})
const ExportQuery = Type.Object({
  'show-sensitive': Type.Optional(Type.Boolean({ description: 'true: secrets as they are' })),
})

/** Makes the routes of configuration as code. */
export function configOperations(port: ConfigPort): Operation[] {
  const described = ({ actions, notices }: ConfigOutcome) => [...actions, ...notices].map((description) => ({ description }))
  return [
    {
      id: 'planConfig',
      methods: ['POST'],
      paths: ['/api/config/plan'],
      summary: 'What applying a configuration file would change',
      description: 'Checks the file as applying it does, and changes nothing.',
      scope: 'manage',
      body: ConfigIn,
      maxBodyBytes: MAX_BYTES,
      answer: { description: 'What would change.', schema: PlanOut },
      errors: [400, 413, 422, 429, 503],
      handle: async (request, reply, account) => {
        const outcome = await port.plan(account, checkConfig(objectBody(request)), askerOf(request, reply))
        const { changes, notices } = outcome
        return { changes, actions: described(outcome), notices }
      },
    },
    {
      id: 'applyConfig',
      methods: ['POST'],
      paths: ['/api/config/apply'],
      summary: 'Apply a configuration file',
      description:
        'All of it or nothing: resources are created or updated by their names, and never deleted; API tokens that a file made go when its section api_tokens no longer names them. Sinks take their changes in without a restart when the answer comes. Secrets may be given as an export shows them: those stay.',
      scope: 'manage',
      body: ConfigIn,
      maxBodyBytes: MAX_BYTES,
      answer: { description: 'What was changed.', schema: ApplyOut },
      errors: [400, 413, 422, 429, 503],
      handle: async (request, reply, account) => {
        const outcome = await port.apply(account, checkConfig(objectBody(request)), askerOf(request, reply))
        const { resources, changes, notices } = outcome
        return {
          resources: resources.map(({ type, id, shown }) => ({ resource_type: type, id, ...shown })),
          changes,
          actions: described(outcome),
          notices,
        }
      },
    },
    {
      id: 'exportConfig',
      methods: ['GET'],
      paths: ['/api/config/export'],
      summary: 'The resources of the account as a configuration file',
      description: 'Without account and tokens. Applying it again changes nothing, also while its secrets are shown in part.',
      scope: 'read',
      query: ExportQuery,
      answer: { description: 'The file.', schema: Type.Object({ yaml: Type.String() }) },
      errors: [400, 503],
      handle: async (request, _reply, account) => ({ yaml: await port.export(account, { showSensitive: isSensitiveShown(request) }) }),
    },
  ]
}

/** Says who asks: the client has gone when it has closed its connection before the answer. */
function askerOf(request: FastifyRequest, { raw }: FastifyReply): Parameters<ConfigPort['apply']>[2] {
  const gone = new AbortController()
  raw.once('close', () => gone.abort())
  return {
    gone: gone.signal,
    mayMove: isAdmin(request),
    refuseTokens: () => requireScope(request, 'admin', 'A file with api_tokens or users'),
  }
}

/** @throws EngineError REQUEST_INVALID, SCOPE_MISSING */
function isSensitiveShown(request: FastifyRequest): boolean {
  const { 'show-sensitive': dashed, show_sensitive: shown = dashed } = queryOf(request)
  if (shown === 'true') requireScope(request, 'admin', 'show-sensitive')
  if (shown === undefined || shown === 'false' || shown === 'true') return shown === 'true'
  throw new EngineError('REQUEST_INVALID', 'show-sensitive must be true or false.')
}
