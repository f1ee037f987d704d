/**
 * Sets a sink back: looks where to (engine/dispatch/replay/replay-plan.ts), stops every partition of it in every process, puts the
 * replay into effect in one transaction (engine/dispatch/replay/replay.ts), and lets all of them begin again. A process that dies
 * on the way leaves the sink as it was before or as it is after, and those it has stopped begin again by themselves.
 */
import { randomUUID } from 'node:crypto'
import { setTimeout as delay } from 'node:timers/promises'
import { planReplay, timeOf, type ReplayPlan, type ReplayTarget } from '../../engine/dispatch/replay/replay-plan.ts'
import { knownGenerations, reachOf } from '../../engine/dispatch/replay/replay-reach.ts'
import { rewind, type Stopped } from '../../engine/dispatch/replay/replay.ts'
import { codeOf, isRetryable } from '../../engine/errors.ts'
import type { Commit, Log } from '../../engine/log/log.ts'
import type { Logger } from '../../engine/logger.ts'
import { formatLsn, type Lsn } from '../../engine/lsn.ts'
import type { Sink } from '../../engine/state/resources.ts'
import type { Store } from '../../engine/state/store.ts'
import { incarnationsOf } from '../../engine/wal/source-store.ts'
import type { HeldSink } from './running-sink.ts'

/** A process that may serve partitions of the sink. */
export type Holder = Readonly<{
  /** of its node */
  id: string
  /** @see SinkHost.hold */
  hold: (by: string) => Promise<HeldSink>
  release: (by: string) => Promise<void>
}>

/** Tells what a replay has done. */
export type Replayed = Readonly<{
  /** of the generation that is delivered from now on */
  partitions: number
  /** about how many messages come again */
  messages: number
  /** the first message that comes again: its commit; undefined: there is none, and nothing was done */
  from: Readonly<{ lsn: Lsn; time: string }> | undefined
}>

type ReplaysOptions = Readonly<{
  store: Pick<Store, 'query' | 'transaction'>
  log: Log
  logger: Logger
  /** how long partitions that move are waited for */
  patienceMs?: number
}>

/** Sets sinks back to a position, in all processes that serve them. */
export class Replays {
  readonly #options: ReplaysOptions

  constructor(options: ReplaysOptions) {
    this.#options = options
  }

  /**
   * @param holders all processes that live at the moment of the call
   * @throws EngineError REPLAY_OUT_OF_WINDOW, REPLAY_RUNNING, VALIDATION_FAILED, SINK_NOT_RUNNING, PARTITION_MOVING, PEER_UNREACHABLE
   */
  async replay(sink: Sink, target: ReplayTarget, holders: () => readonly Holder[]): Promise<Replayed> {
    const { store, logger } = this.#options
    const plan = await this.#plan(sink, target)
    if (!plan) return { partitions: sink.partitions, messages: 0, from: undefined }
    const { position, generation, places, first } = plan
    const messages = await this.whileStopped(sink.id, holders, (stopped) =>
      store.transaction((query) => rewind(query, sink.id, plan, stopped)),
    )
    const from = { lsn: first.position.lsn, time: timeOf(first.commitTimeUs) }
    logger.info(
      { sink: sink.name, lsn: formatLsn(from.lsn), time: from.time, generation, messages, history: position.history },
      'the sink is set back: what came since comes again',
    )
    return { partitions: places.length, messages, from }
  }

  /**
   * Runs `work` while every partition of the sink stands still, in every process.
   * @throws EngineError REPLAY_RUNNING, SINK_NOT_RUNNING, PARTITION_MOVING, PEER_UNREACHABLE
   */
  whileStopped<T>(sinkId: string, holders: () => readonly Holder[], work: (stopped: Stopped) => Promise<T>): Promise<T> {
    const { patienceMs = PATIENCE_MS } = this.#options
    return untilPossible(patienceMs, () => whileHeld(holders(), async (held) => work(await this.#stopped(sinkId, held))))
  }

  /** Looks again when what was looked at has got another topic meanwhile: in the former one it may be trimmed. */
  async #plan(sink: Sink, target: ReplayTarget): Promise<ReplayPlan | undefined> {
    const { store, log } = this.#options
    for (;;) {
      const known = await knownGenerations(store.query, sink.id)
      const served = known.find(({ endedUs }) => endedUs === undefined)
      const generations = known.filter(({ generation }) => generation <= (served?.generation ?? 0))
      const incarnations = await incarnationsOf(store.query, sink.databaseId)
      const planning = planReplay({ log, sink, generations, incarnations, reach: reachOf(generations) }, target)
      await planning.catch(() => undefined)
      const now = new Set((await knownGenerations(store.query, sink.id)).map(({ reader }) => reader))
      if (generations.every(({ reader }) => now.has(reader))) return planning
    }
  }

  /** Gathers the generations that stand still, with the last commit of each partition. */
  async #stopped(sinkId: string, held: readonly HeldSink[]): Promise<Stopped> {
    const { log, store } = this.#options
    const generation = Math.max(0, ...held.map((each) => each.generation))
    const partitions = held.filter((each) => each.generation === generation).flatMap((each) => each.partitions)
    const terms = new Map(partitions.map(({ partition, term }) => [partition, term]))
    const reader = (await knownGenerations(store.query, sinkId)).find((each) => each.generation === generation)?.reader
    const commits = new Map<number, Commit | undefined>()
    if (reader) for (const partition of terms.keys()) commits.set(partition, await log.committed(reader, partition))
    return { generation, terms, commits }
  }
}

/** Partitions that move, or whose process has just died, are at rest again within this, as a rule. */
const PATIENCE_MS = 15_000
const AGAIN_MS = 500

async function untilPossible<T>(patienceMs: number, work: () => Promise<T>): Promise<T> {
  for (const until = performance.now() + patienceMs; ; await delay(AGAIN_MS)) {
    try {
      return await work()
    } catch (error) {
      const code = codeOf(error)
      const passes = isRetryable(error) && code !== 'REPLAY_RUNNING' && code !== 'STATE_UNAVAILABLE'
      if (!passes || performance.now() > until) throw error
    }
  }
}

/**
 * The first one is held alone, so that of two replays at once one goes on. A process that does not answer stops nothing: if it
 * serves a partition, `work` finds that out.
 */
async function whileHeld<T>(holders: readonly Holder[], work: (held: readonly HeldSink[]) => Promise<T>): Promise<T> {
  const by = randomUUID()
  const [first, ...others] = holders.toSorted((a, b) => (a.id < b.id ? -1 : 1))
  const held: HeldSink[] = []
  let unheld: unknown
  const hold = async (holder: Holder | undefined) => {
    try {
      if (holder) held.push(await holder.hold(by))
    } catch (error) {
      if (!isRetryable(error) || codeOf(error) === 'REPLAY_RUNNING') throw error
      unheld = error
    }
  }
  try {
    await hold(first)
    await Promise.all(others.map(hold))
    if (held.length === 0) throw unheld
    return await work(held)
  } catch (error) {
    throw codeOf(error) === 'PARTITION_MOVING' ? (unheld ?? error) : error
  } finally {
    await Promise.all(holders.map((holder) => holder.release(by).catch(() => undefined))) // else it begins again by itself
  }
}
