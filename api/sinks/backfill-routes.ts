/** The management of backfills, which lie below a sink (docs/backfills.md). */
import { Type } from 'typebox'
import type { EngineVerbs } from '../../actors/engine.ts'
import type { BackfillEdits } from '../../actors/resources/backfill-edits.ts'
import {
  askedBackfills,
  BackfillIn,
  BackfillOut,
  backfillOut,
  BackfillPatch,
  wantedState,
  type ShownBackfill,
} from '../../actors/resources/backfill-form.ts'
import { askedSourceOf, wantedBackfills } from '../../actors/resources/wanted-backfills.ts'
import { EngineError } from '../../engine/errors.ts'
import type { Backfill } from '../../engine/state/backfills.ts'
import type { ResourceLookup } from '../../engine/state/resource-cache.ts'
import { objectBody, pathParameter, type Operation } from '../http/operation.ts'
import { MAX_RESOURCE_BYTES, namedResource } from '../http/resource-routes.ts'
import { listOut, pageOf, PageQuery } from '../http/pages.ts'

/** The calls that the routes of backfills make. */
export type BackfillPorts = Readonly<{
  engine: Pick<EngineVerbs, 'waitingBackfills'>
  resources: ResourceLookup
  backfills: Pick<BackfillEdits, 'list' | 'unended' | 'find' | 'start' | 'move' | 'delete'>
}>

const LIST = '/api/sinks/{id_or_name}/backfills'
const ONE = `${LIST}/{backfill_id}`

/** Adds why those that are active stand still, as the process that reads them says. */
export async function withCauses(engine: BackfillPorts['engine'], backfills: readonly Backfill[]): Promise<readonly ShownBackfill[]> {
  const sinkIds = new Set(backfills.flatMap(({ state, sinkId }) => (state === 'active' ? [sinkId] : [])))
  if (sinkIds.size === 0) return backfills
  const waits = await engine.waitingBackfills([...sinkIds])
  return backfills.map((backfill) => (backfill.state === 'active' ? { ...backfill, waiting: waits[backfill.id] } : backfill))
}

/** Makes the routes of backfills. */
export function backfillOperations({ engine, resources, backfills }: BackfillPorts): Operation[] {
  return [
    {
      id: 'listBackfills',
      methods: ['GET'],
      paths: [LIST],
      summary: 'List the backfills of a sink',
      scope: 'read',
      query: PageQuery,
      answer: { description: 'All of them, newest first, or a page of them.', schema: listOut(BackfillOut) },
      errors: [404, 503],
      handle: async (request, _reply, account) => {
        const sink = namedResource(resources, 'sink', request, account)
        const key = ({ insertedAt, id }: Backfill) => `${insertedAt.toISOString()} ${id}`
        const { those, next } = pageOf(request, await backfills.list(sink), { key, isNewestFirst: true })
        return { data: (await withCauses(engine, those)).map((backfill) => backfillOut(backfill, sink)), ...next }
      },
    },
    {
      id: 'createBackfill',
      methods: ['POST'],
      paths: [LIST],
      summary: 'Begin to read the rows of a table into a sink',
      description:
        'The rows that are there come as messages of action read, beside the stream. Without table, and with an empty body, it is of the one table that the source of the sink includes. Several tables are begun together or not at all. where is one expression of SQL that calls no volatile function. That of a sink that is disabled waits until it is enabled.',
      scope: 'manage',
      body: BackfillIn,
      maxBodyBytes: MAX_RESOURCE_BYTES,
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
      scope: 'read',
      answer: { description: 'The backfill.', schema: BackfillOut },
      errors: [404, 503],
      handle: async (request, _reply, account) => {
        const sink = namedResource(resources, 'sink', request, account)
        const found = await backfills.find(sink, pathParameter(request, 'backfill_id'))
        return (await withCauses(engine, [found])).map((backfill) => backfillOut(backfill, sink))[0]
      },
    },
    {
      id: 'updateBackfill',
      methods: ['PATCH', 'PUT'],
      paths: [ONE],
      summary: 'Pause, resume or cancel a backfill',
      description:
        'One that is active can be paused or cancelled, one that is paused resumed (active) or cancelled. One that failed can be resumed behind its last durable page when what it failed for is mended. One that was completed or cancelled stays as it is. Rows that were read before are delivered all the same.',
      scope: 'manage',
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
      scope: 'manage',
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
