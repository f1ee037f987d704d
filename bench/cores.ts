/**
 * Gives who sends and who receives cores of their own, as two machines would: left to itself the kernel runs both on one core for
 * milliseconds at a time, for a write that wakes the other end looks like a hand-over, and the same work takes half as long
 * again in one run as in the next.
 */
import { spawnSync } from 'node:child_process'
import { availableParallelism } from 'node:os'

/**
 * The receiver gets the last core, the sender all others; with what they start from then on.
 * @returns false: there is one core alone, or no `taskset` (util-linux), and nothing was done
 */
export function keepApart({ sender, receiver }: Readonly<{ sender: readonly number[]; receiver: readonly number[] }>): boolean {
  const last = availableParallelism() - 1
  if (last < 1) return false
  const pin = (pid: number, cores: string) => spawnSync('taskset', ['--all-tasks', '--cpu-list', '--pid', cores, String(pid)]).status === 0
  return [...receiver.map((pid) => pin(pid, `${last}`)), ...sender.map((pid) => pin(pid, `0-${last - 1}`))].every(Boolean)
}
