/**
 * What a sink costs that has nothing to do: the service with and without some hundred more sinks on a table that nobody
 * writes, each with a reader that waits for nothing; the difference is divided by their number.
 */
import { setTimeout } from 'node:timers/promises'
import { Client } from 'pg'
import type { Bench } from '../postgres.ts'
import { UsageMeter } from '../process-usage.ts'
import type { System, Task } from '../system.ts'
import { PUBLICATION, TABLE } from '../workload.ts'
import { dropSlot, walSender } from './drain.ts'

export type Idle = Readonly<{ system: string; sinks: number; corePercent: number; privateMb: number }>

const SLOT = 'bench_idle'
const SETTLE_MS = 15_000
const MEASURE_MS = 20_000

/** @returns of the service's processes together: percent of a core, private memory */
export async function idle(bench: Bench, system: System, sinks: number): Promise<Idle> {
  const client = new Client(bench.database)
  await client.connect()
  try {
    await client.query(`select pg_create_logical_replication_slot($1, 'pgoutput')`, [SLOT])
    try {
      const task: Task = {
        database: bench.database,
        slot: SLOT,
        publication: PUBLICATION,
        table: `public.${TABLE}`,
        changes: Infinity,
        recordDelays: false,
      }
      await using running = await system.start(task)
      await walSender(client, SLOT, running.reached)
      await Promise.race([setTimeout(SETTLE_MS), running.reached]) // connections and compilers come to rest
      using meter = new UsageMeter({ service: running.processes['service'] ?? (() => []) })
      await Promise.race([setTimeout(MEASURE_MS), running.reached])
      const { cpuSeconds, peakAnonMb } = meter.read()['service'] ?? { cpuSeconds: 0, peakAnonMb: 0 }
      return { system: system.name, sinks, corePercent: (cpuSeconds / MEASURE_MS) * 1e5, privateMb: peakAnonMb }
    } finally {
      await dropSlot(client, SLOT)
    }
  } finally {
    await client.end()
  }
}
