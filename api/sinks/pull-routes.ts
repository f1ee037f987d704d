/**
 * Receive, ack and nack of a pull sink (docs/pull-api.md), under `/http_pull_consumers` (flat messages, but for clients of the original)
 * and under the newer paths (nested). The answer of receive is the sink's own bytes, sent as they are; nothing here looks into a message.
 */
import { setTimeout as wait } from 'node:timers/promises'
import { promisify } from 'node:util'
import { constants, gzip } from 'node:zlib'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { Type } from 'typebox'
import { splitTokens } from '../../engine/dispatch/ack-id.ts'
import { EngineError } from '../../engine/errors.ts'
import type { Account, Sink } from '../../engine/state/resources.ts'
import type { EngineVerbs } from '../../actors/engine.ts'
import { OFF_HOLD_MS, type PulledSink, type Receipt } from '../../actors/sink/running-sink.ts'
import type { ResourceLookup } from '../../engine/state/resource-cache.ts'
import type { TokenLookup } from '../../engine/state/token-memory.ts'
import { mayReceive } from '../../engine/state/tokens.ts'
import type { Shape } from '../../sinks/pull.ts'
import { callerOf, requireReceive, tokenInvalid } from '../http/auth.ts'
import { JSON_TYPE, objectBody, pathParameter, queryOf, type Operation } from '../http/operation.ts'
import type { OpenReceives, ReceiveCall } from '../cluster/receive-call.ts'

const MAX_BATCH = 1_000
const MAX_WAIT_MS = 300_000
/** At about 40 bytes an id, 400,000 ids. */
const MAX_ACK_BYTES = 16 * 1_048_576
const MAX_RECEIVE_BYTES = 65_536
/** Below this a network packet takes it whole either way. */
const GZIP_FROM_BYTES = 1_400

const ReceiveParameters = Type.Object({
  batch_size: Type.Optional(
    Type.Union(
      [Type.Integer({ minimum: 1, maximum: MAX_BATCH }), Type.String({ pattern: '^[0-9]+$', description: 'digits' }), Type.Null()],
      {
        default: 1,
        description: 'Number of messages to fetch at most.',
      },
    ),
  ),
  max_batch_size: Type.Optional(
    Type.Union(
      [Type.Integer({ minimum: 1, maximum: MAX_BATCH }), Type.String({ pattern: '^[0-9]+$', description: 'digits' }), Type.Null()],
      {
        description:
          'Alias of batch_size, which wins when both are present. Clients of the original send it, and read nested messages: with it messages come nested, unless shape says otherwise.',
      },
    ),
  ),
  wait_for: Type.Optional(
    Type.Union(
      [
        Type.Integer({ minimum: 0, maximum: MAX_WAIT_MS }),
        Type.String({ pattern: '^[0-9]+(ms|s|m)?$', description: 'digits, with ms, s or m behind them' }),
        Type.Null(),
      ],
      {
        default: 0,
        description: 'How long to wait for a message, in milliseconds or as "5000ms", "60s", "5m"; at most 5 minutes.',
      },
    ),
  ),
  shape: Type.Optional(
    Type.Union([Type.Literal('flat'), Type.Literal('nested')], {
      description: 'Fields of a message beside ack_id (flat) or under data (nested).',
    }),
  ),
  ack_token: Type.Optional(
    Type.Union([Type.Boolean(), Type.Literal('true'), Type.Literal('false'), Type.Null()], {
      default: false,
      description: 'Whether the answer ends with an ack_token, which acknowledges or gives back all of its messages as one of ack_ids.',
    }),
  ),
})

