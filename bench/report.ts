/** What a run of the bench says: lines for people, the same figures as JSON, and the limits they have. */
import { cpus, release, totalmem, type } from 'node:os'
import { execFileSync } from 'node:child_process'
import { version } from '../cli/version.ts'
import type { Usage } from './process-usage.ts'
import type { BesideDrain, BesideDrains, BesideLatency, BesidePhase } from './scenarios/backfill-beside.ts'
import type { Backfilled, BackfillTurn } from './scenarios/backfill.ts'
import type { BackfilledTables } from './scenarios/backfill-tables.ts'
import type { Drain } from './scenarios/drain.ts'
import type { Management } from './scenarios/management.ts'
import type { Delays } from './system.ts'
import type { Idle } from './scenarios/idle.ts'
import type { Latency } from './scenarios/latency.ts'
import type { LogCost } from './scenarios/log-cost.ts'
import type { SinksResult, SinksRun } from './scenarios/sinks.ts'
import type { Webhook } from './scenarios/webhook.ts'
import { median, spread, type Spread } from './statistics.ts'

export type Environment = Readonly<{
  machine: string
  cores: number
  memoryGb: number
  system: string
  node: string
  postgres: string
  tailrace: string
  commit: string
}>

export function environment(postgres: string): Environment {
  return {
    machine: cpus()[0]?.model ?? 'unknown',
    cores: cpus().length,
    memoryGb: Math.round(totalmem() / 2 ** 30),
    system: `${type()} ${release()}`,
    node: process.version,
    postgres,
    tailrace: version(),
    commit: commit(),
  }
}

/** The commit, and a mark when the tree differs from it; a copy without its history has none. */
function commit(): string {
  const git = (...args: string[]) => execFileSync('git', args, { cwd: import.meta.dirname, encoding: 'utf8', stdio: 'pipe' }).trim()
  try {
    return git('rev-parse', '--short', 'HEAD') + (git('status', '--porcelain') === '' ? '' : ' with changes')
  } catch {
    return 'unknown'
  }
}

export type Summary = Readonly<{
  system: string
  runs: number
  changesPerSecond: Spread
  /** to the first system's rate in the same turn */
  ratio: Spread
  processes: Record<string, Usage & { cpuMicrosecondsPerChange: number; cpuSpread: Spread }>
}>

/** @param turns each has one drain of every system, in the same order; ratios are to the first */
export function summarise(turns: readonly (readonly Drain[])[], changes: number): Summary[] {
  return (turns[0] ?? []).map(({ system, processes }, index) => {
    const runs = turns.map((turn) => turn[index] as Drain)
    const used = (name: string, key: 'cpuSeconds' | 'peakRssMb' | 'peakAnonMb') =>
      median(runs.map((run) => run.processes[name]?.[key] ?? 0))
    /** CPU seconds of the threads of each name */
    const threads = (process: string) => {
      const names = new Set(runs.flatMap((run) => Object.keys(run.processes[process]?.threads ?? {})))
      return Object.fromEntries(
        [...names].map((thread) => [thread, median(runs.map((run) => run.processes[process]?.threads[thread] ?? 0))]),
      )
    }
    return {
      system,
      runs: runs.length,
      changesPerSecond: spread(runs.map((run) => run.changesPerSecond)),
      ratio: spread(turns.map((turn, i) => (runs[i] as Drain).changesPerSecond / (turn[0] as Drain).changesPerSecond)),
      processes: Object.fromEntries(
        Object.keys(processes).map((name) => {
          const cpuSeconds = used(name, 'cpuSeconds')
          const figures = { cpuSeconds, threads: threads(name), peakRssMb: used(name, 'peakRssMb'), peakAnonMb: used(name, 'peakAnonMb') }
          const cpuSpread = spread(runs.map((run) => ((run.processes[name]?.cpuSeconds ?? 0) * 1e6) / changes))
          return [name, { ...figures, cpuMicrosecondsPerChange: (cpuSeconds * 1e6) / changes, cpuSpread }]
        }),
      ),
    }
  })
}

const thousands = (value: number): string => Math.round(value).toLocaleString('en')

export function environmentLines({ machine, cores, memoryGb, system, node, postgres, tailrace, commit: revision }: Environment): string {
  return `${machine}, ${cores} cores, ${memoryGb} GB, ${system} · Node ${node} · ${postgres} · Tailrace ${tailrace} at ${revision}`
}

