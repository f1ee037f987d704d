/** The messages of a sink that people look at: those that wait to be tried again, were given up, or were delivered lately; and what to do with them. */
import type { FastifyRequest } from 'fastify'
import { Type } from 'typebox'
import { EngineError } from '../../engine/errors.ts'
import { isObject } from '../../engine/json.ts'
import type { Account, Sink } from '../../engine/state/resources.ts'
import type { EngineVerbs } from '../../actors/engine.ts'
import type { MessageEdit } from '../../engine/dispatch/parked/message-records.ts'
import type { MessageChoice } from '../../actors/sink/running-sink.ts'
import type { ResourceLookup } from '../../engine/state/resource-cache.ts'
import { JSON_TYPE, objectBody, pathParameter, queryOf, type Operation } from '../http/operation.ts'
import { namedResource } from '../http/resource-routes.ts'

const MAX_LIMIT = 1_000
const MAX_IDS = 1_000
const STATES = ['open', 'failing', 'discarded'] as const
const LISTED = [...STATES, 'delivered'] as const
const ORDERS = ['oldest', 'newest'] as const
const Nullable = Type.Union([Type.String(), Type.Null()])
const literals = <T extends string>(values: readonly T[]) => values.map((value) => Type.Literal(value))

const fields = {
  id: Type.String({ description: 'as the ack_id of a pull sink' }),
  state: Type.String({ description: 'backing off, pending re-delivery, discarded, delivered or (pull) acknowledged' }),
  table: Nullable,
  action: Type.String(),
  record_pks: Type.Array(Nullable),
  commit_lsn: Type.String({ description: 'in decimal digits' }),
  commit_idx: Type.Integer(),
  commit_timestamp: Type.String(),
  deliver_count: Type.Integer(),
  last_delivered_at: Nullable,
  not_visible_until: Nullable,
  error: Nullable,
  attempts: Type.Array(Type.Unknown(), {
    description: 'newest first: time, code, and the answer’s status, headers and body, cut at a limit',
  }),
}
const MessageOut = Type.Object(fields)
const Made = Type.Object({
  dropped: Type.Boolean({ description: 'by the filter' }),
  output: Type.Optional(Type.Unknown({ description: 'what goes out; absent: the message itself, or nothing' })),
  routing: Type.Optional(
    Type.Object({}, { additionalProperties: true, description: 'where it goes, with all that the function leaves out' }),
  ),
  error: Type.Optional(
    Type.Object({
      code: Type.String(),
      message: Type.String(),
      function: Type.Optional(Type.String()),
      line: Type.Optional(Type.Integer()),
      column: Type.Optional(Type.Integer()),
      file: Type.Optional(Type.String()),
    }),
  ),
  logs: Type.Array(Type.String(), { description: 'what they print' }),
})
const MessageDetail = Type.Object({
  ...fields,
  message: Type.Unknown({
    description: 'the message before any function, with the row that enriches it; null: not kept, or the sink is sensitive',
  }),
  functions: Type.Union([Made, Type.Null()], {
    description: 'what the functions of the sink, as they are now, make of it; null: it has none, or there is no message to run them on',
  }),
})

const EDIT_NAMES = ['redeliver', 'acknowledge', 'discard'] as const satisfies readonly MessageEdit[]
const EDITS: Readonly<Record<MessageEdit, Readonly<{ one: string; many: string; description: string }>>> = {
  redeliver: {
    one: 'Deliver a message again at once',
    many: 'Deliver messages again at once',
    description:
      'A back-off ends. What was discarded is delivered after all, as if it had never failed, and after later messages of its row that went out meanwhile. A destination that keeps documents gets the row as it is by then, and nothing of a row that is gone.',
  },
  acknowledge: {
    one: 'Drop a message as if it had been delivered',
    many: 'Drop messages as if they had been delivered',
    description: 'The messages that wait behind it go on.',
  },
  discard: {
    one: 'Give a message up',
    many: 'Give messages up',
    description: 'It stays on record among the newest 1,000 discarded ones; the messages that wait behind it go on.',
  },
}

