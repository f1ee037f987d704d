/**
 * The table of the engine's verbs: each row says where the verb is done when many processes share the work. A verb whose row has a path
 * is asked of every process of the cluster, over HTTP: any of them answers the API for all. What a peer asks is done by our own
 * engine alone, so a request hops once. Paths and bodies are those of former versions, which live beside us during an upgrade.
 */
import { newest } from '../../actors/recent-messages.ts'
import type { EngineVerbs, LocalEngine } from '../../actors/engine.ts'
import type { PulledSink } from '../../actors/sink/running-sink.ts'
import type { MessageRecord } from '../../engine/dispatch/parked/message-records.ts'
import { EngineError } from '../../engine/errors.ts'
import { wholeHealth } from './cluster-health.ts'
import { reportOf } from './node-report.ts'

/** The deadline of a call for which something only has to be looked up or taken. */
export const SHORT_MS = 1_000
/** The deadline of a call that runs functions: each may take a second, and the query of an enrichment five. */
const RUN_MS = 10_000
/** The deadline of an ack, which waits for its commit. */
const SETTLE_MS = 15_000
/** The deadline of holding a sink: it may have to come to rest first, and then its partitions stop. */
const HOLD_MS = 25_000
/** A process that doesn't say in this time that an edit has reached it reads it within seconds by itself. */
const RELOAD_MS = 2_000

/** A call that a process takes from its peers. */
export type PeerCall<A extends readonly unknown[], R> = Readonly<{
  /** The first arguments stand in it, each at the place of a parameter; the one after them, if any, is the body. */
  path: string
  deadlineMs: number | ((...args: A) => number)
  run: (engine: LocalEngine, ...args: A) => R | Promise<R>
  /** the words by which the log tells of a peer that doesn't answer */
  silent?: string
}>

/** A process that is asked: its name, and what it answers when its turn comes. */
export type Asked<R> = Readonly<{ node: string; answer: () => Promise<R> }>
/** All processes that are asked; our own engine comes first. */
export type Everywhere<R> = readonly [own: Asked<R>, ...others: Asked<R>[]]
/** A call whose answers of all processes become one. */
export type WholeCall<A extends readonly unknown[], R> = PeerCall<A, R> &
  Readonly<{
    /** Makes one answer of those of all processes. */
    merge(asked: Everywhere<R>, whole: EngineVerbs, ...args: A): Promise<R>
    /** Only processes that own partitions of the sink, which is the first argument, are asked beside ours. */
    ofOwners?: true
  }>
/** The name of a method that the API calls on an engine. */
export type Verb = Exclude<keyof EngineVerbs, 'sink' | 'reload'>

/** Says where a verb is answered. here: our own engine knows all of it. */
type Place<V extends Verb> = 'here' | WholeCall<Parameters<EngineVerbs[V]>, Awaited<ReturnType<EngineVerbs[V]>>>

