/** What comes to a sink, for people who look on: by long polls that leave no trace (docs/messages.md). */
import { Type } from 'typebox'
import type { EngineVerbs } from '../../actors/engine.ts'
import { EngineError } from '../../engine/errors.ts'
import type { ResourceLookup } from '../../engine/state/resource-cache.ts'
import type { OpenReceives } from '../cluster/receive-call.ts'
import { JSON_TYPE, queryOf, type Operation } from '../http/operation.ts'
import { namedResource } from '../http/resource-routes.ts'
import { waitOf } from './pull-routes.ts'

const MAX_LIMIT = 1_000
const MAX_AFTER_CHARS = 8_000

const Seen = Type.Object({
  position: Type.String({ description: 'the same whenever it is looked at' }),
  table: Type.String({ description: 'schema.table' }),
  action: Type.String(),
  commit_lsn: Type.String({ description: 'in decimal digits' }),
  commit_idx: Type.Integer(),
  commit_timestamp: Type.String(),
  message: Type.Unknown({ description: 'as it is delivered, behind the functions of the sink; null: it failed, or the sink is sensitive' }),
  routing: Type.Optional(Type.Object({}, { additionalProperties: true, description: 'where it goes, as the routing function says' })),
  error: Type.Optional(Type.Object({ code: Type.String(), message: Type.String() })),
})

/** Makes the route by which people look at what comes to a sink. */
export function tailOperations({
  engine,
  resources,
  receives,
}: Readonly<{ engine: EngineVerbs; resources: ResourceLookup; receives: OpenReceives }>): Operation[] {
  return [
    {
      id: 'tailMessages',
      methods: ['GET'],
      paths: ['/api/sinks/{id_or_name}/messages/tail'],
      summary: 'Look at what comes to a sink',
      description:
        'Reads the log beside the sink, with its tables, actions, filter and functions as they are now. It takes no message from a client and holds back nothing. Without `after` it answers at once with the place where the log ends. What has come since then is told newest last; who asks too seldom, or with a small limit, skips the older ones. After a failure of the source a change may be told twice.',
      scope: 'read',
      head: false,
      query: Type.Object({
        after: Type.Optional(Type.String({ description: '`next` of the answer before' })),
        limit: Type.Optional(Type.Integer({ minimum: 1, maximum: MAX_LIMIT, default: 100 })),
        wait_for: Type.Optional(
          Type.String({ pattern: '^[0-9]+(ms|s|m)?$', description: 'how long to wait for a message: "10s"; 0, and at most 5 minutes' }),
        ),
      }),
      answer: {
        description: 'The newest messages since then.',
        schema: Type.Object({
          data: Type.Array(Seen),
          skipped: Type.Integer({ description: 'older ones that did not fit, those included that the filter would drop' }),
          dropped: Type.Integer({ description: 'by the filter, among the newest' }),
          trimmed: Type.Integer({ description: 'records of the log that were gone before they were looked at' }),
          next: Type.String(),
        }),
      },
      errors: [400, 404, 503],
      handle: async (request, reply, account) => {
        const sink = namedResource(resources, 'sink', request, account)
        const { after, limit = '100', wait_for = 0 } = queryOf(request)
        if (!/^\d{1,4}$/.test(String(limit)) || Number(limit) < 1 || Number(limit) > MAX_LIMIT)
          throw new EngineError('REQUEST_INVALID', `limit must be a whole number from 1 to ${MAX_LIMIT}.`)
        const place = after === undefined ? undefined : String(after).slice(0, MAX_AFTER_CHARS)
        if (receives.stopping) throw new EngineError('STOPPING', 'the service is stopping')
        const call = receives.begin(reply.raw)
        try {
          const page = await engine.tail(sink.id, { after: place, limit: Number(limit), waitMs: waitOf(wait_for), signal: call.signal })
          if (call.gone) return void reply.hijack()
          const { messages, ...rest } = page
          reply.header('content-type', JSON_TYPE)
          return `{"data":[${messages.join()}],${JSON.stringify(rest).slice(1)}`
        } finally {
          call.failed()
        }
      },
    },
  ]
}
