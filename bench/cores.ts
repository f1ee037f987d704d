/**
 * Gives who sends and who receives cores of their own, as two machines would: left to itself the kernel runs both on one core for
 * milliseconds at a time, for a write that wakes the other end looks like a hand-over, and the same work takes half as long
 * again in one run as in the next.
 */
import { spawnSync } from 'node:child_process'
import { readFileSync } from 'node:fs'

type Ends<T> = Readonly<{ sender: T; receiver: T }>

/** The receiver gets the last core, the sender all others. Undefined: there is one core alone, or no `taskset` (util-linux). */
export function coresApart(): Ends<string> | undefined {
  const cores = ownCores()
  const last = cores.pop()
  if (last === undefined || cores.length === 0 || spawnSync('taskset', ['--version']).status !== 0) return undefined
  return { sender: cores.join(','), receiver: String(last) }
}

/** Puts processes, and what they start from then on, on these cores. */
export function keepApart(cores: Ends<string> | undefined, pids: Ends<readonly number[]>): void {
  if (!cores) return
  for (const end of ['sender', 'receiver'] as const)
    for (const pid of pids[end]) spawnSync('taskset', ['--all-tasks', '--cpu-list', '--pid', cores[end], String(pid)])
}

/** Those that this process may run on: fewer than there are in a container, and not from 0 on. */
function ownCores(): number[] {
  let status: string
  try {
    status = readFileSync('/proc/self/status', 'utf8')
  } catch {
    return [] // no Linux
  }
  const [, list = ''] = /^Cpus_allowed_list:\s*(\S+)$/m.exec(status) ?? []
  return list.split(',').flatMap((part) => {
    const [first = Number.NaN, last = first] = part.split('-').map(Number)
    return Number.isNaN(first) ? [] : Array.from({ length: last - first + 1 }, (_, i) => first + i)
  })
}