/** Makes the routes of the messages of a sink that people look at. */
export function messageOperations({ engine, resources }: Readonly<{ engine: EngineVerbs; resources: ResourceLookup }>): Operation[] {
  const sinkOf = (request: FastifyRequest, account: Account): Sink => namedResource(resources, 'sink', request, account)
  /** The message as JSON, its content byte for byte: numbers may have more digits than a JavaScript number keeps. */
  const shown = async (sink: Sink, id: string): Promise<string> => {
    const found = await engine.message(sink.id, { id, withFunctions: true })
    if (!found) throw notThere(id)
    return `${JSON.stringify(found.record).slice(0, -1)},"message":${found.message ?? 'null'},"functions":${found.functions ?? 'null'}}`
  }
  const list: Operation = {
    id: 'listMessages',
    methods: ['GET'],
    paths: ['/api/sinks/{id_or_name}/messages'],
    summary: 'List the messages of a sink that wait outside the log, were discarded, or were delivered',
    description:
      'In the order of their commits, with the newest attempts to deliver them. Of what was delivered the newest 1,000 since each process began, newest first and in one page.',
    scope: 'read',
    query: Type.Object({
      state: Type.Optional(
        Type.Union(literals(LISTED), {
          description: 'open: those that wait; failing: those of them that have failed; absent: open and discarded',
        }),
      ),
      order: Type.Optional(Type.Union(literals(ORDERS), { default: 'oldest' })),
      limit: Type.Optional(Type.Integer({ minimum: 1, maximum: MAX_LIMIT, default: 100 })),
      cursor: Type.Optional(Type.String({ description: 'next_cursor of the page before' })),
    }),
    answer: {
      description: 'The messages; next_cursor when there are more.',
      schema: Type.Object({ data: Type.Array(MessageOut), next_cursor: Type.Optional(Type.String()) }),
    },
    errors: [400, 404, 503],
    handle: async (request, _reply, account) => {
      const sink = sinkOf(request, account)
      const { state, order, limit: given = '100', cursor } = queryOf(request)
      const limit = String(given)
      if (!/^\d{1,4}$/.test(limit) || Number(limit) < 1 || Number(limit) > MAX_LIMIT)
        throw new EngineError('REQUEST_INVALID', `limit must be a whole number from 1 to ${MAX_LIMIT}.`)
      const listed = oneOf('state', state, LISTED)
      if (listed === 'delivered') return { data: await engine.delivered(sink.id, { limit: Number(limit) }) }
      const { messages, next } = await engine.messages(sink.id, {
        state: listed,
        order: oneOf('order', order, ORDERS),
        after: cursor === undefined ? undefined : String(cursor),
        limit: Number(limit),
      })
      return { data: messages, ...(next !== undefined && { next_cursor: next }) }
    },
  }
  const get: Operation = {
    id: 'getMessage',
    methods: ['GET'],
    paths: ['/api/sinks/{id_or_name}/messages/{message}'],
    summary: 'Show one message with its content and the attempts to deliver it',
    scope: 'read',
    answer: { description: 'The message.', schema: MessageDetail },
    errors: [404, 503],
    handle: async (request, reply, account) => {
      const text = await shown(sinkOf(request, account), pathParameter(request, 'message'))
      reply.header('content-type', JSON_TYPE)
      return text
    },
  }
  const edits = EDIT_NAMES.flatMap((edit): Operation[] => [
    {
      id: `${edit}Message`,
      methods: ['POST'],
      paths: [`/api/sinks/{id_or_name}/messages/{message}/${edit}`],
      summary: EDITS[edit].one,
      noted: { action: `${edit} message`, kind: 'sink' },
      description: EDITS[edit].description,
      scope: 'manage',
      answer: { description: 'Done.', schema: Type.Object({ success: Type.Literal(true), messages: Type.Integer() }) },
      errors: [404, 409, 503],
      handle: async (request, _reply, account) => {
        const sink = sinkOf(request, account)
        const id = pathParameter(request, 'message')
        const found = await engine.message(sink.id, { id, withFunctions: false })
        if (!found) throw notThere(id)
        const { attempts, state } = found.record
        if (state === 'delivered' || state === 'acknowledged') throw notThere(id)
        const [newest]: readonly unknown[] = attempts
        if (edit === 'redeliver' && state === 'discarded' && isObject(newest) && newest['code'] === 'MESSAGE_TOO_LARGE')
          throw new EngineError(
            'MESSAGE_NOT_KEPT',
            "The message was larger than MAX_MESSAGE_MB: its content was not kept, so it can't be delivered again.",
          )
        return done(await engine.editMessages(sink.id, { edit, choice: [id] }))
      },
    },
    {
      id: `${edit}Messages`,
      methods: ['POST'],
      paths: [`/api/sinks/{id_or_name}/messages/${edit}`],
      summary: EDITS[edit].many,
      noted: { action: `${edit} messages`, kind: 'sink' },
      description: `By their ids, or all of a state. ${EDITS[edit].description}`,
      scope: 'manage',
      body: Type.Object({
        ids: Type.Optional(Type.Array(Type.String(), { minItems: 1, maxItems: MAX_IDS })),
        state: Type.Optional(Type.Union(literals(statesFor(edit)))),
      }),
      maxBodyBytes: MAX_IDS * 100,
      answer: {
        description: 'How many messages it has changed: others were so already, or are not there.',
        schema: Type.Object({ success: Type.Literal(true), messages: Type.Integer() }),
      },
      errors: [400, 404, 503],
      handle: async (request, _reply, account) => {
        const sink = sinkOf(request, account)
        return done(await engine.editMessages(sink.id, { edit, choice: choiceOf(edit, objectBody(request)) }))
      },
    },
  ])
  return [list, get, ...edits]
}