const AckBody = Type.Object({
  ack_ids: Type.Array(Type.String({ minLength: 1 }), {
    minItems: 1,
    description: 'ack_id of messages of receive, or the ack_token of a whole answer; unknown ones are ignored',
  }),
})
const Success = Type.Object({ success: Type.Literal(true) })
const Message = Type.Object(
  {
    ack_id: Type.String(),
    record: Type.Optional(Type.Object({}, { additionalProperties: true })),
    changes: Type.Optional(Type.Union([Type.Object({}, { additionalProperties: true }), Type.Null()])),
    action: Type.Optional(Type.Union(['insert', 'update', 'delete', 'read'].map((action) => Type.Literal(action)))),
    metadata: Type.Optional(Type.Object({}, { additionalProperties: true })),
    data: Type.Optional(
      Type.Unknown({ description: 'nested shape: record, changes, action and metadata; or what the sink’s transform returned' }),
    ),
  },
  { title: 'Message', description: 'One message; which keys stand beside ack_id depends on the shape.' },
)
const Messages = Type.Object(
  {
    data: Type.Array(Message),
    ack_token: Type.Optional(Type.String({ description: 'Where it was asked for and there are messages: stands for the ack_id of each.' })),
  },
  { title: 'Messages' },
)

const FLAT_PATHS = ['/api/http_pull_consumers/{id_or_name}']
const NESTED_PATHS = ['/api/sequin_streams/{id_or_name}', '/api/tailrace_streams/{id_or_name}']

type Ports = Readonly<{ engine: EngineVerbs; resources: ResourceLookup; tokens: TokenLookup; receives: OpenReceives }>

/** Makes the routes of pull sinks. */
export function pullOperations(ports: Ports): Operation[] {
  return [...family(ports, FLAT_PATHS, 'flat'), ...family(ports, NESTED_PATHS, 'nested')]
}

function family({ engine, resources, tokens, receives }: Ports, paths: readonly string[], shape: Shape): Operation[] {
  const suffix = shape === 'flat' ? '' : 'Nested'
  const under = (name: string) => paths.map((path) => `${path}/${name}`)
  const receive = (request: FastifyRequest, reply: FastifyReply, account: Account) => {
    const sink = pullSink(request, resources, account)
    const parameters = receiveParameters(request, shape)
    return answerReceive({ request, reply, sink, parameters, engine, tokens, receives })
  }
  const settle = (name: 'ack' | 'nack') => async (request: FastifyRequest, reply: FastifyReply, account: Account) => {
    const sink = pullSink(request, resources, account)
    const ids = ackIds(objectBody(request))
    await runningSink(engine, sink)[name](ids)
    reply.header('content-type', JSON_TYPE)
    return SUCCESS
  }
  const receiveDescription = `Waits until a message is deliverable or the time is over. Messages come ${shape}${shape === 'flat' ? ', or nested when max_batch_size is given' : ''}; the parameter shape overrides it. A message stays invisible for the sink's ack_wait_ms and comes again when it was not acknowledged.`
  const receiveParts = {
    paths: under('receive'),
    scope: 'receive' as const,
    description: receiveDescription,
    answer: { description: 'Up to batch_size messages; none when the time is over.', schema: Messages },
    errors: [400, 404, 429, 503],
    handle: receive,
  }
  const settling = (name: 'ack' | 'nack') => ({
    id: `${name}${suffix}`,
    methods: ['POST' as const],
    paths: under(name),
    scope: 'receive' as const,
    body: AckBody,
    maxBodyBytes: MAX_ACK_BYTES,
    errors: [400, 404, 413, 503],
    handle: settle(name),
  })
  return [
    {
      ...receiveParts,
      id: `receive${suffix}`,
      methods: ['POST'],
      summary: 'Receive messages',
      body: ReceiveParameters,
      maxBodyBytes: MAX_RECEIVE_BYTES,
    },
    {
      ...receiveParts,
      id: `receiveByGet${suffix}`,
      methods: ['GET'],
      summary: 'Receive messages, parameters as query',
      query: ReceiveParameters,
      head: false,
    },
    {
      ...settling('ack'),
      summary: 'Acknowledge messages',
      description: 'The answer comes when the acknowledgement is durable: an acknowledged message never comes again. Repeating is safe.',
      answer: { description: 'Acknowledged.', schema: Success },
    },
    {
      ...settling('nack'),
      summary: 'Give messages back',
      description: 'The messages are deliverable again at once.',
      answer: { description: 'Given back.', schema: Success },
    },
  ]
}

