/** The management of sinks (contract 9.2), and their replay. */
import { Type } from 'typebox'
import type { FastifyRequest } from 'fastify'
import { EngineError } from '../../engine/errors.ts'
import type { Account, Sink } from '../../engine/state/resources.ts'
import type { EngineVerbs } from '../../actors/engine.ts'
import type { ResourceLookup } from '../../engine/state/resource-cache.ts'
import { TestOut, tested } from './connection-test.ts'
import { objectBody, pathParameter, type Operation } from '../http/operation.ts'
import { ReplayBody, ReplayOut, replayOut, replayTarget } from './replay-form.ts'
import { idleHealth, newSink, sinkChanges, sinkOut, SinkOut, SinkPatch } from './sink-form.ts'

const MAX_SINK_BYTES = 1_048_576

export function sinkOperations({ engine, resources }: Readonly<{ engine: EngineVerbs; resources: ResourceLookup }>): Operation[] {
  const allShown = async (sinks: readonly Sink[]) => {
    const health = await engine.sinkHealth(sinks.map(({ id }) => id))
    return sinks.map((sink) => sinkOut(sink, health.get(sink.id) ?? idleHealth(sink)))
  }
  const shown = async (sink: Sink) => (await allShown([sink]))[0]
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
      handle: async (_request, _reply, account) => ({ data: await allShown(resources.listSinks(account.id)) }),
    },
    {
      id: 'createSink',
      methods: ['POST'],
      paths: ['/api/sinks'],
      summary: 'Create a sink',
      description: 'It takes what is committed from then on. The answer comes when it has taken effect.',
      auth: true,
      body: SinkPatch,
      maxBodyBytes: MAX_SINK_BYTES,
      answer: { description: 'The sink.', schema: SinkOut },
      errors: [400, 404, 413, 422, 503],
      handle: async (request, _reply, account) => {
        const input = newSink(objectBody(request))
        const database = resources.findDatabase(account.id, input.settings.database)
        if (!database) throw new EngineError('NOT_FOUND', `There is no database "${input.settings.database.slice(0, 100)}".`)
        return shown(await engine.createSink(account, database, { ...input, settings: { ...input.settings, database: database.name } }))
      },
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
        'Both methods are partial: what is absent stays. The answer comes when the change has taken effect, or with ROUTING_NOT_PLACED in `health` when the source can’t be told of it at the moment; it is told as soon as it can be. With another number of partitions, or other groups, that is for messages committed from then on: those before are delivered first.',
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
    {
      id: 'deleteSink',
      methods: ['DELETE'],
      paths: ['/api/sinks/{id_or_name}'],
      summary: 'Delete a sink',
      description: 'With everything that waits for it.',
      auth: true,
      answer: { description: 'It is deleted.', schema: Type.Object({ id: Type.String(), deleted: Type.Literal(true) }) },
      errors: [404, 503],
      handle: async (request, _reply, account) => {
        const { id } = found(request, account)
        await engine.deleteSink(id)
        return { id, deleted: true }
      },
    },
    {
      id: 'testSink',
      methods: ['POST'],
      paths: ['/api/sinks/{id_or_name}/test_connection'],
      summary: 'Test the connection of a sink to its destination',
      description: 'Tries what a delivery needs, and delivers nothing. What is stored stays as it is.',
      auth: true,
      answer: TestOut,
      errors: [404],
      handle: async (request, reply, account) => tested(reply, await engine.testSink(found(request, account))),
    },
    {
      id: 'replaySink',
      methods: ['POST'],
      paths: ['/api/sinks/{id_or_name}/replay'],
      summary: 'Set a sink back to a time, a position or an offset',
      description:
        'What was committed there or later comes again, acknowledged or not, in order; what was not acknowledged before stays to be delivered. It reaches back as far as the replay window of the sink does. Delivery stops for a moment meanwhile. Acknowledgements of messages that were received before it have no effect until they have come again.',
      auth: true,
      body: ReplayBody,
      answer: { description: 'It has taken effect.', schema: ReplayOut },
      errors: [400, 404, 409, 422, 503],
      handle: async (request, _reply, account) => {
        const sink = found(request, account)
        return replayOut(await engine.replay(sink.id, replayTarget(objectBody(request), sink)))
      },
    },
  ]
}
