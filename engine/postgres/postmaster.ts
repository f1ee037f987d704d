/**
 * The process that serves a cluster, as it can be told from outside: by the pid file that PostgreSQL keeps in the
 * cluster. The file outlives a crash, and its number may be another process's by then (in containers it often is).
 */
import { codeOf } from '../errors.ts'
import { spawnSync } from 'node:child_process'
import { existsSync, readdirSync, readFileSync, readlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

/** Above every process id of every system, so never alive. */
const NOBODYS_PID = 2_147_483_646

/** Reads the pid file of a cluster. @returns what it says; undefined: there is none, or none that can be read */
export function postmasterOf(cluster: string): Readonly<{ pid: number; port: number }> | undefined {
  const lines = linesOf(cluster)
  const pid = Number(lines?.[0])
  return Number.isInteger(pid) && pid > 0 ? { pid, port: Number(lines?.[3]) || 0 } : undefined
}

/**
 * Says in the pid file that its process has ended, because the number belongs to another one now and PostgreSQL would
 * refuse to start. The rest stays: by it the server sees whether memory of the cluster is still in use.
 */
export function disownPidFile(cluster: string): void {
  const lines = linesOf(cluster)
  if (lines) writeFileSync(pidFile(cluster), [NOBODYS_PID, ...lines.slice(1)].join('\n'))
}

const pidFile = (cluster: string) => join(cluster, 'postmaster.pid')

function linesOf(cluster: string): readonly string[] | undefined {
  try {
    return readFileSync(pidFile(cluster), 'utf8').split('\n')
  } catch (error) {
    if (codeOf(error) === 'ENOENT') return undefined
    throw error
  }
}

/** Tells whether a process is alive. One that has ended and whose parent has not asked for it (in a container without an init) is not. */
export function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0)
  } catch (error) {
    if (codeOf(error) !== 'EPERM') return false
  }
  return stateOf(pid) !== 'Z'
}

/** Third field of /proc/…/stat; the second is a name in parentheses that may hold anything. */
function stateOf(pid: number): string | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
    return stat.charAt(stat.lastIndexOf(')') + 2)
  } catch {
    return undefined
  }
}

/** Sends a signal to a process, unless it has ended by now. */
export function signal(pid: number, name: NodeJS.Signals): void {
  try {
    process.kill(pid, name)
  } catch (error) {
    if (codeOf(error) !== 'ESRCH') throw error
  }
}

/** Tells whether a process was started as the server of this cluster, or works in it. */
export function serves(pid: number, cluster: string): boolean {
  if (worksIn(pid, cluster)) return true
  const args = argumentsOf(pid)
  const at = args.indexOf('-D')
  return (
    at >= 0 &&
    (args[at + 1] === cluster ||
      args
        .slice(at + 1)
        .join(' ')
        .startsWith(`${cluster} `))
  )
}

function argumentsOf(pid: number): readonly string[] {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0')
  } catch {
    if (existsSync('/proc/self')) return []
    return spawnSync('ps', ['-o', 'command=', '-p', String(pid)], { encoding: 'utf8' }).stdout?.split(' ') ?? []
  }
}

/** Finds the sessions that a killed server left at work: they hold its memory, and no other server starts on the cluster. Linux only. */
export function leftoversOf(cluster: string): readonly number[] {
  if (!existsSync('/proc/self')) return []
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .map(Number)
    .filter((pid) => worksIn(pid, cluster))
}

function worksIn(pid: number, cluster: string): boolean {
  try {
    return readlinkSync(`/proc/${pid}/cwd`) === cluster
  } catch {
    return false // it has ended, or is not ours to look at
  }
}
