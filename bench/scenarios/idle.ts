/**
 * What a sink costs that has nothing to do: the service with and without some hundred more sinks on a table that nobody
 * writes, each with a reader that waits for nothing; the difference is divided by their number. And what so many of them do to
 * a start and to an edit of one.
 */
import { setTimeout } from 'node:timers/promises'
import { Client } from 'pg'
import type { Bench } from '../postgres.ts'
import { UsageMeter } from '../process-usage.ts'
import { median } from '../statistics.ts'
import { wallClock } from '../system.ts'
import { idleSink, type RunningTailrace, type TailraceSystem } from '../systems/tailrace.ts'
import { workloadTask } from '../workload.ts'
import { dropSlot, walSender } from './drain.ts'

export type Idle = Readonly<{
  system: string
  sinks: number
  /** from the first of its processes until Postgres accepted the connection that reads the slot; the sinks are new to it */
  startSeconds: number
  corePercent: number
  privateMb: number
  /** how long a PATCH of one sink took, one after the other; absent: there are none beside the one that works */
  patch?: Readonly<{ p50Ms: number; p99Ms: number }>
}>

const SLOT = 'bench_idle'
const SETTLE_MS = 15_000
const MEASURE_MS = 20_000
/** The first edits are slower: their code is not compiled yet. */
const FIRST_EDITS = 10
const EDITS = 100

/** @returns of the service's processes together: percent of a core, private memory */
export async function idle(bench: Bench, system: TailraceSystem, sinks: number): Promise<Idle> {
  const client = new Client(bench.database)
  await client.connect()
  try {
    await client.query(`select pg_create_logical_replication_slot($1, 'pgoutput')`, [SLOT])
    try {
      await using running = await system.start(workloadTask({ database: bench.database, slot: SLOT }))
      const { startedMs } = await walSender(client, SLOT, running.reached)
      await Promise.race([setTimeout(SETTLE_MS), running.reached]) // connections and compilers come to rest
      using meter = new UsageMeter({ service: running.processes['service'] ?? (() => []) })
      await Promise.race([setTimeout(MEASURE_MS), running.reached])
      const { cpuSeconds, peakAnonMb } = meter.read()['service'] ?? { cpuSeconds: 0, peakAnonMb: 0 }
      return {
        system: system.name,
        sinks,
        startSeconds: (startedMs - running.spawnedAt) / 1000,
        corePercent: (cpuSeconds / MEASURE_MS) * 1e5,
        privateMb: peakAnonMb,
        ...(sinks > 0 && { patch: await edits(running, sinks) }),
      }
    } finally {
      await dropSlot(client, SLOT)
    }
  } finally {
    await client.end()
  }
}

/** Changes a setting of one sink after the other. */
async function edits(running: RunningTailrace, sinks: number): Promise<NonNullable<Idle['patch']>> {
  const took: number[] = []
  for (let edit = 0; edit < FIRST_EDITS + EDITS; edit++) {
    const from = wallClock()
    const status = await running.call('PATCH', `/api/sinks/${idleSink(1 + (edit % sinks))}`, { max_ack_pending: 20_000 + edit })
    if (status !== 200) throw new Error(`a sink could not be changed: ${status}`)
    if (edit >= FIRST_EDITS) took.push(wallClock() - from)
  }
  const rank = Math.ceil(took.length * 0.99) - 1
  return { p50Ms: median(took), p99Ms: took.sort((a, b) => a - b)[rank] as number }
}
