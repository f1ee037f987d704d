/** How actors say how they are: what `GET /info`, health and the logs show. */
export type CheckStatus = 'healthy' | 'warning' | 'error' | 'initializing' | 'paused' | 'waiting' | 'stale' | 'notice'

export type HealthCheck = Readonly<{
  name: string
  status: CheckStatus
  /** `node`: of a cluster, the process that has it */
  error?: Readonly<{ code: string; message: string; node?: string }>
}>

export type HealthStatus = 'healthy' | 'warning' | 'error' | 'initializing' | 'paused'

/** How a sink is as a whole, with what was looked at for that. */
export type Health = Readonly<{ name: string; status: HealthStatus; checks: readonly HealthCheck[] }>

/** Names and numbers only; never row values or secrets. */
export type Figures = Readonly<Record<string, string | number | boolean | null>>

export type ActorStatus = Readonly<{
  /** unique in the process, such as "sink/<id>" */
  id: string
  kind: string
  /** of the resource, when there is one */
  name?: string
  /** whose it is; absent: the process's own, shown to every account */
  accountId?: string
  /** state of its machine */
  state: string
  /** since when in this state */
  since?: Date
  lastError?: Readonly<{ error: unknown; at: Date }>
  details?: Figures
  /** one row for each partition */
  partitions?: readonly Figures[]
}>

const RANK: Readonly<Record<HealthStatus, number>> = { error: 4, warning: 3, paused: 2, initializing: 1, healthy: 0 }

/** The worst check wins; notices and waiting checks don't degrade, a stale one is a warning. */
export function worst(checks: readonly HealthCheck[]): HealthStatus {
  let status: HealthStatus = 'healthy'
  for (const check of checks) {
    const as: HealthStatus =
      check.status === 'notice' || check.status === 'waiting' ? 'healthy' : check.status === 'stale' ? 'warning' : check.status
    if (RANK[as] > RANK[status]) status = as
  }
  return status
}
