/** What processes used between two moments: CPU and memory, from Linux' /proc. Elsewhere the figures are absent. */
import { readdirSync, readFileSync } from 'node:fs'

/** Linux reports CPU time in ticks of 1/100 s to every program, whatever the kernel's own timer is. */
const TICKS_PER_SECOND = 100
const SAMPLE_EVERY_MS = 100

export type Usage = Readonly<{
  /** user and system time of all the group's processes */
  cpuSeconds: number
  /** the same by the name that the system knows a thread by: Node's are MainThread, V8Worker (garbage, compiler), libuv-worker (files) */
  threads: Readonly<Record<string, number>>
  /** the highest seen; of a group, the sum at that moment */
  peakRssMb: number
  /** private memory alone: pages of mapped files, such as the log's, don't count */
  peakAnonMb: number
}>

/** Names a process, or a changing group of them. */
export type Processes = Readonly<Record<string, () => readonly number[]>>

type Group = {
  readonly name: string
  readonly pids: () => readonly number[]
  /** CPU seconds by process: when first seen, when last seen */
  readonly start: Map<number, number>
  readonly last: Map<number, number>
  /** the same by thread, whose name is kept beside */
  readonly threads: Map<string, { readonly name: string; readonly start: number; last: number }>
  rss: number
  anon: number
}

export class UsageMeter implements Disposable {
  readonly #groups: readonly Group[]
  readonly #timer: NodeJS.Timeout

  /** Counts from now on. @param everyMs how often memory is looked at: of a process with many threads each look costs a millisecond */
  constructor(processes: Processes, everyMs = SAMPLE_EVERY_MS) {
    this.#groups = Object.entries(processes).map(([name, pids]) => ({
      name,
      pids,
      start: new Map(),
      last: new Map(),
      threads: new Map(),
      rss: 0,
      anon: 0,
    }))
    this.#sample(true)
    this.#timer = setInterval(() => this.#sample(false), everyMs)
  }

  #sample(first: boolean): void {
    for (const group of this.#groups) {
      let [rss, anon] = [0, 0]
      for (const pid of group.pids()) {
        const cpu = cpuSeconds(pid)
        if (cpu === undefined) continue
        if (!group.start.has(pid)) group.start.set(pid, first ? cpu : 0) // a process that came later counts whole
        group.last.set(pid, cpu)
        for (const { id, name, seconds } of threadsOf(pid)) {
          const thread = group.threads.get(id)
          if (thread) thread.last = seconds
          else group.threads.set(id, { name, start: first ? seconds : 0, last: seconds })
        }
        const memory = memoryMb(pid)
        rss += memory.rss
        anon += memory.anon
      }
      group.rss = Math.max(group.rss, rss)
      group.anon = Math.max(group.anon, anon)
    }
  }

  read(): Record<string, Usage> {
    this.#sample(false)
    const used = ({ start, last }: Group) => [...last].reduce((sum, [pid, cpu]) => sum + cpu - (start.get(pid) ?? 0), 0)
    return Object.fromEntries(
      this.#groups.map((group) => [
        group.name,
        { cpuSeconds: round(used(group)), threads: byName(group), peakRssMb: round(group.rss), peakAnonMb: round(group.anon) },
      ]),
    )
  }

  [Symbol.dispose](): void {
    clearInterval(this.#timer)
  }
}

function byName({ threads }: Group): Record<string, number> {
  const used: Record<string, number> = {}
  for (const { name, start, last } of threads.values()) used[name] = (used[name] ?? 0) + last - start
  return Object.fromEntries(Object.entries(used).map(([name, seconds]) => [name, round(seconds)]))
}

const round = (value: number): number => Math.round(value * 100) / 100

function cpuSeconds(pid: number): number | undefined {
  const text = read(`/proc/${pid}/stat`)
  if (text === undefined) return undefined
  const fields = text.slice(text.lastIndexOf(')') + 2).split(' ') // the name before it may hold spaces
  return (Number(fields[11]) + Number(fields[12])) / TICKS_PER_SECOND
}

/** The scheduler's own count, in nanoseconds, which no tick rounds. */
function threadsOf(pid: number): { id: string; name: string; seconds: number }[] {
  return entries(`/proc/${pid}/task`).flatMap((thread) => {
    const path = `/proc/${pid}/task/${thread}`
    const [name, used] = [read(`${path}/comm`), read(`${path}/schedstat`)]
    return name === undefined || used === undefined ? [] : [{ id: thread, name: name.trim(), seconds: Number(used.split(' ')[0]) / 1e9 }]
  })
}

function memoryMb(pid: number): { rss: number; anon: number } {
  const text = read(`/proc/${pid}/status`) ?? ''
  const field = (name: string) => Number(new RegExp(`^${name}:\\s+(\\d+) kB`, 'm').exec(text)?.[1] ?? 0) / 1024
  return { rss: field('VmRSS'), anon: field('RssAnon') }
}

/** The processes whose parent this is. */
export function childrenOf(parent: number): number[] {
  return pids().filter((pid) => {
    const text = read(`/proc/${pid}/stat`)
    return text !== undefined && Number(text.slice(text.lastIndexOf(')') + 2).split(' ')[1]) === parent
  })
}

const pids = (): number[] => entries('/proc').map(Number)

/** The numbered entries of a folder of /proc. */
function entries(folder: string): string[] {
  try {
    return readdirSync(folder).filter((name) => /^\d+$/.test(name))
  } catch {
    return [] // ended meanwhile, or no Linux
  }
}

function read(file: string): string | undefined {
  try {
    return readFileSync(file, 'utf8')
  } catch {
    return undefined // ended meanwhile, or no Linux
  }
}
