/** The comparison of a table with the destination of a sink, a page at a time (docs/verify.md). */
import { Type } from 'typebox'
import type { EngineVerbs } from '../../actors/engine.ts'
import type { Verified } from '../../actors/sink/sink-verification.ts'
import { EngineError } from '../../engine/errors.ts'
import { qualified } from '../../engine/postgres/table-name.ts'
import type { ResourceLookup } from '../../engine/state/resource-cache.ts'
import { takesTable } from '../../engine/state/source-filter.ts'
import type { OpenReceives } from '../cluster/receive-call.ts'
import { objectBody, type Operation } from '../http/operation.ts'
import { namedResource } from '../http/resource-routes.ts'

const MAX_LIMIT = 1_000
const WHATS = ['rows', 'sample', 'documents', 'count'] as const
const OrNull = Type.Union([Type.Integer(), Type.Null()])

const VerifyBody = Type.Object(
  {
    table: Type.String({ minLength: 1, description: 'schema.table, without a schema that in public' }),
    what: Type.Optional(
      Type.Union(
        WHATS.map((what) => Type.Literal(what)),
        {
          default: 'rows',
          description:
            'rows: a page of the table, in the order of its key; sample: some of its rows; documents: a page of the index, whether each has its row; count: how many there are on both sides',
        },
      ),
    ),
    after: Type.Optional(Type.String({ description: '`next` of the page before' })),
    limit: Type.Optional(
      Type.Integer({
        minimum: 1,
        maximum: MAX_LIMIT,
        default: 500,
        description: 'rows or documents of the page; of a pull sink, of a sample alone',
      }),
    ),
  },
  { additionalProperties: false },
)

const VerifyOut = Type.Object({
  compared: Type.Integer({ description: 'rows or documents that were compared' }),
  dropped: Type.Integer({ description: 'rows that the filter drops' }),
  failed: Type.Integer({ description: 'rows that functions fail on, or that can be no document' }),
  changing: Type.Integer({ description: 'rows that changed whenever they were looked at' }),
  unknown: Type.Integer({
    description:
      'documents of which it is not known which row they are of; of a pull sink rows of which its stream does not say how they are',
  }),
  differences: Type.Array(
    Type.Object({
      kind: Type.Union([Type.Literal('missing'), Type.Literal('different'), Type.Literal('extra')]),
      id: Type.String({ description: 'of the document' }),
      key: Type.Union([Type.Record(Type.String(), Type.String()), Type.Null()], { description: 'of the row, by columns' }),
    }),
  ),
  rows: OrNull,
  documents: OrNull,
  next: Type.Union([Type.String(), Type.Null()], { description: 'null: this was the last page' }),
  limits: Type.Union([Type.String(), Type.Null()], { description: 'what can’t be compared of this table, in words; null: all can' }),
  settled: Type.Boolean({ description: 'false: the sink stood still, or was too far behind, so differences may be on their way' }),
})

/** Makes the route by which rows and documents are compared. */
export function verifyOperations({
  engine,
  resources,
  receives,
}: Readonly<{ engine: EngineVerbs; resources: ResourceLookup; receives: OpenReceives }>): Operation[] {
  return [
    {
      id: 'verifySink',
      methods: ['POST'],
      paths: ['/api/sinks/{id_or_name}/verify'],
      summary: 'Compare a table with the destination of a sink',
      description:
        'The rows go through the functions of the sink, as they are now, and are compared with the documents that are there. What is on its way is no difference: the sink is waited for while it comes on, for four minutes at most. It changes nothing. For sinks to Elasticsearch, OpenSearch and Meilisearch, and for pull sinks: of these the messages that are kept are folded by key, and compared with the rows before functions.',
      scope: 'manage',
      body: VerifyBody,
      answer: { description: 'What was found.', schema: VerifyOut },
      errors: [400, 404, 422, 503],
      handle: async (request, reply, account): Promise<Verified | undefined> => {
        const sink = namedResource(resources, 'sink', request, account)
        const { table: given, what: wanted = 'rows', after, limit = 500 } = objectBody(request)
        const what = WHATS.find((one) => one === wanted)
        if (what === undefined) throw new EngineError('REQUEST_INVALID', `what must be one of ${WHATS.join(', ')}.`)
        if (typeof given !== 'string' || given === '') throw new EngineError('REQUEST_INVALID', 'table must be the name of a table.')
        if (!Number.isInteger(limit) || Number(limit) < 1 || Number(limit) > MAX_LIMIT)
          throw new EngineError('REQUEST_INVALID', `limit must be a whole number from 1 to ${MAX_LIMIT}.`)
        if (after !== undefined && typeof after !== 'string') throw new EngineError('REQUEST_INVALID', 'after must be a text.')
        const table = qualified(given)
        if (!takesTable(sink.source, table.slice(0, table.indexOf('.')), table)) {
          const reason = `names ${table.slice(0, 100)}, which the sink does not take`
          throw new EngineError('VALIDATION_FAILED', `table ${reason}`, { table: reason })
        }
        if (receives.stopping) throw new EngineError('STOPPING', 'the service is stopping')
        const call = receives.begin(reply.raw)
        try {
          return await engine.verify(sink.id, { what, table, after, limit: Number(limit), signal: call.signal })
        } catch (error) {
          if (!call.signal.aborted) throw error
          if (!call.gone) throw new EngineError('STOPPING', 'the service is stopping')
          return void reply.hijack()
        } finally {
          call.failed()
        }
      },
    },
  ]
}
