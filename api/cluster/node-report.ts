/**
 * Reports how a process is: to its peers, and, as far as one account may see it, to clients. A report is plain JSON and has no
 * secrets: errors are redacted where they are, before they travel.
 */
import { Type, type TSchema } from 'typebox'
import { EngineError } from '../../engine/errors.ts'
import { redactError, redactText } from '../../engine/redaction.ts'
import type { Node } from '../../engine/state/node-registry.ts'
import type { EngineVerbs } from '../../actors/engine.ts'
import type { ActorStatus, Figures, PartitionStatus } from '../../engine/status.ts'

/** Tells how a process is called, and its version. */
export type Identity = Readonly<{ version: string; nodeId: string; nodeName: string }>

type ReportedActor = Readonly<{
  id: string
  kind: string
  name: string | null
  /** null: the process's own, shown to every account */
  account: string | null
  state: string
  since: string | null
  last_error: Readonly<{ code: string | null; message: string; at: string }> | null
  details: Figures
  partitions: readonly PartitionStatus[]
}>
type NodeReport = Readonly<{ ready: boolean; actors: readonly ReportedActor[] }>

/** A process of the cluster, with its own report where it answered. */
export type KnownNode = Readonly<Omit<Node, 'address'>> &
  Readonly<{
    /** null: alone, so nobody needs it */
    address: string | null
    reachable: boolean
    /** undefined: it did not answer */
    report: NodeReport | undefined
  }>

const Text = Type.String()
const OrNull = (schema: TSchema) => Type.Union([schema, Type.Null()])
const Actor = Type.Object({
  id: Text,
  kind: Text,
  name: OrNull(Text),
  state: Text,
  since: OrNull(Text),
  last_error: OrNull(Type.Object({ code: OrNull(Text), message: Text, at: Text })),
  details: Type.Object({}, { additionalProperties: true }),
})
/** The schema of a process in the answer of `/info`. */
export const NodeOut = Type.Object({
  id: Type.String({ description: 'made anew at each start' }),
  name: Type.String({ description: 'host/pid' }),
  address: OrNull(Type.String({ description: 'where its peers reach it' })),
  version: Text,
  reachable: Type.Boolean({ description: 'whether it answered; if not, what it holds is not known' }),
  ready: OrNull(Type.Boolean()),
  sources: Type.Array(Type.Object({ id: Text, name: OrNull(Text) }), { description: 'databases that it streams' }),
  partitions: Type.Array(Type.Object({ sink_id: Text, sink: OrNull(Text), partition: Type.Integer() }), {
    description: 'sink partitions that it serves',
  }),
  actors: Type.Array(Actor),
})

/** Describes a process that is alone, so that it has no address for peers. */
export const aboutSelf = ({ version, nodeId, nodeName }: Identity): Omit<KnownNode, 'reachable' | 'report'> => ({
  id: nodeId,
  name: nodeName,
  address: null,
  version,
})

/** Reports how this process is. */
export function reportOf(engine: Pick<EngineVerbs, 'actors' | 'ready'>): NodeReport {
  return { ready: engine.ready().ready, actors: engine.actors().map(reported) }
}

/** Shows a process as one account may see it. */
export function nodeOut({ report, ...node }: KnownNode, accountId: string): Record<string, unknown> {
  const actors = report?.actors.filter(({ account }) => account === null || account === accountId) ?? []
  const { id, name, address, version, reachable } = node
  return {
    id,
    name,
    address,
    version,
    reachable,
    ready: report?.ready ?? null,
    sources: actors
      .filter(({ kind, state }) => kind === 'source' && HELD.has(state))
      .map((actor) => ({ id: idOf(actor), name: actor.name })),
    partitions: actors
      .filter(({ kind }) => kind === 'sink')
      .flatMap((actor) =>
        actor.partitions
          .filter(({ state }) => state === 'running')
          .map(({ partition }) => ({ sink_id: idOf(actor), sink: actor.name, partition })),
      ),
    actors: actors.map(({ account: _account, partitions: _partitions, ...actor }) => actor),
  }
}

/** States of a source in which it has the lock. */
const HELD: ReadonlySet<string> = new Set(['inspecting', 'opening', 'streaming'])
const idOf = ({ id }: ReportedActor): string => id.slice(id.indexOf('/') + 1)

function reported({ id, kind, name, accountId, state, since, lastError, details, partitions }: ActorStatus): ReportedActor {
  return {
    id,
    kind,
    state,
    name: name ?? null,
    account: accountId ?? null,
    since: since?.toISOString() ?? null,
    last_error: lastError ? { ...errorOut(lastError.error), at: lastError.at.toISOString() } : null,
    details: details ?? {},
    partitions: partitions ?? [],
  }
}

function errorOut(error: unknown): { code: string | null; message: string } {
  if (!(error instanceof Error)) return { code: null, message: redactText(String(error)) }
  const { message } = redactError(error)
  const code = error instanceof EngineError ? error.code : 'code' in error && typeof error.code === 'string' ? error.code : null
  return { code, message: String(message) }
}
