/** What processes used between two moments: CPU and memory, from Linux' /proc. Elsewhere the figures are absent. */
import { readdirSync, readFileSync } from 'node:fs'

/** Linux reports CPU time in ticks of 1/100 s to every program, whatever the kernel's own timer is. */
const TICKS_PER_SECOND = 100
const SAMPLE_EVERY_MS = 100

export type Usage = Readonly<{
  /** user and system time of all the group's processes */
  cpuSeconds: number
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
  rss: number
  anon: number
}

export class UsageMeter implements Disposable {
  readonly #groups: readonly Group[]
  readonly #timer: NodeJS.Timeout

  /** Counts from now on. */
  constructor(processes: Processes) {
    this.#groups = Object.entries(processes).map(([name, pids]) => ({ name, pids, start: new Map(), last: new Map(), rss: 0, anon: 0 }))
    this.#sample(true)
    this.#timer = setInterval(() => this.#sample(false), SAMPLE_EVERY_MS)
  }

  #sample(first: boolean): void {
    for (const group of this.#groups) {
      let [rss, anon] = [0, 0]
      for (const pid of group.pids()) {
        const cpu = cpuSeconds(pid)
        if (cpu === undefined) continue
        if (!group.start.has(pid)) group.start.set(pid, first ? cpu : 0) // a process that came later counts whole
        group.last.set(pid, cpu)
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
        { cpuSeconds: round(used(group)), peakRssMb: round(group.rss), peakAnonMb: round(group.anon) },
      ]),
    )
  }

  [Symbol.dispose](): void {
    clearInterval(this.#timer)
  }
}

const round = (value: number): number => Math.round(value * 100) / 100

function cpuSeconds(pid: number): number | undefined {
  const text = read(`/proc/${pid}/stat`)
  if (text === undefined) return undefined
  const fields = text.slice(text.lastIndexOf(')') + 2).split(' ') // the name before it may hold spaces
  return (Number(fields[11]) + Number(fields[12])) / TICKS_PER_SECOND
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

function pids(): number[] {
  try {
    return readdirSync('/proc')
      .filter((name) => /^\d+$/.test(name))
      .map(Number)
  } catch {
    return [] // no Linux
  }
}

function read(file: string): string | undefined {
  try {
    return readFileSync(file, 'utf8')
  } catch {
    return undefined // ended meanwhile, or no Linux
  }
}