/** One drain, while others are still to come. */
export function turnLine({ system, changesPerSecond, processes }: Drain, changes: number): string {
  const { service } = processes
  return `${system} ${Math.round(changesPerSecond)}/s${service ? ` ${((service.cpuSeconds * 1e6) / changes).toFixed(1)} µs` : ''}`
}

export function drainLines(summaries: readonly Summary[]): string {
  return summaries
    .flatMap(({ system, runs, changesPerSecond: rate, ratio: toLimit, processes }) => [
      `${system}: ${thousands(rate.median)} changes/s (${thousands(rate.lowest)}–${thousands(rate.highest)}, ${runs} runs), ratio ${ratio(toLimit)}`,
      ...Object.entries(processes).flatMap(([name, used]) => [
        `    ${name.padEnd(20)} ${used.cpuSeconds.toFixed(2).padStart(6)} s CPU  ${used.cpuMicrosecondsPerChange.toFixed(1).padStart(5)} µs a change ` +
          `(${used.cpuSpread.lowest.toFixed(1)}–${used.cpuSpread.highest.toFixed(1)})  ` +
          `${String(Math.round(used.peakRssMb)).padStart(5)} MB peak, ${String(Math.round(used.peakAnonMb)).padStart(5)} MB of it private`,
        ...(name === 'service' ? [threadLine(used)] : []),
      ]),
    ])
    .join('\n')
}

/** Threads that used next to nothing are left out. */
function threadLine({ threads, cpuSeconds, cpuMicrosecondsPerChange }: Summary['processes'][string]): string {
  const told = Object.entries(threads).filter(([, seconds]) => seconds > cpuSeconds / 100)
  const each = told.map(([name, seconds]) => `${name} ${((seconds / cpuSeconds) * cpuMicrosecondsPerChange).toFixed(2)}`)
  return `    ${''.padEnd(20)} of it ${each.join(', ')} µs`
}

/** What is left of a system's drain with each of the others, within a turn. */
export function shareLines(turns: readonly (readonly Drain[])[], of: string, others: readonly string[]): string {
  const rate = (turn: readonly Drain[], name: string) => turn.find(({ system }) => system === name)?.changesPerSecond
  return others
    .map((name) => `${name}: ${ratio(spread(turns.map((turn) => (rate(turn, name) ?? NaN) / (rate(turn, of) ?? NaN))))} of ${of}`)
    .join('\n')
}

export function latencyLine({ system, writtenPerSecond, wantedPerSecond, seconds, delays }: Latency): string {
  const missed = writtenPerSecond < wantedPerSecond * 0.98 ? ` (the writer was to make ${thousands(wantedPerSecond)})` : ''
  return (
    `${system} at ${thousands(writtenPerSecond)} changes/s${missed} for ${seconds} s: ` +
    `p50 ${delays.p50Ms} ms, p90 ${delays.p90Ms} ms, p99 ${delays.p99Ms} ms, p99.9 ${delays.p999Ms} ms, max ${delays.maxMs} ms (${thousands(delays.count)} changes)`
  )
}

export function logCostLine({ log, messages, bodyBytes, append, read }: LogCost): string {
  const work = ({ seconds, cpuSeconds }: LogCost['append']) =>
    `${thousands(messages / seconds)} messages/s, ${((cpuSeconds * 1e6) / messages).toFixed(1)} µs of CPU each`
  return `log ${log}, messages of ${bodyBytes} bytes: append ${work(append)}; read ${work(read)}`
}

/** One row for each number of partitions, one column for each number of processes. */
export function scaleLines(cells: readonly Readonly<{ partitions: number; processes: number; ratio: Spread }>[]): string {
  const processes = [...new Set(cells.map((cell) => cell.processes))]
  const partitions = [...new Set(cells.map((cell) => cell.partitions))]
  const cell = (p: number, n: number) => cells.find((each) => each.partitions === p && each.processes === n)?.ratio.median.toFixed(2) ?? ''
  const row = (head: string, rest: readonly string[]) => [head.padEnd(12), ...rest.map((text) => text.padStart(12))].join('')
  return [
    row(
      'partitions',
      processes.map((n) => (n === 1 ? '1 process' : `${n} processes`)),
    ),
    ...partitions.map((p) =>
      row(
        String(p),
        processes.map((n) => cell(p, n)),
      ),
    ),
  ].join('\n')
}

