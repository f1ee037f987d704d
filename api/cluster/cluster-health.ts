/**
 * How a sink is, put together from what each process says of its own part of it: of every check the worst answer counts,
 * and says which process gave it. A process that doesn't answer is a warning of its own. Pure.
 */
import type { CheckStatus, Health } from '../../engine/status.ts'

/** `health` undefined: the process doesn't answer. */
type PartialHealth = Readonly<{ node: string; health: Health | undefined }>
type Check = Health['checks'][number]

/** Worst last. What one process has not seen yet (`waiting`) another may have: that is no worse than a notice. */
const RANKS: Readonly<Record<CheckStatus, number>> = {
  notice: 0,
  waiting: 1,
  healthy: 2,
  initializing: 3,
  paused: 4,
  stale: 5,
  warning: 6,
  error: 7,
}
const OVERALL: Readonly<Record<CheckStatus, Health['status']>> = {
  notice: 'healthy',
  waiting: 'healthy',
  healthy: 'healthy',
  initializing: 'initializing',
  paused: 'paused',
  stale: 'warning',
  warning: 'warning',
  error: 'error',
}

/** @param parts of the processes that run the sink, and of those that don't say; undefined: nobody runs it */
export function wholeHealth(parts: readonly PartialHealth[]): Health | undefined {
  const known = parts.filter((part): part is { node: string; health: Health } => part.health !== undefined)
  const [first] = known
  if (!first) return undefined
  const worst = new Map<string, Check>()
  for (const { node, health } of known) {
    for (const check of health.checks) {
      const former = worst.get(check.name)
      if (!former || RANKS[check.status] > RANKS[former.status]) worst.set(check.name, known.length > 1 ? at(node, check) : check)
    }
  }
  const silent = parts.filter(({ health }) => health === undefined).map(({ node }) => node)
  const error = { code: 'PEER_UNREACHABLE', message: `does not say how it is: ${silent.join(', ')}` }
  const checks: Check[] = [...worst.values(), ...(silent.length > 0 ? [{ name: 'Nodes', status: 'warning', error } as const] : [])]
  const status = checks.reduce<CheckStatus>((most, check) => (RANKS[check.status] > RANKS[most] ? check.status : most), 'notice')
  return { name: first.health.name, status: OVERALL[status], checks }
}

/** Which process it is, where something is wrong. */
function at(node: string, check: Check): Check {
  if (typeof check.error !== 'object' || check.error === null) return check
  return { ...check, error: { ...check.error, node } }
}