/** Only what was given up can't be given up. */
const statesFor = (edit: MessageEdit) => STATES.filter((state) => edit === 'redeliver' || state !== 'discarded')

/** @throws EngineError PARTITION_MOVING: some were left as they are, because nobody has them at the moment */
function done({ known, served, edited }: Awaited<ReturnType<EngineVerbs['editMessages']>>): { success: true; messages: number } {
  if (served < known)
    throw new EngineError(
      'PARTITION_MOVING',
      `${known - served} of ${known} messages are in partitions that no live process owns; the others are done`,
    )
  return { success: true, messages: edited }
}

function choiceOf(edit: MessageEdit, { ids, state, ...others }: Readonly<Record<string, unknown>>): MessageChoice {
  const [other] = Object.keys(others)
  if (other !== undefined)
    throw new EngineError('REQUEST_INVALID', `"${other.slice(0, 100)}" is not a field of this request: give ids or state.`)
  if ((ids === undefined) === (state === undefined)) throw new EngineError('REQUEST_INVALID', 'Give either ids or state.')
  const all = oneOf('state', state, statesFor(edit))
  if (all !== undefined) return all
  const given: readonly unknown[] = Array.isArray(ids) ? ids : []
  const texts = given.filter((id) => typeof id === 'string')
  if (given.length > 0 && given.length <= MAX_IDS && texts.length === given.length && !texts.includes('')) return texts
  throw new EngineError('REQUEST_INVALID', `ids must be a list of 1 to ${MAX_IDS} ids of messages.`)
}

function oneOf<T extends string>(name: string, value: unknown, values: readonly T[]): T | undefined {
  const found = values.find((one) => one === value)
  if (value !== undefined && found === undefined) throw new EngineError('REQUEST_INVALID', `${name} must be one of ${values.join(', ')}.`)
  return found
}

const notThere = (id: string) => new EngineError('NOT_FOUND', `There is no message "${id.slice(0, 100)}" that is parked or on record.`)