/** @param without the same system with no idle sinks */
export function idleLines(without: Idle, idle: Idle): string {
  const core = (idle.corePercent - without.corePercent) / idle.sinks
  const memory = (idle.privateMb - without.privateMb) / idle.sinks
  const start = `${idle.startSeconds.toFixed(1)} s (${without.startSeconds.toFixed(1)} s without)`
  return [
    `${idle.system}: an idle sink costs ${core.toFixed(3)} % of a core and ${memory.toFixed(2)} MB (${idle.sinks} of them)`,
    `    all together: start until streaming ${start}, ${idle.corePercent.toFixed(1)} % of a core (${without.corePercent.toFixed(1)} %), ` +
      `${Math.round(idle.privateMb)} MB private (${Math.round(without.privateMb)} MB); ` +
      `PATCH of one p50 ${idle.patch?.p50Ms.toFixed(1)} ms, p99 ${idle.patch?.p99Ms.toFixed(1)} ms`,
  ].join('\n')
}

/** Prints the rate and the cost of many sinks, each beside that of one sink alone in the same pair. */
export function sinksLines({ kind, sinks, changes, processes, pairs }: SinksResult): string {
  const of = (figure: (run: SinksRun) => number) => median(pairs.map(({ many }) => figure(many)))
  const times = (figure: (run: SinksRun) => number) => ratio(spread(pairs.map(({ alone, many }) => figure(many) / figure(alone))))
  const cpu = (run: SinksRun) => ((run.processes['service']?.cpuSeconds ?? 0) * 1e6) / changes
  const further = spread(pairs.map(({ alone, many }) => (many.privateMb - alone.privateMb) / (sinks - 1)))
  const rate = (run: SinksRun) => run.messagesPerSecond
  const lines = [
    `${sinks} sinks (${kind}), ${thousands(changes)} changes, ${pairs.length} pairs: ${thousands(of(rate))} messages/s ` +
      `${kind === 'pull' ? 'of the one that is read' : 'together'}, ${times(rate)} of one sink alone (${thousands(median(pairs.map(({ alone }) => rate(alone))))})`,
    `    CPU of the service ${of(cpu).toFixed(1)} µs a change, ${times(cpu)} times that of one; private ${Math.round(of((run) => run.privateMb))} MB, ` +
      `${further.median.toFixed(2)} MB (${further.lowest.toFixed(2)}–${further.highest.toFixed(2)}) a further sink`,
  ]
  const starts = pairs.flatMap(({ alone, many }) => (alone.start && many.start ? [{ alone: alone.start, many: many.start }] : []))
  if (starts.length > 0)
    lines.push(
      `    all were served ${median(starts.map(({ many }) => many.seconds)).toFixed(1)} s after the walsender began (one alone: ` +
        `${median(starts.map(({ alone }) => alone.seconds)).toFixed(1)}), ${median(starts.map(({ many }) => many.cpuSeconds)).toFixed(2)} s of CPU; the drain began then`,
    )
  const besides = pairs.flatMap(({ many, beside }) => (beside ? [{ many, beside }] : []))
  if (besides.length > 0)
    lines.push(
      `    ${ratio(spread(besides.map(({ many, beside }) => rate(many) / rate(beside))))} times the messages/s of the other checkout ` +
        `(${thousands(median(besides.map(({ beside }) => rate(beside))))}), at ${ratio(spread(besides.map(({ many, beside }) => cpu(many) / cpu(beside))))} times its CPU of the service`,
    )
  if (kind !== 'webhook on Kafka')
    return [...lines, `    log ${Math.round(of((run) => run.logMb))} MB, ${times((run) => run.logMb)} times that of one`].join('\n')
  const written = (run: SinksRun) => run.kafka?.writtenMb ?? Number.NaN
  const fetched = (run: SinksRun) => run.kafka?.fetchedMb ?? Number.NaN
  return [
    ...lines,
    `    Kafka was given ${Math.round(of(written))} MB, ${times(written)} times that of one; ${Math.round(of(fetched))} MB were fetched, ` +
      `${of((run) => fetched(run) / (processes * written(run))).toFixed(2)} times ${processes} processes x what was written`,
  ].join('\n')
}

