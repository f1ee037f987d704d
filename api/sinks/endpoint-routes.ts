/** The management of HTTP endpoints, the targets of webhooks (docs/webhooks.md). */
import type { EngineVerbs } from '../../actors/engine.ts'
import { endpointChanges, EndpointIn, endpointOut, EndpointOut, newEndpoint } from '../../actors/resources/endpoint-form.ts'
import { EngineError } from '../../engine/errors.ts'
import type { Operation } from '../http/operation.ts'
import { resourceOperations, type ResourcePorts } from '../http/resource-routes.ts'

type EndpointPorts = ResourcePorts &
  Readonly<{
    engine: EngineVerbs
    /** makes an address at a public test service. @throws EngineError DESTINATION_UNREACHABLE */
    makeTestUrl?: () => Promise<string>
  }>

/** Makes the routes of HTTP endpoints. */
export function endpointOperations(ports: EndpointPorts): Operation[] {
  const { engine, makeTestUrl = noTestService } = ports
  return resourceOperations(ports, {
    type: 'http_endpoint',
    path: '/api/destinations/http_endpoints',
    id: 'HttpEndpoint',
    noun: 'an HTTP endpoint',
    form: EndpointIn,
    out: EndpointOut,
    descriptions: {
      create:
        'External ones have a url, local ones `"local": true` and a path; `"webhook.site": true` makes an address at that public test service.',
      update:
        'Both methods are partial; a map of headers is replaced as a whole. An encrypted header that is sent back as it was shown stays what it is. The sinks that send to it go by the new settings when the answer comes.',
    },
    errors: { delete: [400, 404, 503] },
    shown: (those) => those.map(endpointOut),
    input: async (body) => {
      const { url, ...input } = newEndpoint(body)
      return { ...input, url: url ?? (await makeTestUrl()) }
    },
    changes: (body, endpoint) => endpointChanges(endpoint, body),
    test: {
      summary: 'Test whether an HTTP endpoint can be reached',
      description: 'Connects, with TLS where the URL says so, and sends nothing.',
      ask: (endpoint) => engine.testEndpoint(endpoint),
    },
  })
}

async function noTestService(): Promise<never> {
  throw new EngineError(
    'DESTINATION_UNREACHABLE',
    'webhook.site: this service may not use the public test service, which would see your rows. TAILRACE_TEST_ENDPOINTS=true allows it',
  )
}
