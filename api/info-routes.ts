/** What the process says of itself: alive, ready, its version, and the state of every actor. Liveness is that it answers;
 *  readiness is that every source streams, and is asked apart, so that a database that is down restarts no container. */
import { Type } from 'typebox'
import type { EnginePort } from './engine-port.ts'
import { aboutSelf, nodeOut, NodeOut, reportOf, type Identity, type KnownNode } from './cluster/node-report.ts'
import type { Operation } from './operation.ts'

const About = Type.Object({
  ...{ name: Type.String(), version: Type.String(), about: Type.String() },
  ...{ api: Type.String(), openapi: Type.String(), health: Type.String(), documentation: Type.String() },
})

const Waiting = Type.Object({
  kind: Type.String(),
  state: Type.String(),
  code: Type.Union([Type.String(), Type.Null()]),
  count: Type.Integer(),
})

/** @param nodes every process of the cluster as one account may see it; absent: this one is alone */
export function infoOperations({
  engine,
  identity,
  nodes = async () => [{ ...aboutSelf(identity), reachable: true, report: reportOf(engine) }],
}: Readonly<{ engine: EnginePort; identity: Identity; nodes?: () => Promise<readonly KnownNode[]> }>): Operation[] {
  const { version } = identity
  return [
    {
      id: 'about',
      methods: ['GET'],
      paths: ['/'],
      summary: 'What this is',
      description: 'Where to go from here. Probes that ask for the root of a service get their 200.',
      auth: false,
      answer: { description: 'Its name, and its addresses.', schema: About },
      handle: () => ({
        ...{ name: 'Tailrace', version, about: 'Postgres change data capture' },
        ...{ api: '/api', openapi: '/api/openapi.json', health: '/health', documentation: 'the folder docs/ of the program' },
      }),
    },
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
        negative: { status: 503, description: 'Some do not; `waiting` counts them, by the code of the last error.' },
      },
      handle: (_request, reply) => {
        const { ready, waiting } = engine.ready()
        reply.status(ready ? 200 : 503)
        // open to anyone: codes, but no names, which are their accounts' own, and no reason, which could hold an address
        const alike = Map.groupBy(waiting, ({ kind, state, code }) => JSON.stringify({ kind, state, code: code ?? null }))
        return { ok: ready, waiting: [...alike].map(([what, those]) => ({ ...(JSON.parse(what) as object), count: those.length })) }
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
      description:
        'Every live process of the cluster: the sources it streams, the sink partitions it serves, and its actors. One that does not answer within a second is listed as not reachable.',
      auth: true,
      answer: {
        description: 'Actors of the account, and those of the process.',
        schema: Type.Object({ version: Type.String(), nodes: Type.Array(NodeOut) }),
      },
      handle: async (_request, _reply, account) => ({ version, nodes: (await nodes()).map((node) => nodeOut(node, account.id)) }),
    },
  ]
}
