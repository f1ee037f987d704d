/**
 * The routes that each type of resource has: its list, and one of it read, created, updated and deleted. A type says what it is called,
 * what its forms are and how a body becomes what is stored; the rest is the same for all.
 */
import type { FastifyReply, FastifyRequest } from 'fastify'
import { Type, type TSchema } from 'typebox'
import type { ResourceEdits } from '../../actors/resources/resource-edits.ts'
import { EngineError } from '../../engine/errors.ts'
import type { ResourceLookup } from '../../engine/state/resource-cache.ts'
import { NOUN_OF, type InputOf, type ResourceType, type StoredOf } from '../../engine/state/resource-store.ts'
import type { Account } from '../../engine/state/resources.ts'
import { objectBody, pathParameter, type Operation } from './operation.ts'
import { listOut, pageOf, PageQuery } from './pages.ts'

/** Bounds the body of a request that says what a resource is to be. */
export const MAX_RESOURCE_BYTES = 1_048_576

/** Holds what routes look resources up in, and edit them by. */
export type ResourcePorts = Readonly<{ resources: ResourceLookup; edits: Pick<ResourceEdits, 'create' | 'update' | 'delete'> }>

type ResourceRoutes<T extends ResourceType> = Readonly<{
  type: T
  /** of the list */
  path: string
  /** as ids of operations name it, such as "Sink" */
  id: string
  /** with its article */
  noun: string
  form: TSchema
  /** the form of an update, where it is another one */
  patch?: TSchema
  out: TSchema
  /** an answer to who has saved one, where it says more */
  savedOut?: TSchema
  descriptions: Readonly<{ create?: string; update: string; delete?: string }>
  /** statuses of errors beside those that all types have */
  errors: Readonly<{ create?: readonly number[]; delete: readonly number[] }>
  shown: (those: readonly StoredOf<T>[]) => Promise<readonly unknown[]> | readonly unknown[]
  saved?: (one: StoredOf<T>) => Promise<unknown>
  input: (body: Body, account: Account) => Promise<InputOf<T>> | InputOf<T>
  changes: (body: Body, stored: StoredOf<T>) => Promise<Partial<InputOf<T>>> | Partial<InputOf<T>>
  /** `ask` gives what is wrong with its connection, in the destination's own words; undefined: nothing */
  test?: Readonly<{ summary: string; description: string; ask: (stored: StoredOf<T>) => Promise<string | undefined> }>
}>
type Body = Readonly<Record<string, unknown>>

/** Gives the resource that the path of a request names. @throws EngineError NOT_FOUND */
export function namedResource<T extends ResourceType>(resources: ResourceLookup, type: T, request: FastifyRequest, account: Account) {
  const idOrName = pathParameter(request, 'id_or_name')
  const found = resources.find(type, account.id, idOrName)
  if (!found) throw new EngineError('NOT_FOUND', `There is no ${NOUN_OF[type]} "${idOrName.slice(0, 100)}".`)
  return found
}

/** Makes the routes of a type of resource. */
export function resourceOperations<T extends ResourceType>(
  { resources, edits }: ResourcePorts,
  { type, path, id, noun, form, patch = form, out, savedOut = out, descriptions, errors, test, ...routes }: ResourceRoutes<T>,
): Operation[] {
  const name = NOUN_OF[type]
  const one = `${path}/{id_or_name}`
  const shown = async (resource: StoredOf<T>) => (await routes.shown([resource]))[0]
  const saved = routes.saved ?? shown
  return [
    {
      id: `list${id}s`,
      methods: ['GET'],
      paths: [path],
      summary: `List ${name}s`,
      scope: 'read',
      query: PageQuery,
      answer: { description: `All ${name}s of the account, or a page of them.`, schema: listOut(out) },
      handle: async (request, _reply, account) => {
        const { those, next } = pageOf(request, resources.list(type, account.id), { key: ({ id }) => id })
        return { data: await routes.shown(those), ...next }
      },
    },
    {
      id: `create${id}`,
      methods: ['POST'],
      paths: [path],
      summary: `Create ${noun}`,
      ...(descriptions.create !== undefined && { description: descriptions.create }),
      scope: 'manage',
      body: form,
      maxBodyBytes: MAX_RESOURCE_BYTES,
      answer: { description: `The ${name}.`, schema: savedOut },
      errors: [400, ...(errors.create ?? []), 413, 422, 503],
      handle: async (request, _reply, account) =>
        saved(await edits.create(type, account, await routes.input(objectBody(request), account))),
    },
    {
      id: `get${id}`,
      methods: ['GET'],
      paths: [one],
      summary: `Read ${noun}`,
      scope: 'read',
      answer: { description: `The ${name}.`, schema: out },
      errors: [404],
      handle: (request, _reply, account) => shown(namedResource(resources, type, request, account)),
    },
    {
      id: `update${id}`,
      methods: ['PATCH', 'PUT'],
      paths: [one],
      summary: `Update ${noun}`,
      description: descriptions.update,
      scope: 'manage',
      body: patch,
      maxBodyBytes: MAX_RESOURCE_BYTES,
      answer: { description: `The ${name} as it is now.`, schema: savedOut },
      errors: [400, 404, 413, 422, 503],
      handle: async (request, _reply, account) => {
        const stored = namedResource(resources, type, request, account)
        const changes = await routes.changes(objectBody(request), stored)
        return saved(Object.keys(changes).length === 0 ? stored : await edits.update(type, stored.id, changes))
      },
    },
    {
      id: `delete${id}`,
      methods: ['DELETE'],
      paths: [one],
      summary: `Delete ${noun}`,
      ...(descriptions.delete !== undefined && { description: descriptions.delete }),
      scope: 'manage',
      answer: { description: 'It is deleted.', schema: Type.Object({ id: Type.String(), deleted: Type.Literal(true) }) },
      errors: errors.delete,
      handle: async (request, _reply, account) => {
        const stored = namedResource(resources, type, request, account)
        await edits.delete(type, stored.id)
        return { id: stored.id, deleted: true }
      },
    },
    ...(test
      ? [
          {
            id: `test${id}`,
            methods: ['POST' as const],
            paths: [`${one}/test_connection`],
            summary: test.summary,
            description: test.description,
            scope: 'manage' as const,
            answer: {
              description: 'Somebody is there.',
              schema: Type.Object({ success: Type.Boolean(), reason: Type.Optional(Type.String()) }),
              negative: { status: 422, description: 'What is wrong, in the destination’s own words.' },
            },
            errors: [404],
            handle: async (request: FastifyRequest, reply: FastifyReply, account: Account) => {
              const reason = await test.ask(namedResource(resources, type, request, account))
              if (reason === undefined) return { success: true }
              reply.status(422)
              return { success: false, reason }
            },
          },
        ]
      : []),
  ]
}