const ratio = ({ median: middle, lowest, highest }: Spread): string => `${middle.toFixed(2)} (${lowest.toFixed(2)}–${highest.toFixed(2)})`

export const LIMITS = [
  'What it is: whole processes on one machine, nothing simulated, the same range of the write-ahead log for every system in turn.',
  'What it is not: a network between them, several tables, wide rows, more sinks than one, functions, or a machine with cores to spare;',
  'Postgres, service and client share the cores, so on few of them the ratio says how much CPU is left, not how fast the service alone is.',
]

export function backfillLines({ rows, rowBytes, turns }: Backfilled): string {
  type Way = keyof BackfillTurn
  const rate = (way: Way) => `${thousands(median(turns.map((turn) => turn[way].rowsPerSecond)))} rows/s`
  const share = (way: Way, of: Way) => ratio(spread(turns.map((turn) => turn[way].rowsPerSecond / turn[of].rowsPerSecond)))
  const used = (way: Way) =>
    Object.keys(turns[0]?.[way].processes ?? {})
      .map((name) => {
        const each = (figure: (usage: Usage) => number) => median(turns.map((turn) => figure(turn[way].processes[name] as Usage)))
        return `${name} ${each(({ cpuSeconds }) => (cpuSeconds * 1e6) / rows).toFixed(1)} µs, ${Math.round(each(({ peakAnonMb }) => peakAnonMb))} MB`
      })
      .join('; ')
  return [
    `backfill of ${thousands(rows)} rows of ${rowBytes} bytes, ${turns.length} turns; CPU a row and private memory by process`,
    `COPY of row_to_json: ${rate('copy')} (${used('copy')})`,
    `into the log: ${rate('log')}, ${share('log', 'copy')} of COPY (${used('log')})`,
    `to a filter that lets nothing pass: ${rate('filter')}, ${share('filter', 'copy')} of COPY (${used('filter')})`,
    `to a client: ${rate('read')}, ${share('read', 'drain')} of its drain (${used('read')})`,
    `that client's drain of the same rows from the stream: ${rate('drain')} (${used('drain')})`,
  ].join('\n')
}

const BESIDE_NAMES = {
  read: 'to a client of another sink',
  log: 'into the log, for another sink whose filter lets nothing pass',
  own: 'to the same sink and client',
} as const

/** Prints how long changes take while a backfill goes on, beside how long they take without. */
export function besideLatencyLines({ beside, rows, perSecond, seconds, turns }: BesideLatency): string {
  const of = (figure: (phase: BesidePhase) => number) => {
    const [idle, backfill] = (['idle', 'backfill'] as const).map((which) => spread(turns.map((turn) => figure(turn[which]))))
    return { idle, backfill, times: spread(turns.map((turn) => figure(turn.backfill) / figure(turn.idle))) }
  }
  const line = (name: string, figure: (phase: BesidePhase) => number) => {
    const { idle, backfill, times } = of(figure)
    return `    ${name} ${idle ? ratio(idle) : ''} ms without, ${backfill ? ratio(backfill) : ''} ms beside it: ${ratio(times)} times`
  }
  const { idle, backfill } = of(({ retainedMb }) => retainedMb)
  const used = Object.keys(turns[0]?.backfill.processes ?? {}).map((name) => {
    const core = (which: 'idle' | 'backfill') =>
      median(turns.map((turn) => ((turn[which].processes[name]?.cpuSeconds ?? 0) / turn[which].seconds) * 100)).toFixed(0)
    return `${name} ${core('backfill')} % (${core('idle')} %)`
  })
  return [
    `backfill of ${thousands(rows)} rows ${BESIDE_NAMES[beside]}, ${thousands(median(turns.map((turn) => turn.backfill.rowsPerSecond)))} rows/s, ` +
      `beside ${thousands(perSecond)} changes/s of another table for ${seconds} s, ${turns.length} turns`,
    line('p50', ({ delays }) => delays.p50Ms),
    line('p99', ({ delays }) => delays.p99Ms),
    line('p99.9', ({ delays }) => delays.p999Ms),
    `    write-ahead log behind the slot at most ${backfill?.highest.toFixed(1)} MB (${idle?.highest.toFixed(1)} MB without); of a core: ${used.join(', ')}`,
  ].join('\n')
}

