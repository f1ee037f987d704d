/**
 * A measured system: one adapter each in systems/. Every one gets the same task, a slot that stands before the same
 * range of the write-ahead log, and is measured from outside in the same way, so that another one can be set beside it.
 */
import type { Processes } from './process-usage.ts'

export type Task = Readonly<{
  /** the database with the workload */
  database: Readonly<{ host: string; port: number; database: string; user: string; password: string }>
  slot: string
  publication: string
  /** `schema.table` */
  table: string
  /** settle `reached` once this many changes are acknowledged; Infinity: go on until closed */
  changes: number
  /** how long a change took from `written_at` in its row until the reader had it is recorded */
  recordDelays: boolean
  /** where the system leaves a CPU profile of itself, if it can */
  profileFolder?: string
}>

/** Milliseconds since the epoch, with fractions: comparable between processes of a machine. */
export const wallClock = (): number => performance.timeOrigin + performance.now()

export interface Running extends AsyncDisposable {
  readonly processes: Processes
  /** @returns when the last of the task's changes was acknowledged, by wallClock; rejects when the system gives up */
  readonly reached: Promise<number>
  /** when it had warmed up, by wallClock; absent: it isn't asked to */
  readonly warm?: Promise<number>
  /** Lets go of what it was told to hold back; absent: it holds nothing. @returns when, by wallClock */
  readonly begin?: () => Promise<number>
  /** what it recorded of delays; absent: it is there to be drained alone */
  readonly delays?: DelayRecord
}

export type DelayRecord = Readonly<{
  read(): Promise<Delays>
  /** Forgets what was recorded so far. */
  reset(): Promise<void>
}>

export type Delays = Readonly<{ count: number; p50Ms: number; p90Ms: number; p99Ms: number; p999Ms: number; maxMs: number }>

export type System<R extends Running = Running> = Readonly<{
  name: string
  /** what is done, in one line of the report */
  description: string
  start: (task: Task) => Promise<R>
}>
