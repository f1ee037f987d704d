/**
 * Latency: how long a change takes from its statement in the writer's session to the moment its reader has the whole
 * answer, while the writer keeps a steady pace. The row carries the server's clock; the reader compares it with its own,
 * on the same machine. The commit's wait for the disk is so included. The pace doesn't depend on the reader, so a stall
 * shows in every change that was written meanwhile.
 */
import { setTimeout } from 'node:timers/promises'
import { Client } from 'pg'
import type { Bench } from '../postgres.ts'
import type { Delays, System } from '../system.ts'
import { workloadTask, writeWorkload } from '../workload.ts'
import { dropSlot } from './drain.ts'

export type Latency = Readonly<{ system: string; wantedPerSecond: number; writtenPerSecond: number; seconds: number; delays: Delays }>

/** Compilers and caches warm up before anything counts. */
const WARM_UP_SECONDS = 5
const SLOT = 'bench_latency'

export async function latency(
  bench: Bench,
  system: System,
  { perSecond, seconds }: { perSecond: number; seconds: number },
): Promise<Latency> {
  const client = new Client(bench.database)
  await client.connect()
  try {
    await client.query(`select pg_create_logical_replication_slot($1, 'pgoutput')`, [SLOT])
    try {
      await using running = await system.start(workloadTask({ database: bench.database, slot: SLOT, recordDelays: true }))
      const { delays } = running
      if (!delays) throw new Error(`${system.name} records no delays`)
      // about 250 changes a second in a session: what one connection of an application might do
      const sessions = Math.min(32, Math.max(8, Math.round(perSecond / 250)))
      const load = { url: bench.url, sessions, perSecond, waitForDisk: true }
      await Promise.race([untilStreaming(client), running.reached])
      await writeWorkload({ ...load, changes: perSecond * WARM_UP_SECONDS })
      await delays.reset()
      const changes = perSecond * seconds
      const took = await Promise.race([writeWorkload({ ...load, changes }), running.reached])
      await setTimeout(1000) // the last ones are on their way
      const recorded = await delays.read()
      return {
        system: system.name,
        wantedPerSecond: perSecond,
        writtenPerSecond: Math.round(changes / took),
        seconds: Math.round(took),
        delays: recorded,
      }
    } finally {
      await dropSlot(client, SLOT)
    }
  } finally {
    await client.end()
  }
}

async function untilStreaming(client: Client): Promise<void> {
  for (;;) {
    const { rowCount } = await client.query('select from pg_replication_slots where slot_name = $1 and active', [SLOT])
    if (rowCount) return
    await setTimeout(10)
  }
}
