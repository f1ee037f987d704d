/** The messages of a sink that need somebody's eye: those that wait to be tried again, and those that were given up. */
import { Type } from 'typebox'
import { EngineError } from '../engine/errors.ts'
import type { EnginePort, ResourcePort } from './engine-port.ts'
import { pathParameter, type Operation } from './operation.ts'

const MAX_LIMIT = 1_000
const Nullable = Type.Union([Type.String(), Type.Null()])
const MessageOut = Type.Object({
  id: Type.String({ description: 'as the ack_id of a pull sink' }),
  state: Type.String({ description: 'backing off, pending re-delivery or discarded' }),
  action: Type.String(),
  record_pks: Type.Array(Nullable),
  commit_lsn: Type.String({ description: 'in decimal digits' }),
  commit_idx: Type.Integer(),
  commit_timestamp: Type.String(),
  deliver_count: Type.Integer(),
  not_visible_until: Nullable,
  error: Nullable,
  attempts: Type.Array(Type.Unknown(), {
    description: 'newest first: time, code, and the answer’s status, headers and body, cut at a limit',
  }),
})

export function messageOperations({ engine, resources }: Readonly<{ engine: EnginePort; resources: ResourcePort }>): Operation[] {
  return [
    {
      id: 'listMessages',
      methods: ['GET'],
      paths: ['/api/sinks/{id_or_name}/messages'],
      summary: 'List the messages of a sink that wait outside the log or were discarded',
      description: 'In the order of their commits, with the attempts to deliver them. What was delivered is not listed.',
      auth: true,
      query: Type.Object({
        state: Type.Optional(Type.Union([Type.Literal('open'), Type.Literal('discarded')], { description: 'absent: both' })),
        limit: Type.Optional(Type.Integer({ minimum: 1, maximum: MAX_LIMIT, default: 100 })),
      }),
      answer: { description: 'The messages.', schema: Type.Object({ data: Type.Array(MessageOut) }) },
      errors: [400, 404, 503],
      handle: async (request, _reply, account) => {
        const idOrName = pathParameter(request, 'id_or_name')
        const sink = resources.findSink(account.id, idOrName)
        if (!sink) throw new EngineError('NOT_FOUND', `There is no sink "${idOrName.slice(0, 100)}".`)
        const { state, limit = '100' } = request.query as { state?: string; limit?: string }
        if (state !== undefined && state !== 'open' && state !== 'discarded')
          throw new EngineError('REQUEST_INVALID', 'state must be open or discarded.')
        if (!/^\d{1,4}$/.test(limit) || Number(limit) < 1 || Number(limit) > MAX_LIMIT)
          throw new EngineError('REQUEST_INVALID', `limit must be a whole number from 1 to ${MAX_LIMIT}.`)
        return { data: await engine.messages(sink.id, { state, limit: Number(limit) }) }
      },
    },
  ]
}
