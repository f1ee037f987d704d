/** The management of HTTP endpoints, the targets of webhooks (contract 9.6). */
import { Type } from 'typebox'
import type { FastifyRequest } from 'fastify'
import { EngineError } from '../../engine/errors.ts'
import type { HttpEndpoint } from '../../engine/state/destinations.ts'
import type { Account } from '../../engine/state/resources.ts'
import { TestOut, tested } from './connection-test.ts'
import { endpointChanges, EndpointIn, endpointOut, EndpointOut, newEndpoint } from './endpoint-form.ts'
import type { EngineVerbs } from '../../actors/engine.ts'
import type { ResourceLookup } from '../../engine/state/resource-cache.ts'
import { objectBody, pathParameter, type Operation } from '../http/operation.ts'

const LIST = '/api/destinations/http_endpoints'
const ONE = '/api/destinations/http_endpoints/{id_or_name}'
const MAX_BYTES = 1_048_576

type EndpointPorts = Readonly<{
  engine: EngineVerbs
  resources: ResourceLookup
  /** makes an address at a public test service. @throws EngineError DESTINATION_UNREACHABLE */
  makeTestUrl?: () => Promise<string>
}>

export function endpointOperations({ engine, resources, makeTestUrl = noTestService }: EndpointPorts): Operation[] {
  const found = (request: FastifyRequest, account: Account): HttpEndpoint => {
    const idOrName = pathParameter(request, 'id_or_name')
    const endpoint = resources.findEndpoint(account.id, idOrName)
    if (!endpoint) throw new EngineError('NOT_FOUND', `There is no HTTP endpoint "${idOrName.slice(0, 100)}".`)
    return endpoint
  }
  return [
    {
      id: 'listHttpEndpoints',
      methods: ['GET'],
      paths: [LIST],
      summary: 'List HTTP endpoints',
      auth: true,
      answer: { description: 'All HTTP endpoints of the account.', schema: Type.Object({ data: Type.Array(EndpointOut) }) },
      handle: (_request, _reply, account) => ({ data: resources.listEndpoints(account.id).map(endpointOut) }),
    },
    {
      id: 'createHttpEndpoint',
      methods: ['POST'],
      paths: [LIST],
      summary: 'Create an HTTP endpoint',
      description:
        'External ones have a url, local ones `"local": true` and a path; `"webhook.site": true` makes an address at that public test service.',
      auth: true,
      body: EndpointIn,
      maxBodyBytes: MAX_BYTES,
      answer: { description: 'The HTTP endpoint.', schema: EndpointOut },
      errors: [400, 413, 422, 503],
      handle: async (request, _reply, account) => {
        const { url, ...input } = newEndpoint(objectBody(request))
        return endpointOut(await engine.createEndpoint(account, { ...input, url: url ?? (await makeTestUrl()) }))
      },
    },
    {
      id: 'getHttpEndpoint',
      methods: ['GET'],
      paths: [ONE],
      summary: 'Read an HTTP endpoint',
      auth: true,
      answer: { description: 'The HTTP endpoint.', schema: EndpointOut },
      errors: [404],
      handle: (request, _reply, account) => endpointOut(found(request, account)),
    },
    {
      id: 'updateHttpEndpoint',
      methods: ['PATCH', 'PUT'],
      paths: [ONE],
      summary: 'Update an HTTP endpoint',
      description:
        'Both methods are partial; a map of headers is replaced as a whole. An encrypted header that is sent back as it was shown stays what it is. The sinks that send to it go by the new settings when the answer comes.',
      auth: true,
      body: EndpointIn,
      maxBodyBytes: MAX_BYTES,
      answer: { description: 'The HTTP endpoint as it is now.', schema: EndpointOut },
      errors: [400, 404, 413, 422, 503],
      handle: async (request, _reply, account) => {
        const endpoint = found(request, account)
        const changes = endpointChanges(endpoint, objectBody(request))
        return endpointOut(Object.keys(changes).length === 0 ? endpoint : await engine.updateEndpoint(endpoint, changes))
      },
    },
    {
      id: 'deleteHttpEndpoint',
      methods: ['DELETE'],
      paths: [ONE],
      summary: 'Delete an HTTP endpoint',
      auth: true,
      answer: { description: 'It is deleted.', schema: Type.Object({ id: Type.String(), deleted: Type.Literal(true) }) },
      errors: [400, 404, 503],
      handle: async (request, _reply, account) => {
        const endpoint = found(request, account)
        await engine.deleteEndpoint(endpoint)
        return { id: endpoint.id, deleted: true }
      },
    },
    {
      id: 'testHttpEndpoint',
      methods: ['POST'],
      paths: [`${ONE}/test_connection`],
      summary: 'Test whether an HTTP endpoint can be reached',
      description: 'Connects, with TLS where the URL says so, and sends nothing.',
      auth: true,
      answer: TestOut,
      errors: [404],
      handle: async (request, reply, account) => tested(reply, await engine.testEndpoint(found(request, account))),
    },
  ]
}

async function noTestService(): Promise<never> {
  throw new EngineError(
    'DESTINATION_UNREACHABLE',
    'no public test service is to be reached from here: TAILRACE_TEST_ENDPOINTS=true lets it have rows',
  )
}