/** Prints the drain of one of many sinks while another is being backfilled, beside that without. */
export function besideDrainLines({ sinks, changes, pairs }: BesideDrains): string {
  const of = (figure: (drain: BesideDrain) => number) => ({
    backfill: median(pairs.map(({ backfill }) => figure(backfill))),
    without: median(pairs.map(({ without }) => figure(without))),
    times: ratio(spread(pairs.map(({ backfill, without }) => figure(backfill) / figure(without)))),
  })
  const rate = of(({ perSecond }) => perSecond)
  const cpu = of(({ processes }) => ((processes['service']?.cpuSeconds ?? 0) * 1e6) / changes)
  const others = of(({ othersMb }) => othersMb)
  const log = of(({ logMb }) => logMb)
  return [
    `${sinks} sinks, one of them read, ${thousands(changes)} changes, ${pairs.length} pairs: ${thousands(rate.backfill)}/s while another is being backfilled, ` +
      `${thousands(rate.without)}/s without, ${rate.times} of it`,
    `    CPU of the service ${cpu.backfill.toFixed(1)} µs a change (${cpu.without.toFixed(1)}), ${cpu.times} times; backlog of another sink ` +
      `${others.backfill.toFixed(1)} MB (${others.without.toFixed(1)}); log ${log.backfill.toFixed(0)} MB (${log.without.toFixed(0)})`,
  ].join('\n')
}

export function managementLines({ sinks, tables, applyMs, calls, perSecond, seconds, beside }: Management): string {
  const times = (figure: (delays: Delays) => number) => ratio(spread(beside.map(({ without, edited }) => figure(edited) / figure(without))))
  const each = (which: 'without' | 'edited', figure: (delays: Delays) => number) =>
    median(beside.map((turn) => figure(turn[which]))).toFixed(1)
  const line = (name: string, figure: (delays: Delays) => number) =>
    `    ${name} ${each('without', figure)} ms without, ${each('edited', figure)} ms beside them: ${times(figure)} times`
  return [
    `${thousands(sinks)} sinks on ${thousands(tables)} tables, made by one file in ${(applyMs / 1000).toFixed(1)} s; calls one after the other`,
    ...Object.entries(calls).map(([name, { p50Ms, p99Ms }]) => `    ${name}: p50 ${p50Ms.toFixed(1)} ms, p99 ${p99Ms.toFixed(1)} ms`),
    ...(beside.length === 0
      ? []
      : [
          `${thousands(perSecond)} changes/s to the client of one sink for ${seconds} s, beside ` +
            `${median(beside.map(({ editsPerSecond }) => editsPerSecond)).toFixed(1)} edits a second of other sinks, ${beside.length} turns`,
          line('p50', ({ p50Ms }) => p50Ms),
          line('p99', ({ p99Ms }) => p99Ms),
        ]),
  ].join('\n')
}

export function backfillTablesLines({ tables, initialMs, answeredMs, namedMs, calls }: BackfilledTables): string {
  const seconds = (ms: number) => `${(ms / 1000).toFixed(1)} s`
  return [
    `backfill of ${thousands(tables)} tables, most of them empty`,
    `with a new sink: all have ended after ${seconds(initialMs)}`,
    `by name: answered after ${seconds(answeredMs)}, all have ended after ${seconds(namedMs)}`,
    `calls while they are active: ${Object.entries(calls)
      .map(([path, ms]) => `${path} ${Math.round(ms)} ms`)
      .join(', ')}`,
  ].join('\n')
}

export function webhookLines({ batch, single, turns }: Webhook): string {
  const rate = (figure: (turn: Webhook['turns'][number]) => number) => `${thousands(median(turns.map(figure)))}/s`
  const of = (figure: (turn: Webhook['turns'][number]) => number) => median(turns.map(figure)).toFixed(1)
  return [
    `webhook, batches of 100: ${rate((turn) => turn.batch.changesPerSecond)}, ratio to the raw limit ${ratio(batch)}`,
    `webhook, one by one: ${rate((turn) => turn.single.perSecond)}, ratio to a loop of requests ${ratio(single)}`,
    `    µs of CPU a message: ${of((turn) => turn.single.senderCpu)} and the receiver's ${of((turn) => turn.single.receiverCpu)}; the loop ${of((turn) => turn.loop.senderCpu)} and ${of((turn) => turn.loop.receiverCpu)}`,
  ].join('\n')
}