const SUCCESS = Buffer.from('{"success":true}')
const EMPTY = Buffer.from('{"data":[]}')

/** @throws EngineError SCOPE_MISSING; NOT_FOUND: unknown to the account, or not a pull sink */
function pullSink(request: FastifyRequest, resources: ResourceLookup, account: Account): Sink {
  const idOrName = pathParameter(request, 'id_or_name')
  const sink = resources.find('sink', account.id, idOrName)
  requireReceive(request, sink?.name ?? idOrName)
  if (sink?.destination.type === 'sequin_stream') return sink
  throw new EngineError('NOT_FOUND', `There is no pull sink "${idOrName.slice(0, 100)}".`)
}

function runningSink(engine: EngineVerbs, sink: Sink): PulledSink {
  const running = engine.sink(sink.id)
  if (!running) throw new EngineError('SINK_NOT_RUNNING', `sink "${sink.name}" is not running`, { sink: sink.name, status: sink.status })
  return running
}

type Parameters = Readonly<{ batchSize: number; waitMs: number; shape: Shape; ackToken: boolean }>
type Call = Readonly<{
  request: FastifyRequest
  reply: FastifyReply
  sink: Sink
  parameters: Parameters
  engine: EngineVerbs
  tokens: TokenLookup
  receives: OpenReceives
}>

async function answerReceive({ request, reply, sink, parameters, engine, tokens, receives }: Call): Promise<unknown> {
  if (receives.stopping) throw new EngineError('STOPPING', 'the service is stopping')
  const call = receives.begin(reply.raw)
  let receipt: Receipt | undefined
  try {
    receipt = await take({ engine, sink, parameters, receives }, call)
  } catch (error) {
    call.failed()
    if (!call.signal.aborted) throw error
  }
  if (receipt && parameters.waitMs > 0 && !isStillAllowed(request, sink, tokens)) {
    call.failed()
    receipt.giveBack()
    throw tokenInvalid(request.headers.authorization)
  }
  const stillThere = receipt ? call.took(receipt) : !call.gone
  if (!stillThere) return void reply.hijack() // there is no one to answer
  if (receives.stopping) reply.header('connection', 'close')
  const body = receipt?.body ?? EMPTY
  reply.header('content-type', JSON_TYPE)
  if (body.length < GZIP_FROM_BYTES || !takesGzip(request.headers['accept-encoding'])) return body
  const packed = await packing(body, { level: constants.Z_BEST_SPEED }).catch(() => undefined)
  if (packed) reply.header('content-encoding', 'gzip').header('vary', 'accept-encoding')
  return packed ?? body // the messages are taken: without memory to pack them they go as they are
}
const packing = promisify(gzip)

/** Tells whether a client may have what came while it waited: its token may have been revoked meanwhile. */
function isStillAllowed({ headers, caller: former }: FastifyRequest, sink: Sink, tokens: TokenLookup): boolean {
  if (former?.kind === 'user') return true
  const caller = callerOf(headers.authorization, tokens)
  return caller !== undefined && mayReceive(caller, sink.name)
}

async function take(
  { engine, sink, parameters, receives }: Pick<Call, 'engine' | 'sink' | 'parameters' | 'receives'>,
  call: ReceiveCall,
): Promise<Receipt | undefined> {
  const running = engine.sink(sink.id)
  if (running) return running.receive({ ...parameters, signal: call.signal })
  if (sink.status === 'active') throw new EngineError('SINK_NOT_RUNNING', `sink "${sink.name}" is not running`, { sink: sink.name })
  // a sink that is off may have no actor yet: the client is held here as the actor of one that is off holds it
  if (parameters.waitMs > 0) {
    using places = new DisposableStack()
    places.use(receives.held.take(sink))
    await wait(Math.min(parameters.waitMs, OFF_HOLD_MS), undefined, { signal: call.signal })
  }
  call.failed()
  return undefined
}

