/** What the process says of itself: alive, ready, its version, and the state of every actor. Liveness is that it answers;
 *  readiness is that every source streams, and is asked apart, so that a database that is down restarts no container. */
import { Type } from 'typebox'
import { EngineError } from '../engine/errors.ts'
import { redactError, redactText } from '../engine/redaction.ts'
import type { ActorStatus, EnginePort } from './engine-port.ts'
import type { Operation } from './operation.ts'

const Actor = Type.Object({
  id: Type.String(),
  kind: Type.String(),
  name: Type.Union([Type.String(), Type.Null()]),
  state: Type.String(),
  since: Type.Union([Type.String(), Type.Null()]),
  last_error: Type.Union([
    Type.Object({ code: Type.Union([Type.String(), Type.Null()]), message: Type.String(), at: Type.String() }),
    Type.Null(),
  ]),
  details: Type.Object({}, { additionalProperties: true }),
})
const NodeOut = Type.Object({ name: Type.String(), ready: Type.Boolean(), actors: Type.Array(Actor) })
const Waiting = Type.Object({
  kind: Type.String(),
  name: Type.String(),
  state: Type.String(),
  code: Type.Union([Type.String(), Type.Null()]),
})

export type Identity = Readonly<{ version: string; nodeName: string }>

export function infoOperations({ engine, identity }: Readonly<{ engine: EnginePort; identity: Identity }>): Operation[] {
  const { version, nodeName } = identity
  return [
    {
      id: 'health',
      methods: ['GET'],
      paths: ['/health', '/api/health'],
      summary: 'Liveness',
      auth: false,
      answer: { description: 'The process answers.', schema: Type.Object({ ok: Type.Literal(true), rev: Type.String() }) },
      handle: () => ({ ok: true, rev: version }),
    },
    {
      id: 'ready',
      methods: ['GET'],
      paths: ['/health/ready', '/api/health/ready'],
      summary: 'Readiness',
      auth: false,
      answer: {
        description: 'Every source streams.',
        schema: Type.Object({ ok: Type.Boolean(), waiting: Type.Array(Waiting) }),
        negative: { status: 503, description: 'Some do not; `waiting` names them, with the code of the last error.' },
      },
      handle: (_request, reply) => {
        const { ready, waiting } = engine.ready()
        reply.status(ready ? 200 : 503)
        // open to anyone: names and codes, but no reason, which could hold an address
        return { ok: ready, waiting: waiting.map(({ kind, name, state, code }) => ({ kind, name, state, code: code ?? null })) }
      },
    },
    {
      id: 'version',
      methods: ['GET'],
      paths: ['/info/version', '/api/info/version'],
      summary: 'Version',
      auth: false,
      answer: { description: 'The version that runs.', schema: Type.Object({ version: Type.String() }) },
      handle: () => ({ version }),
    },
    {
      id: 'info',
      methods: ['GET'],
      paths: ['/info', '/api/info'],
      summary: 'Version, nodes, and the state of every actor',
      auth: true,
      answer: {
        description: 'Actors of the account, and those of the process.',
        schema: Type.Object({ version: Type.String(), nodes: Type.Array(NodeOut) }),
      },
      handle: (_request, _reply, account) => {
        const own = engine.actors().filter((actor) => actor.accountId === undefined || actor.accountId === account.id)
        return { version, nodes: [{ name: nodeName, ready: engine.ready().ready, actors: own.map(actorOut) }] }
      },
    },
  ]
}

function actorOut({ id, kind, name, state, since, lastError, details }: ActorStatus): Record<string, unknown> {
  return {
    id,
    kind,
    name: name ?? null,
    state,
    since: since?.toISOString() ?? null,
    last_error: lastError ? { ...errorOut(lastError.error), at: lastError.at.toISOString() } : null,
    details: details ?? {},
  }
}

function errorOut(error: unknown): { code: string | null; message: string } {
  if (!(error instanceof Error)) return { code: null, message: redactText(String(error)) }
  const { message } = redactError(error)
  const code = error instanceof EngineError ? error.code : 'code' in error && typeof error.code === 'string' ? error.code : null
  return { code, message: String(message) }
}
