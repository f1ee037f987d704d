/**
 * Many sinks on one table, all of one shape. Pull sinks: a client reads one of them as in a drain, and nobody asks the others,
 * which hold their backlog in the log. Webhook sinks: each sends everything, in batches. On Kafka they do so from three
 * processes, and the broker says how much was written for it and how much fetched.
 *
 * Every number of sinks drains in turn with one sink alone, the same range: what more sinks cost is a ratio within a turn. With
 * the embedded log the clock starts when all of them are served, for their start is no part of a drain; it is told beside. Webhook
 * sinks may drain in turn with those of another checkout, too.
 */
import { setTimeout } from 'node:timers/promises'
import type { BenchBroker } from '../broker.ts'
import type { Bench } from '../postgres.ts'
import { UsageMeter } from '../process-usage.ts'
import { tailraceOf, type RunningTailrace, type Shape } from '../systems/tailrace.ts'
import { drain, type Drain, type Range } from './drain.ts'

type Case = Readonly<{ sinks: number; changes: number }>
const PULLED: readonly Case[] = [
  { sinks: 10, changes: 200_000 },
  { sinks: 50, changes: 200_000 },
  { sinks: 200, changes: 200_000 },
]
/** Long enough that what V8 has yet to compile weighs little: 0.6 s of CPU. */
const PUSHED: readonly Case[] = [{ sinks: 10, changes: 150_000 }]
const PUSHED_FROM_KAFKA: readonly Case[] = [
  { sinks: 10, changes: 50_000 },
  { sinks: 50, changes: 20_000 },
]
const PROCESSES = 3
const WEBHOOK = { batchSize: 100 }
/** How long sinks that nobody asks may go on to read ahead after the drain, before their memory counts. */
const HOLD_MS = 3_000
const MB = 2 ** 20

/** Lengths of the ranges that are drained. */
export const SINKS_RANGES: readonly number[] = [...PULLED, ...PUSHED, ...PUSHED_FROM_KAFKA].map(({ changes }) => changes)

export type SinksRun = Drain &
  Readonly<{
    sinks: number
    /** of all sinks that are read, together */
    messagesPerSecond: number
    /** private memory of the service: the highest during the drain and while the backlog is held after it */
    privateMb: number
    /** of the embedded log, when the drain is over */
    logMb: number
    /** what Kafka was given and what was fetched from it */
    kafka?: Readonly<{ writtenMb: number; fetchedMb: number }>
  }>
/** @property beside as many sinks of another checkout */
export type SinksPair = Readonly<{ alone: SinksRun; many: SinksRun; beside?: SinksRun }>
export type SinksResult = Case & Readonly<{ kind: 'pull' | 'webhook' | 'webhook on Kafka'; processes: number; pairs: readonly SinksPair[] }>

type Measured = Readonly<{
  /** of so many changes */
  range: (changes: number) => Range
  pairs: number
  /** absent: what needs Kafka is left out */
  broker: BenchBroker | undefined
  /** folder of other sources that webhook sinks are measured with too */
  beside: string | undefined
}>

export async function sinks(
  bench: Bench,
  { range, pairs, broker, beside }: Measured,
  told: (result: SinksResult) => void,
): Promise<readonly SinksResult[]> {
  const run = async (kind: string, count: number, changes: number, shape: Omit<Shape, 'partitions'>): Promise<SinksRun> => {
    const system = tailraceOf(`${count} ${kind} sink${count === 1 ? '' : 's'}`, { ...shape, partitions: 1, moreSinks: count - 1 })
    let [heldMb, logMb] = [0, 0]
    let kafka: SinksRun['kafka']
    const look = async ({ processes, dataBytes, topicPrefix }: RunningTailrace): Promise<void> => {
      logMb = (await dataBytes()) / MB
      if (shape.broker) {
        const { written, fetched } = shape.broker.traffic(topicPrefix)
        kafka = { writtenMb: written / MB, fetchedMb: fetched / MB }
      }
      await setTimeout(HOLD_MS)
      using meter = new UsageMeter({ service: processes['service'] ?? (() => []) })
      heldMb = meter.read()['service']?.peakAnonMb ?? 0
    }
    // the groups of many sinks form for longer than a source waits for a server that says nothing
    const ready = shape.broker ? {} : { ready: ({ served }: RunningTailrace, signal: AbortSignal) => served(signal) }
    const drained = await drain(bench, system, range(changes), { ...ready, look })
    const privateMb = Math.max(heldMb, drained.processes['service']?.peakAnonMb ?? 0)
    const readSinks = shape.webhook ? count : 1
    return { ...drained, sinks: count, messagesPerSecond: drained.changesPerSecond * readSinks, privateMb, logMb, ...(kafka && { kafka }) }
  }
  const results: SinksResult[] = []
  const measure = async (kind: SinksResult['kind'], cases: readonly Case[], shape: Omit<Shape, 'partitions'>, checkout?: string) => {
    for (const { sinks: count, changes } of cases) {
      const measured: SinksPair[] = []
      for (let pair = 1; pair <= pairs; pair++) {
        const [alone, many] = [await run(kind, 1, changes, shape), await run(kind, count, changes, shape)]
        measured.push({ alone, many, ...(checkout !== undefined && { beside: await run(kind, count, changes, { ...shape, checkout }) }) })
      }
      const result = { kind, sinks: count, changes, processes: shape.processes, pairs: measured }
      results.push(result)
      told(result)
    }
  }
  await measure('pull', PULLED, { processes: 1 })
  await measure('webhook', PUSHED, { processes: 1, webhook: WEBHOOK }, beside)
  if (broker) await measure('webhook on Kafka', PUSHED_FROM_KAFKA, { processes: PROCESSES, webhook: WEBHOOK, broker })
  return results
}
