/** The management of backfills, which lie below a sink (docs/backfills.md). */
import { Type } from 'typebox'
import type { BackfillEdits } from '../../actors/resources/backfill-edits.ts'
import { askedBackfills, BackfillIn, BackfillOut, backfillOut, BackfillPatch, wantedState } from '../../actors/resources/backfill-form.ts'
import { askedSourceOf, wantedBackfills } from '../../actors/resources/wanted-backfills.ts'
import { EngineError } from '../../engine/errors.ts'
import type { ResourceLookup } from '../../engine/state/resource-cache.ts'
import { objectBody, pathParameter, type Operation } from '../http/operation.ts'
import { namedResource } from '../http/resource-routes.ts'

/** The calls that the routes of backfills make. */
export type BackfillPorts = Readonly<{
  resources: ResourceLookup
  backfills: Pick<BackfillEdits, 'list' | 'unended' | 'find' | 'start' | 'move' | 'delete'>
}>

const LIST = '/api/sinks/{id_or_name}/backfills'
const ONE = `${LIST}/{backfill_id}`
/** A list of tables may be long. */
const MAX_BYTES = 1_048_576

/** Makes the routes of backfills. */
export function backfillOperations({ resources, backfills }: BackfillPorts): Operation[] {
  return [
    {
      id: 'listBackfills',
      methods: ['GET'],
      paths: [LIST],
      summary: 'List the backfills of a sink',
      auth: true,
      answer: { description: 'All of them, newest first.', schema: Type.Object({ data: Type.Array(BackfillOut) }) },
      errors: [404, 503],
      handle: async (request, _reply, account) => {
        const sink = namedResource(resources, 'sink', request, account)
        return { data: (await backfills.list(sink)).map((backfill) => backfillOut(backfill, sink)) }
      },
    },
    {
      id: 'createBackfill',
      methods: ['POST'],
      paths: [LIST],
      summary: 'Begin to read the rows of a table into a sink',
      description:
        'The rows that are there come as messages of action read, beside the stream. Without table, and with an empty body, it is of the one table that the source of the sink includes. Several tables are begun together or not at all. That of a sink that is disabled waits until it is enabled.',
      auth: true,
      body: BackfillIn,
      maxBodyBytes: MAX_BYTES,
      answer: {
        description: 'The backfill; a list of them where tables was given.',
        schema: Type.Union([BackfillOut, Type.Object({ data: Type.Array(BackfillOut) })]),
      },
      errors: [400, 404, 413, 422, 503],
      handle: async (request, _reply, account) => {
        const sink = namedResource(resources, 'sink', request, account)
        const asked = askedBackfills(objectBody(request), sink)
        const database = resources.find('database', account.id, sink.databaseId)
        if (!database) throw new EngineError('NOT_FOUND', 'the database of the sink does not exist any more')
        const begun = await backfills.start(sink, await wantedBackfills(askedSourceOf(database), sink.source, asked))
        const shown = begun.map((backfill) => backfillOut(backfill, sink))
        return asked.isList ? { data: shown } : shown[0]
      },
    },
    {
      id: 'getBackfill',
      methods: ['GET'],
      paths: [ONE],
      summary: 'Read a backfill',
      auth: true,
      answer: { description: 'The backfill.', schema: BackfillOut },
      errors: [404, 503],
      handle: async (request, _reply, account) => {
        const sink = namedResource(resources, 'sink', request, account)
        return backfillOut(await backfills.find(sink, pathParameter(request, 'backfill_id')), sink)
      },
    },
    {
      id: 'updateBackfill',
      methods: ['PATCH', 'PUT'],
      paths: [ONE],
      summary: 'Pause, resume or cancel a backfill',
      description:
        'One that is active can be paused or cancelled, one that is paused resumed (active) or cancelled. One that failed can be resumed behind its last durable page when what it failed for is mended. One that was completed or cancelled stays as it is. Rows that were read before are delivered all the same.',
      auth: true,
      body: BackfillPatch,
      answer: { description: 'The backfill as it is now.', schema: BackfillOut },
      errors: [400, 404, 422, 503],
      handle: async (request, _reply, account) => {
        const sink = namedResource(resources, 'sink', request, account)
        const state = wantedState(objectBody(request))
        return backfillOut(await backfills.move(sink, pathParameter(request, 'backfill_id'), { state }), sink)
      },
    },
    {
      id: 'deleteBackfill',
      methods: ['DELETE'],
      paths: [ONE],
      summary: 'Delete a backfill',
      description: 'One that has not ended is cancelled. Rows that were read before are delivered all the same.',
      auth: true,
      answer: { description: 'It is deleted.', schema: Type.Object({ id: Type.String(), deleted: Type.Literal(true) }) },
      errors: [404, 503],
      handle: async (request, _reply, account) => {
        const sink = namedResource(resources, 'sink', request, account)
        const { id } = await backfills.find(sink, pathParameter(request, 'backfill_id'))
        await backfills.delete(sink, id)
        return { id, deleted: true }
      },
    },
  ]
}
