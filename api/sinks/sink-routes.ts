/** The management of sinks (docs/pull-api.md), and their replay (docs/replay.md). */
import type { EngineVerbs } from '../../actors/engine.ts'
import type { BackfillEdits } from '../../actors/resources/backfill-edits.ts'
import { idleHealth, newSink, sinkChanges, sinkOut, SinkOut, SinkPatch } from '../../actors/resources/sink-form.ts'
import { EngineError } from '../../engine/errors.ts'
import { objectBody, type Operation } from '../http/operation.ts'
import { namedResource, resourceOperations, type ResourcePorts } from '../http/resource-routes.ts'
import { withCauses } from './backfill-routes.ts'
import { ReplayBody, ReplayOut, replayOut, replayTarget } from './replay-form.ts'

/** Makes the routes of sinks. */
export function sinkOperations(
  ports: ResourcePorts & Readonly<{ engine: EngineVerbs; backfills?: Pick<BackfillEdits, 'unended'> | undefined }>,
): Operation[] {
  const { engine, resources, backfills } = ports
  return [
    ...resourceOperations(ports, {
      type: 'sink',
      path: '/api/sinks',
      id: 'Sink',
      noun: 'a sink',
      form: SinkPatch,
      out: SinkOut,
      descriptions: {
        create:
          'It takes what is committed from then on, and with initial_backfill the rows that are there. The answer comes when it has taken effect.',
        update:
          'Both methods are partial: what is absent stays. The answer comes when the change has taken effect, or with ROUTING_NOT_PLACED in `health` when the source can’t be told of it at the moment; it is told as soon as it can be. With another number of partitions, or other groups, that is for messages committed from then on: those before are delivered first.',
        delete: 'With everything that waits for it.',
      },
      errors: { create: [404], delete: [404, 503] },
      shown: async (sinks) => {
        const [health, unended = []] = await Promise.all([engine.sinkHealth(sinks.map(({ id }) => id)), backfills?.unended(sinks)])
        const bySink = Map.groupBy(await withCauses(engine, unended), ({ sinkId }) => sinkId)
        return sinks.map((sink) => sinkOut(sink, health[sink.id] ?? idleHealth(sink), bySink.get(sink.id)))
      },
      input: (body, account) => {
        const sink = newSink(body)
        const database = resources.find('database', account.id, sink.database)
        if (!database) throw new EngineError('NOT_FOUND', `There is no database "${sink.database.slice(0, 100)}".`)
        return { ...sink, database: database.name }
      },
      changes: (body, sink) => sinkChanges(sink, body),
      test: {
        summary: 'Test the connection of a sink to its destination',
        description: 'Tries what a delivery needs, and delivers nothing. What is stored stays as it is.',
        ask: (sink) => engine.testSink(sink),
      },
    }),
    {
      id: 'replaySink',
      methods: ['POST'],
      paths: ['/api/sinks/{id_or_name}/replay'],
      summary: 'Set a sink back to a time, a position or an offset',
      noted: { action: 'replay', kind: 'sink' },
      description:
        'What was committed there or later comes again, acknowledged or not, in order; what was not acknowledged before stays to be delivered. It reaches back as far as the replay window of the sink does. Delivery stops for a moment meanwhile. Acknowledgements of messages that were received before it have no effect until they have come again.',
      scope: 'manage',
      body: ReplayBody,
      answer: { description: 'It has taken effect.', schema: ReplayOut },
      errors: [400, 404, 409, 422, 503],
      handle: async (request, _reply, account) => {
        const sink = namedResource(resources, 'sink', request, account)
        return replayOut(await engine.replay(sink.id, replayTarget(objectBody(request), sink)))
      },
    },
  ]
}