/** A body key wins over the same query parameter; null counts as absent. @throws EngineError REQUEST_INVALID */
function receiveParameters(request: FastifyRequest, defaultShape: Shape): Parameters {
  const body = objectBody(request)
  const query = queryOf(request)
  const given = (name: string) => (Object.hasOwn(body, name) ? body[name] : undefined) ?? query[name] ?? undefined
  // clients of the original send max_batch_size always, read `data`, and would acknowledge flat messages as empty ones
  const shape = given('shape') ?? (given('max_batch_size') === undefined ? defaultShape : 'nested')
  if (shape !== 'flat' && shape !== 'nested') throw invalid('shape', '"flat" or "nested"', shape)
  const batchSize = given('batch_size')
  return {
    batchSize: batchSize === undefined ? batchSizeOf('max_batch_size', given('max_batch_size') ?? 1) : batchSizeOf('batch_size', batchSize),
    waitMs: waitOf(given('wait_for') ?? 0),
    shape,
    ackToken: flagOf('ack_token', given('ack_token') ?? false),
  }
}

function batchSizeOf(name: string, value: unknown): number {
  const size = typeof value === 'string' && /^[0-9]+$/.test(value) ? Number(value) : value
  if (typeof size === 'number' && Number.isInteger(size) && size >= 1 && size <= MAX_BATCH) return size
  throw invalid(name, `a whole number from 1 to ${MAX_BATCH}`, value)
}

function flagOf(name: string, value: unknown): boolean {
  if (value === true || value === 'true') return true
  if (value === false || value === 'false') return false
  throw invalid(name, 'true or false', value)
}

const UNIT_MS: Readonly<Record<string, number>> = { ms: 1, s: 1_000, m: 60_000 }

/** Reads how long a client waits, in milliseconds. @throws EngineError REQUEST_INVALID */
export function waitOf(value: unknown): number {
  const [, digits, unit] = (typeof value === 'string' && /^([0-9]+)(ms|s|m)?$/.exec(value)) || []
  const ms = digits === undefined ? value : Number(digits) * (UNIT_MS[unit ?? 'ms'] ?? NaN)
  if (typeof ms === 'number' && Number.isInteger(ms) && ms >= 0 && ms <= MAX_WAIT_MS) return ms
  throw invalid('wait_for', `milliseconds from 0 to ${MAX_WAIT_MS}, or a duration such as "5000ms", "60s" or "5m"`, value)
}

/** A loop over known strings: measured faster than a compiled schema. @throws EngineError REQUEST_INVALID */
function ackIds(body: Readonly<Record<string, unknown>>): readonly string[] {
  const ids = Object.hasOwn(body, 'ack_ids') ? body['ack_ids'] : undefined
  if (!Array.isArray(ids) || ids.length === 0) throw invalid('ack_ids', 'a list of at least one ack_id', ids)
  for (let i = 0; i < ids.length; i++) {
    const id: unknown = ids[i]
    if (typeof id !== 'string' || id === '') throw invalid(`ack_ids[${i}]`, 'a text that is not empty', id)
  }
  return splitTokens(ids as string[])
}

function invalid(name: string, takes: string, came: unknown): EngineError {
  return new EngineError('REQUEST_INVALID', `${name} must be ${takes}; ${described(came)} came.`, { parameter: name })
}

/** A short word for what came: kinds of compound values, not their content. */
function described(value: unknown): string {
  if (value === undefined) return 'nothing'
  if (value === null) return 'null'
  if (Array.isArray(value)) return value.length === 0 ? 'an empty list' : 'a list'
  if (typeof value === 'object') return 'an object'
  return typeof value === 'string' ? JSON.stringify(value.slice(0, 60)) : String(value)
}

/** gzip is asked for by name and not with q=0. */
function takesGzip(accept: string | string[] | undefined): boolean {
  if (typeof accept !== 'string' || !accept.includes('gzip')) return false
  return accept.split(',').some((part) => /^\s*gzip\s*(?:;\s*q\s*=\s*(?!0(?:\.0*)?\s*$).*)?$/i.test(part))
}
