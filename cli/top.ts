/** `tailrace top`: a table of databases and sinks as they are, by what the API says of them; on a terminal it goes on. */
import { setTimeout as delay } from 'node:timers/promises'
import { styleText } from 'node:util'
import { durationText, sizeText } from '../engine/amounts.ts'
import { fieldsOf, isObject, objectsOf } from '../engine/json.ts'
import { print, printJson, UsageError } from './command.ts'
import { service, type Access, type Ask } from './running-service.ts'
import type { ShownSink } from './sinks.ts'
import { table } from './table.ts'

type Options = Access & Readonly<{ json?: boolean; once?: boolean; interval?: string }>
type Figures = Readonly<Record<string, unknown>>
/** How a database is. Rates are per second, null before a second look. */
type Source = Readonly<{
  name: string
  state: string
  in_per_second: number | null
  slot_lag_bytes: number | null
  slot_retained_bytes: number | null
  error: string | null
}>
/** How a sink is. @property waiting messages that were read from the log and are not finished; @property backlog_bytes all that is not, in the log and parked */
type SinkRow = Readonly<{
  name: string
  type: string
  database: string
  status: string
  health: string
  out_per_second: number | null
  failed_per_second: number | null
  waiting: number
  backlog_bytes: number
  oldest_ms: number
  failing: number
  problem: string | null
}>
/** Counts that only grow, by what they are of, and when they were looked at. */
type Counts = Readonly<{ at: number; by: ReadonlyMap<string, number> }>
type Look = Readonly<{ sources: readonly Source[]; sinks: readonly SinkRow[]; counts: Counts }>

const SAMPLE_MS = 1_000
const HELD = new Set(['inspecting', 'opening', 'streaming'])

/** Shows how databases and sinks are. @throws UsageError, CommandFailed; EngineError SERVICE_UNREACHABLE: at the first look */
export async function top({ json = false, once = false, interval = '2', ...access }: Options): Promise<void> {
  if (!/^\d{1,4}(\.\d+)?$/.test(interval) || Number(interval) < 0.2) throw new UsageError('--interval is a number of seconds from 0.2')
  const ask = await service(access)
  const first = await look(ask, undefined)
  await delay(SAMPLE_MS)
  let now = await look(ask, first.counts)
  if (json) return printJson({ sources: now.sources, sinks: now.sinks })
  if (once || !process.stdout.isTTY) return print(shown(now))
  for (;;) {
    // from the top of the screen, over what stands there, so that nothing flickers
    process.stdout.write(`\u001B[H${shown(now).replaceAll('\n', '\u001B[K\n')}\u001B[K\n\u001B[J`)
    await delay(Number(interval) * 1_000)
    now = await look(ask, now.counts).catch((error: Error) => {
      process.stdout.write(`\u001B[H${styleText('red', error.message)}\u001B[K\n`)
      return now
    })
  }
}