/** All verbs of an engine, but those of a pull sink (cluster-sinks.ts), and the one that tells all others what is stored. */
export const VERBS: { readonly [V in Verb]: Place<V> } = {
  actors: 'here',
  streams: 'here', // as the state database and the log have them: no other process knows more
  ready: 'here',
  messages: 'here',
  tail: 'here', // every process reads the same log
  verify: 'here', // and reaches the same source and destination
  testSink: 'here',
  testEndpoint: 'here',
  replay: 'here', // it stops the sink in all processes by itself
  sinkHealth: {
    path: '/health',
    deadlineMs: SHORT_MS,
    run: (engine, ids) => engine.sinkHealth(ids),
    merge: async ([own, ...others], _whole, ids) => {
      const silent = others.map(async ({ node, answer }) => ({ node, of: await answer().catch(() => undefined) }))
      const all = [{ node: own.node, of: await own.answer() }, ...(await Promise.all(silent))]
      return Object.fromEntries(
        ids.flatMap((id) => {
          const parts = all.filter(({ of }) => of === undefined || of[id] !== undefined).map(({ node, of }) => ({ node, health: of?.[id] }))
          const health = wholeHealth(parts)
          return health ? [[id, health]] : []
        }),
      )
    },
  },
  databaseSights: {
    path: '/database-sights',
    deadlineMs: SHORT_MS,
    run: (engine, ids) => engine.databaseSights(ids),
    merge: async (asked, _whole, ids) => {
      const all = await answersOf(asked)
      return Object.fromEntries(
        ids.flatMap((id) => {
          const sights = all.flatMap(({ [id]: sight }) => (sight ? [sight] : [])) // one of them has the source, others may wait for it
          const [first] = sights.toSorted((a, b) => Number(b.slot !== null) - Number(a.slot !== null))
          return first ? [[id, first]] : []
        }),
      )
    },
  },
  lookAtDatabase: {
    path: '/databases/:database/look',
    deadlineMs: SHORT_MS,
    run: (engine, id) => engine.lookAtDatabase(id),
    merge: async (asked) => void (await answersOf(asked)),
  },
  waitingBackfills: {
    path: '/waiting-backfills',
    deadlineMs: SHORT_MS,
    run: (engine, ids) => engine.waitingBackfills(ids),
    merge: async (asked) => Object.fromEntries((await answersOf(asked)).flatMap((waits) => Object.entries(waits))), // one of them reads it
  },
  delivered: {
    path: '/sinks/:sink/delivered',
    deadlineMs: SHORT_MS,
    run: (engine, ...asked) => engine.delivered(...asked),
    merge: async (asked, _whole, _sinkId, { limit }) => {
      const at = ({ last_delivered_at }: MessageRecord) => last_delivered_at ?? ''
      const all = (await answersOf(asked)).flat()
      return all.sort((a, b) => (at(a) < at(b) ? 1 : at(a) > at(b) ? -1 : 0)).slice(0, limit)
    },
  },
  message: {
    path: '/sinks/:sink/message',
    deadlineMs: (_sinkId, { withFunctions }) => (withFunctions ? RUN_MS : SHORT_MS),
    run: (engine, ...asked) => engine.message(...asked),
    merge: async ([own, ...others]) => {
      const found = await own.answer()
      if (found) return found
      const answers = await Promise.all(others.map(({ answer }) => answer().catch(() => undefined)))
      return answers.find((one) => one !== undefined)
    },
  },
  recent: {
    path: '/recent',
    deadlineMs: SHORT_MS,
    run: (engine, asked) => engine.recent(asked),
    merge: async (asked) => newest((await answersOf(asked)).flat()),
  },
  editMessages: {
    path: '/sinks/:sink/messages',
    deadlineMs: SETTLE_MS,
    ofOwners: true, // each edits what its own partitions have
    run: (engine, ...asked) => engine.editMessages(...asked),
    merge: async (asked) => {
      const all = (await Promise.allSettled(asked.map(({ answer }) => answer()))).map((one) => {
        if (one.status === 'rejected') throw one.reason // when all have answered
        return one.value
      })
      const sum = (of: 'served' | 'edited') => all.reduce((total, one) => total + one[of], 0)
      return { known: Math.max(...all.map(({ known }) => known)), served: sum('served'), edited: sum('edited') }
    },
  },
  acceptGap: {
    path: '/sources/:database/accept-gap',
    deadlineMs: SETTLE_MS,
    run: (engine, databaseId) => engine.acceptGap(databaseId),
    merge: async (asked, whole, databaseId) => {
      let refused: unknown
      for (const { answer } of asked) {
        try {
          const accepted = await answer()
          await whole.retrySource(databaseId, { wait_ms: 0 }) // all others try again too, so that they stand by
          return accepted
        } catch (error) {
          const isNone = error instanceof EngineError && error.code === 'NO_GAP'
          if (!isNone || refused === undefined) refused = error // what went wrong tells more than that there was nothing
        }
      }
      throw refused
    },
  },
  retrySource: {
    path: '/sources/:database/retry',
    deadlineMs: (_databaseId, { wait_ms }) => wait_ms + SHORT_MS,
    silent: 'a node has not answered: its source may not have been told to try again',
    run: (engine, ...asked) => engine.retrySource(...asked),
    merge: async (asked) => {
      const all = await answersOf(asked) // any process may get the lock of the source
      const [own] = all
      return all.find(({ state }) => state === 'streaming') ?? all.find(({ code }) => code !== undefined) ?? own
    },
  },
}

const call = <A extends readonly unknown[], R>(row: PeerCall<A, R>): PeerCall<A, R> => row
/** The calls that only peers make to a process. Messages are taken by a call of their own kind: peer-client.ts. */
export const PEER_CALLS = {
  ack: call({
    path: '/sinks/:sink/ack',
    deadlineMs: SETTLE_MS,
    run: (engine, sinkId: string, ids: readonly string[]) => pulledSink(engine, sinkId).ack(ids).then(done),
  }),
  nack: call({
    path: '/sinks/:sink/nack',
    deadlineMs: SETTLE_MS,
    run: (engine, sinkId: string, ids: readonly string[]) => pulledSink(engine, sinkId).nack(ids).then(done),
  }),
  holdSink: call({
    path: '/sinks/:sink/hold/:by',
    deadlineMs: HOLD_MS,
    run: (engine, sinkId: string, by: string) => engine.holdSink(sinkId, by),
  }),
  releaseSink: call({
    path: '/sinks/:sink/release/:by',
    deadlineMs: SETTLE_MS,
    run: (engine, sinkId: string, by: string) => engine.releaseSink(sinkId, by).then(done),
  }),
  reload: call({
    path: '/reload',
    deadlineMs: RELOAD_MS,
    silent: 'a node has not answered that it has read an edit; it reads the edit by itself within seconds',
    run: (engine) => engine.reload().then(done),
  }),
  loadTokens: call({
    path: '/tokens',
    deadlineMs: RELOAD_MS,
    silent: 'a node has not answered that it has read the API tokens; it reads them by itself within seconds',
    run: (engine) => engine.loadTokens().then(done),
  }),
  report: call({ path: '/report', deadlineMs: SHORT_MS, silent: 'a node does not answer a request for its health', run: reportOf }),
}

/** Finds a pull sink that this process runs. @throws EngineError SINK_NOT_RUNNING */
export function pulledSink(engine: LocalEngine, id: string): PulledSink {
  const running = engine.sink(id)
  if (!running) throw new EngineError('SINK_NOT_RUNNING', 'the sink does not run on this node', { sink: id })
  return running
}

/** Asks all at once and leaves out peers that don't answer. @throws what our own engine throws */
async function answersOf<R>([own, ...others]: Everywhere<R>): Promise<readonly [own: R, ...others: R[]]> {
  const peers = Promise.allSettled(others.map(({ answer }) => answer()))
  return [await own.answer(), ...(await peers).flatMap((one) => (one.status === 'fulfilled' ? [one.value] : []))]
}

const done = () => ({ success: true })
