/** Serves what the process says of itself: alive, ready, its version, and the state of every actor. Liveness is that it answers;
 *  readiness is that every source streams, and is asked apart, so that a database that is down restarts no container. */
import { Type } from 'typebox'
import type { StreamStatus } from '../engine/status.ts'
import type { EngineVerbs } from '../actors/engine.ts'
import { aboutSelf, nodeOut, NodeOut, reportOf, type Identity, type KnownNode } from './cluster/node-report.ts'
import type { Operation } from './http/operation.ts'

const About = Type.Object({
  name: Type.String(),
  version: Type.String(),
  about: Type.String(),
  api: Type.String(),
  openapi: Type.String(),
  health: Type.String(),
  documentation: Type.String(),
})

const Waiting = Type.Object({
  kind: Type.String(),
  state: Type.String(),
  code: Type.Union([Type.String(), Type.Null()]),
  count: Type.Integer(),
})

const Disabled = Type.Integer({ description: 'databases whose slot is disabled: they are not read, and not waited for' })

const Offset = Type.Integer({ description: 'a record of the log' })
const StreamOut = Type.Object({
  topic: Type.String({ description: 'of a stream (stream.…), or of what one sink has left to deliver of one (copy.…)' }),
  database_id: Type.String(),
  database: Type.String(),
  selects: Type.Union([Type.String({ description: 'in short' }), Type.Null()]),
  partitions: Type.Integer(),
  bytes: Type.Integer({ description: 'in the log' }),
  readers: Type.Array(
    Type.Object({
      sink_id: Type.String(),
      sink: Type.String(),
      status: Type.String({ description: 'of the sink' }),
      generation: Type.Integer(),
      state: Type.String({
        description:
          'reading; leaving: it has what is left of the stream to deliver, and then another one, or the sink is disabled; kept: it is delivered, and may be replayed',
      }),
      backlog_bytes: Type.Integer({ description: 'not finished, in the log and parked' }),
      others_bytes: Type.Integer({ description: 'of messages that its actions leave out, and that it has not passed by yet' }),
      held_bytes: Type.Integer({ description: 'kept for it, as the last reader of the stream, although others need them no more' }),
      partitions: Type.Array(
        Type.Object({
          partition: Type.Integer(),
          committed: Offset,
          line: Type.Integer({ description: 'the first record that it needs, for delivery or for a replay' }),
          backlog_bytes: Type.Integer({ description: 'in the log' }),
          others_bytes: Type.Integer(),
          held_bytes: Type.Integer(),
        }),
      ),
    }),
    { description: 'generations of sinks' },
  ),
})

function streamOut(stream: StreamStatus): Record<string, unknown> {
  const { topic, databaseId, database, selects = null, partitions, bytes, readers } = stream
  return {
    topic,
    database_id: databaseId,
    database,
    selects,
    partitions,
    bytes: Math.round(bytes),
    readers: readers.map(({ sinkId, sink, status, generation, state, partitions: rows, ...reader }) => ({
      sink_id: sinkId,
      sink,
      status,
      generation,
      state,
      ...bytesOut(reader),
      partitions: rows.map(({ partition, committed, line, ...row }) => ({ partition, committed, line, ...bytesOut(row) })),
    })),
  }
}

/** Rounds figures of bytes, which may be estimates where the log is in Kafka. */
const bytesOut = (of: Readonly<{ backlogBytes: number; othersBytes: number; heldBytes: number }>) => ({
  backlog_bytes: Math.round(of.backlogBytes),
  others_bytes: Math.round(of.othersBytes),
  held_bytes: Math.round(of.heldBytes),
})

/**
 * Makes the routes that tell how the service is. @param nodes every process of the cluster as one account may see it; absent: this
 * one is alone
 */
export function infoOperations({
  engine,
  identity,
  nodes = async () => [{ ...aboutSelf(identity), reachable: true, report: reportOf(engine) }],
}: Readonly<{ engine: EngineVerbs; identity: Identity; nodes?: () => Promise<readonly KnownNode[]> }>): Operation[] {
  const { version } = identity
  return [
    {
      id: 'about',
      methods: ['GET'],
      paths: ['/'],
      summary: 'What this is',
      description: 'Where to go from here. Probes that ask for the root of a service get their 200.',
      scope: 'open',
      answer: { description: 'Its name, and its addresses.', schema: About },
      handle: () => ({
        name: 'Tailrace',
        version,
        about: 'Postgres change data capture',
        api: '/api',
        openapi: '/api/openapi.json',
        health: '/health',
        documentation: 'the folder docs/ of the program',
      }),
    },
    {
      id: 'health',
      methods: ['GET'],
      paths: ['/health', '/api/health'],
      summary: 'Liveness',
      scope: 'open',
      answer: { description: 'The process answers.', schema: Type.Object({ ok: Type.Literal(true), rev: Type.String() }) },
      handle: () => ({ ok: true, rev: version }),
    },
    {
      id: 'ready',
      methods: ['GET'],
      paths: ['/health/ready', '/api/health/ready'],
      summary: 'Readiness',
      scope: 'open',
      answer: {
        description: 'Every source streams whose slot is not disabled.',
        schema: Type.Object({ ok: Type.Boolean(), waiting: Type.Array(Waiting), disabled: Disabled }),
        negative: { status: 503, description: 'Some do not; `waiting` counts them, by the code of the last error.' },
      },
      handle: (_request, reply) => {
        const { ready, waiting, disabled } = engine.ready()
        reply.status(ready ? 200 : 503)
        // open to anyone: codes, but no names, which are their accounts' own, and no reason, which could hold an address
        const alike = Map.groupBy(waiting, ({ kind, state, code }) => JSON.stringify({ kind, state, code: code ?? null }))
        const counts = [...alike].map(([what, those]) => ({ ...(JSON.parse(what) as object), count: those.length }))
        return { ok: ready, waiting: counts, disabled }
      },
    },
    {
      id: 'version',
      methods: ['GET'],
      paths: ['/info/version', '/api/info/version'],
      summary: 'Version',
      scope: 'open',
      answer: { description: 'The version that runs.', schema: Type.Object({ version: Type.String() }) },
      handle: () => ({ version }),
    },
    {
      id: 'info',
      methods: ['GET'],
      paths: ['/info', '/api/info'],
      summary: 'Version, streams, nodes, and the state of every actor',
      description:
        'The streams of the account with their readers, as they were at most some seconds ago. Every live process of the cluster: the sources it streams, the sink partitions it serves, and its actors. One that does not answer within a second is listed as not reachable.',
      scope: 'read',
      answer: {
        description: 'Actors of the account, and those of the process.',
        schema: Type.Object({ version: Type.String(), streams: Type.Array(StreamOut), nodes: Type.Array(NodeOut) }),
      },
      handle: async (_request, _reply, account) => {
        const streams = engine.streams().filter(({ accountId }) => accountId === account.id)
        return { version, streams: streams.map(streamOut), nodes: (await nodes()).map((node) => nodeOut(node, account.id)) }
      },
    },
  ]
}