async function look(ask: Ask, before: Counts | undefined): Promise<Look> {
  const [info, { data }] = await Promise.all([ask('GET', '/info'), ask('GET', '/sinks')])
  const at = performance.now()
  const by = new Map<string, number>()
  const seconds = before ? (at - before.at) / 1_000 : 0
  /** A count that went down began anew, with a process. */
  const rate = (key: string, count: number): number | null => {
    by.set(key, count)
    const former = before?.by.get(key)
    return former === undefined || seconds === 0 ? null : Math.max(0, count - former) / seconds
  }
  const actors = objectsOf(info['nodes']).flatMap((node) => objectsOf(node['actors']))
  const ofKind = (kind: string) => Map.groupBy(actors.filter((one) => one['kind'] === kind), (one) => String(one['id'])) // prettier-ignore
  const sources = [...ofKind('source')].map(([id, all]): Source => {
    const one = all.find(({ state }) => HELD.has(String(state))) ?? all[0] ?? {}
    const details = fieldsOf(one['details'])
    return {
      name: String(one['name']),
      state: String(one['state']),
      in_per_second: rate(id, sum(all, 'ingestedMessages')),
      slot_lag_bytes: numberOf(details['slotConfirmedBytes']),
      slot_retained_bytes: numberOf(details['slotRetainedBytes']),
      error: isObject(one['last_error']) && !HELD.has(String(one['state'])) ? String(one['last_error']['message']) : null,
    }
  })
  const backlogs = new Map<string, number>()
  for (const reader of objectsOf(info['streams']).flatMap((stream) => objectsOf(stream['readers']))) {
    const id = String(reader['sink_id'])
    backlogs.set(id, (backlogs.get(id) ?? 0) + (numberOf(reader['backlog_bytes']) ?? 0))
  }
  const bySink = ofKind('sink')
  const sinks = (Array.isArray(data) ? (data as readonly ShownSink[]) : []).map((sink): SinkRow => {
    const id = `sink/${sink.id}`
    const all = bySink.get(id) ?? []
    const check = sink.health.checks.find(({ status }) => status === sink.health.status)
    return {
      name: sink.name,
      type: sink.destination.type,
      database: sink.database,
      status: sink.status,
      health: sink.health.status,
      out_per_second: rate(`${id} out`, sum(all, 'delivered')),
      failed_per_second: rate(`${id} failed`, sum(all, 'failed')),
      waiting: sum(all, 'unfinished'),
      backlog_bytes: backlogs.get(sink.id) ?? 0,
      oldest_ms: Math.max(0, ...all.map((one) => numberOf(fieldsOf(one['details'])['oldestMs']) ?? 0)),
      failing: sum(all, 'parked'),
      problem: check?.error === undefined ? null : `${check.error.code}: ${check.error.message}`,
    }
  })
  return { sources, sinks, counts: { at, by } }
}

const sum = (actors: readonly Figures[], figure: string): number =>
  actors.reduce((total, one) => total + (numberOf(fieldsOf(one['details'])[figure]) ?? 0), 0)
const numberOf = (value: unknown): number | null => (typeof value === 'number' ? value : null)

const COLORS = { error: 'red', warning: 'yellow', healthy: 'green', initializing: 'cyan', paused: 'gray' } as const

function shown({ sources, sinks }: Look): string {
  const paint = (health: ShownSink['health']['status']) => styleText(COLORS[health], health, { stream: process.stdout })
  const ofSources = sources.map((one) => [
    one.name,
    one.state,
    perSecond(one.in_per_second),
    one.slot_lag_bytes === null ? '' : sizeText(one.slot_lag_bytes),
    one.slot_retained_bytes === null ? '' : sizeText(one.slot_retained_bytes),
    cut(one.error),
  ])
  const ofSinks = sinks.map((one) => [
    one.name,
    one.type,
    one.status,
    paint(one.health as keyof typeof COLORS),
    perSecond(one.out_per_second),
    perSecond(one.failed_per_second),
    String(one.waiting),
    sizeText(one.backlog_bytes),
    age(one.oldest_ms),
    String(one.failing),
    cut(one.problem),
  ])
  const heads = ['SINK', 'TYPE', 'STATUS', 'HEALTH', 'OUT/s ', 'FAILED/s ', 'WAITING ', 'BACKLOG ', 'OLDEST ', 'PARKED ', '']
  return [table(['DATABASE', 'STATE', 'IN/s ', 'SLOT LAG ', 'RETAINED ', ''], ofSources), '', table(heads, ofSinks)].join('\n')
}

const cut = (text: string | null): string => (text ?? '').replaceAll(/\s+/g, ' ').slice(0, 80)
const perSecond = (rate: number | null): string => (rate === null ? '' : rate >= 100 ? rate.toFixed(0) : rate.toFixed(1))

const age = (ms: number): string => (ms < 1_000 ? `${Math.round(ms)} ms` : durationText(ms / 1_000))
