/**
 * Puts the health of a sink together from what each process says of its own part of it: of every check the worst answer counts,
 * and says which process gave it. A process that doesn't answer is a warning of its own. Pure.
 */
import { worst, type CheckStatus, type Health, type HealthCheck } from '../../engine/status.ts'

/** `health` undefined: the process doesn't answer. */
type PartialHealth = Readonly<{ node: string; health: Health | undefined }>

/** Worst last. What one process has not seen yet (`waiting`) another may have: that is no worse than a notice. */
const WORST_LAST: readonly CheckStatus[] = ['notice', 'waiting', 'healthy', 'initializing', 'paused', 'stale', 'warning', 'error']
const isWorse = (one: HealthCheck, other: HealthCheck) => WORST_LAST.indexOf(one.status) > WORST_LAST.indexOf(other.status)

/**
 * Puts the health of a sink together. @param parts of the processes that run the sink, and of those that don't answer. @returns
 * undefined: no process runs it
 */
export function wholeHealth(parts: readonly PartialHealth[]): Health | undefined {
  const known = parts.filter((part): part is { node: string; health: Health } => part.health !== undefined)
  const [first] = known
  if (!first) return undefined
  const worstOf = new Map<string, HealthCheck>()
  for (const { node, health } of known) {
    for (const check of health.checks) {
      const former = worstOf.get(check.name)
      if (!former || isWorse(check, former)) worstOf.set(check.name, known.length > 1 ? at(node, check) : check)
    }
  }
  const silent = parts.filter(({ health }) => health === undefined).map(({ node }) => node)
  const error = { code: 'PEER_UNREACHABLE', message: `no answer from ${silent.join(', ')}: the health of the sink there is not known` }
  const checks = [...worstOf.values(), ...(silent.length > 0 ? [{ name: 'Nodes', status: 'warning', error } as const] : [])]
  return { name: first.health.name, status: worst(checks), checks }
}

/** Adds the name of the process to a check, where something is wrong. */
const at = (node: string, check: HealthCheck): HealthCheck => (check.error ? { ...check, error: { ...check.error, node } } : check)
