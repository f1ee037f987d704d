/**
 * Draining: how fast a range of the write-ahead log that is already written gets to its reader. Each system gets its own
 * copy of one slot, so all of them drain the same bytes; they take turns, so that a machine that changes its mood does so
 * to all of them.
 *
 * The clock starts when Postgres accepted the connection that reads the slot (backend_start of its walsender, by the
 * server's clock on this machine), and stops when the reader has had the answer to its last acknowledgement (the raw
 * limit: has seen the last commit). CPU and memory count from when the walsender was seen, at most 10 ms later; what a
 * system used to come up before that is not in them.
 *
 * A system with more to start than its stream may be waited for: its walsender is stopped as soon as it is seen, and sends on
 * when the system is ready. Then the clock starts, and what comes before it is told beside.
 */
import { setTimeout } from 'node:timers/promises'
import { Client } from 'pg'
import type { Bench } from '../postgres.ts'
import { childrenOf, UsageMeter, type Usage } from '../process-usage.ts'
import { wallClock, type Running, type System } from '../system.ts'
import { WarmMemory } from '../warm-memory.ts'
import { workloadTask } from '../workload.ts'

export type Drain = Readonly<{
  system: string
  seconds: number
  changesPerSecond: number
  processes: Record<string, Usage>
  /** of a system that is waited for: how long after its walsender it was ready, and the CPU of all its processes meanwhile */
  start?: Readonly<{ seconds: number; cpuSeconds: number }>
}>

export type Range = Readonly<{
  slot: string
  changes: number
  profileFolder?: string
  /** memory isn't touched before */
  isCold?: boolean
}>

const LOOK_EVERY_MS = 10
const STREAMING_MS = 60_000
/** A server that is silent for longer is taken for dead. */
const READY_MS = 18_000
const DRAIN_MS = 900_000

/**
 * @param ready settles when all of the system is at work; absent: the clock doesn't wait for it
 * @param look at the system that has drained the range, before it ends
 */
export async function drain<R extends Running>(
  bench: Bench,
  system: System<R>,
  { slot, changes, profileFolder, isCold }: Range,
  { ready, look }: Readonly<{ ready?: (running: R, signal: AbortSignal) => Promise<void>; look?: (running: R) => Promise<void> }> = {},
): Promise<Drain> {
  const copy = `${slot}_copy`
  const client = new Client(bench.database)
  await client.connect()
  try {
    await client.query('checkpoint') // so that no run pays for the pages of the one before
    await client.query('select pg_copy_logical_replication_slot($1, $2)', [slot, copy])
    const task = workloadTask({ database: bench.database, slot: copy, changes, ...(profileFolder !== undefined && { profileFolder }) })
    try {
      using memory = isCold ? undefined : await WarmMemory.touch()
      await using running = await system.start(task)
      const walsender = await walSender(client, copy, running.reached)
      const { pid } = walsender
      using stopped = ready && stop(pid)
      const start = ready && (await startOf(running, (signal) => ready(running, signal), walsender.startedMs))
      const others = () => childrenOf(bench.postmaster).filter((child) => child !== pid)
      memory?.giveBack()
      using meter = new UsageMeter({ ...running.processes, walsender: () => [pid], 'Postgres, the rest': others })
      const startedMs = stopped?.goOn() ?? walsender.startedMs
      const reachedMs = await Promise.race([running.reached, tooLong(system)])
      const processes = meter.read()
      const seconds = (reachedMs - startedMs) / 1000
      await look?.(running)
      return { system: system.name, seconds, changesPerSecond: changes / seconds, processes, ...(start && { start }) }
    } finally {
      await dropSlot(client, copy)
    }
  } finally {
    await client.end()
  }
}

/** Stops a process until it is told to go on, which gives the moment, or until it is disposed of. */
function stop(pid: number): Disposable & Readonly<{ goOn: () => number }> {
  process.kill(pid, 'SIGSTOP')
  let isStopped = true
  const goOn = (): number => {
    if (isStopped) process.kill(pid, 'SIGCONT')
    isStopped = false
    return wallClock()
  }
  return { goOn, [Symbol.dispose]: () => void goOn() }
}

/** @param ready of the system. @param startedMs of its walsender */
async function startOf(
  { processes, reached }: Running,
  ready: (signal: AbortSignal) => Promise<void>,
  startedMs: number,
): Promise<NonNullable<Drain['start']>> {
  using meter = new UsageMeter({ service: processes['service'] ?? (() => []) })
  const failed = new AbortController()
  reached.catch((error: unknown) => failed.abort(error))
  await ready(AbortSignal.any([failed.signal, AbortSignal.timeout(READY_MS)]))
  return { seconds: (wallClock() - startedMs) / 1000, cpuSeconds: meter.read()['service']?.cpuSeconds ?? 0 }
}

/** The process that sends the slot's changes, as soon as there is one. */
export async function walSender(client: Client, slot: string, failed: Promise<unknown>): Promise<{ pid: number; startedMs: number }> {
  const deadline = performance.now() + STREAMING_MS
  while (performance.now() < deadline) {
    const { rows } = await client.query<{ pid: number; ms: number }>(
      `select a.pid, extract(epoch from a.backend_start)::float8 * 1000 as ms
       from pg_replication_slots s join pg_stat_activity a on a.pid = s.active_pid where s.slot_name = $1`,
      [slot],
    )
    if (rows[0]) return { pid: rows[0].pid, startedMs: rows[0].ms }
    await Promise.race([setTimeout(LOOK_EVERY_MS), failed]) // a system that gives up says why
  }
  throw new Error(`nobody reads slot ${slot} after ${STREAMING_MS / 1000} s`)
}

async function tooLong(system: System): Promise<never> {
  await setTimeout(DRAIN_MS, undefined, { ref: false })
  throw new Error(`${system.name} did not drain the range within ${DRAIN_MS / 1000} s`)
}

/** The walsender may need a moment to see that its reader has gone. */
export async function dropSlot(client: Client, slot: string): Promise<void> {
  const deadline = performance.now() + STREAMING_MS
  for (;;) {
    try {
      await client.query('select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = $1', [slot])
      return
    } catch (error) {
      if ((error as { code?: string }).code !== '55006' /* object_in_use */ || performance.now() > deadline) throw error
      await client.query(
        'select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = $1 and active_pid is not null',
        [slot],
      )
      await setTimeout(LOOK_EVERY_MS)
    }
  }
}
