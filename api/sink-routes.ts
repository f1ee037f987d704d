/** The management of sinks (contract 9.2), as far as it goes today: list, read, and update in place. */
import { Type } from 'typebox'
import type { FastifyRequest } from 'fastify'
import { EngineError } from '../engine/errors.ts'
import type { Account, Sink } from '../engine/state/resources.ts'
import type { EnginePort, ResourcePort } from './engine-port.ts'
import { objectBody, pathParameter, type Operation } from './operation.ts'
import { idleHealth, sinkChanges, sinkOut, SinkOut, SinkPatch } from './sink-form.ts'

const MAX_SINK_BYTES = 1_048_576

export function sinkOperations({ engine, resources }: Readonly<{ engine: EnginePort; resources: ResourcePort }>): Operation[] {
  const shown = (sink: Sink) => sinkOut(sink, engine.sink(sink.id)?.health() ?? idleHealth(sink))
  const found = (request: FastifyRequest, account: Account): Sink => {
    const idOrName = pathParameter(request, 'id_or_name')
    const sink = resources.findSink(account.id, idOrName)
    if (!sink) throw new EngineError('NOT_FOUND', `There is no sink "${idOrName.slice(0, 100)}".`)
    return sink
  }
  return [
    {
      id: 'listSinks',
      methods: ['GET'],
      paths: ['/api/sinks'],
      summary: 'List sinks',
      auth: true,
      answer: { description: 'All sinks of the account.', schema: Type.Object({ data: Type.Array(SinkOut) }) },
      handle: (_request, _reply, account) => ({ data: resources.listSinks(account.id).map(shown) }),
    },
    {
      id: 'getSink',
      methods: ['GET'],
      paths: ['/api/sinks/{id_or_name}'],
      summary: 'Read a sink',
      auth: true,
      answer: { description: 'The sink.', schema: SinkOut },
      errors: [404],
      handle: (request, _reply, account) => shown(found(request, account)),
    },
    {
      id: 'updateSink',
      methods: ['PATCH', 'PUT'],
      paths: ['/api/sinks/{id_or_name}'],
      summary: 'Update a sink',
      description:
        'Both methods are partial: what is absent stays. The answer comes when the change has taken effect. With another number of partitions, or other groups, that is for messages committed from then on: those before are delivered first.',
      auth: true,
      body: SinkPatch,
      maxBodyBytes: MAX_SINK_BYTES,
      answer: { description: 'The sink as it is now.', schema: SinkOut },
      errors: [400, 404, 413, 422, 503],
      handle: async (request, _reply, account) => {
        const sink = found(request, account)
        const changes = sinkChanges(sink, objectBody(request))
        return shown(Object.keys(changes).length === 0 ? sink : await engine.updateSink(sink.id, changes))
      },
    },
  ]
}
