/**
 * `tailrace verify`: compares a table with what the destination of a sink has, page by page through the API, prints what differs, and has just
 * that read again by a backfill.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { escapeIdentifier, escapeLiteral } from 'pg'
import type { Difference, Verified } from '../actors/sink/sink-verification.ts'
import { qualified } from '../engine/postgres/table-name.ts'
import { CommandFailed, print, printJson, UsageError } from './command.ts'
import { service, type Access, type Ask } from './running-service.ts'

type Options = Access &
  Readonly<{ mode?: string; sample?: string; limit?: string; redeliver?: boolean; backfill?: boolean; json?: boolean }>
type Key = Readonly<Record<string, string>>
/** The fields of a sink that a comparison needs. */
type Compared = Readonly<{
  destination: Readonly<{ type: string }>
  source?: Readonly<{ include_tables?: readonly string[] | null }>
}>
/** Adds up the pages of a comparison. */
type Sums = {
  rows: number
  documents: number
  dropped: number
  failed: number
  changing: number
  unknown: number
  settled: boolean
} & Record<Difference['kind'], number>

const MODES = ['count', 'sample', 'full'] as const
const SAMPLE = 1_000
const PAGE = 1_000
/** of keys that are printed; all are counted */
const PRINTED = 1_000
/** More differences are no longer the matter of single rows. */
const MAX_MENDED = 10_000
const KEYS_EACH = 200
const LOOK_EVERY_MS = 500

/** Compares, and sets the exit code: 1 when something differs. @throws UsageError, CommandFailed; EngineError SERVICE_UNREACHABLE */
export async function verify(name: string, words: readonly string[], options: Options): Promise<void> {
  const { sample, json = false } = options
  const isToMend = options.redeliver === true || options.backfill === true
  const mode = MODES.find((one) => one === (options.mode ?? (sample === undefined ? 'full' : 'sample')))
  if (!mode) throw new UsageError(`--mode must be one of ${MODES.join(', ')}; "${options.mode}" came`)
  if (options.limit !== undefined && !/^\d{1,9}$/.test(options.limit)) throw new UsageError('--limit is a whole number of keys')
  const most = Number(options.limit ?? PRINTED)
  if (words.length > 1) throw new UsageError(`"${words[1]}" is one argument too many`)
  if (sample !== undefined && (mode !== 'sample' || !/^[1-9]\d{0,5}$/.test(sample)))
    throw new UsageError('--sample is a whole number of rows, of --mode sample')
  if (isToMend && mode === 'count') throw new UsageError('--redeliver needs to know which rows differ: not with --mode count')
  const ask = await service(options)
  const path = `/sinks/${encodeURIComponent(name)}`
  const sink = (await ask('GET', path)) as Compared // of the same release
  const table = words[0] === undefined ? onlyTable(sink) : qualified(words[0])
  const things = sink.destination.type === 'sequin_stream' ? 'keys of the stream' : 'documents'
  const look = async (what: string, limit: number, after?: string | null) =>
    (await ask('POST', `${path}/verify`, {
      table,
      what,
      ...(what !== 'count' && { limit }),
      ...(typeof after === 'string' && { after }),
    })) as Verified // of the same release
  if (mode === 'count') return counted(await look('count', PAGE), { table, json, things })
  const sums: Sums = {
    rows: 0,
    documents: 0,
    dropped: 0,
    failed: 0,
    changing: 0,
    unknown: 0,
    settled: true,
    missing: 0,
    different: 0,
    extra: 0,
  }
  const keys: Key[] = []
  const listed: Difference[] = []
  let all = 0
  let limits: string | null = null
  const take = (found: Verified, of: 'rows' | 'documents') => {
    limits ??= found.limits
    sums[of] += found.compared
    for (const name of ['dropped', 'failed', 'changing', 'unknown'] as const) sums[name] += found[name]
    sums.settled &&= found.settled
    for (const one of found.differences) {
      sums[one.kind]++
      if (one.key && one.kind !== 'extra' && keys.length <= MAX_MENDED) keys.push(one.key)
      if (++all > most) continue
      if (json) listed.push(one)
      else print(`${one.kind.padEnd(9)} ${one.id}${one.key ? `  ${JSON.stringify(one.key)}` : ''}`)
    }
  }
  if (mode === 'sample')
    for (let left = Number(sample ?? SAMPLE); left > 0; left -= PAGE) take(await look('sample', Math.min(PAGE, left)), 'rows')
  else {
    const progress = progressOf(await look('count', PAGE))
    for (const what of ['rows', 'documents'] as const)
      for (let after: string | null | undefined; after !== null;) {
        const found = await look(what, PAGE, after)
        progress.clear()
        take(found, what)
        progress.show(sums)
        after = found.next
      }
    progress.clear()
  }
  const isMended = isToMend && keys.length > 0 && (await mended({ ask, path, table, keys, isQuiet: json }))
  if (json) printJson({ table, mode, ...sums, limits, differences: listed, backfilled: isMended ? keys.length : 0 })
  else print(`${all > most ? `… and ${count(all - most)} more (--limit)\n` : ''}${summed(table, sums)}`)
  if (!json && !sums.settled) process.stderr.write('The sink stands still, or is far behind: some differences may be on their way.\n')
  if (!json && limits !== null) process.stderr.write(`${limits}.\n`)
  if (!json && sums.extra > 0 && things === 'documents')
    process.stderr.write('Extra documents have no row, or one that the filter drops: delete them at the destination.\n')
  const open = isMended ? sums.extra : sums.missing + sums.different + sums.extra
  if (open > 0 || !sums.settled) process.exitCode = 1
}

function onlyTable({ source }: Compared): string {
  const [table, another] = source?.include_tables ?? []
  if (table !== undefined && another === undefined) return table
  throw new CommandFailed('name the table: the sink does not say that it takes just one', 2)
}

function counted({ rows, documents }: Verified, { table, json, things }: Readonly<{ table: string; json: boolean; things: string }>): void {
  const isEqual = rows === documents
  if (json) printJson({ table, mode: 'count', rows, documents })
  else print(`${table}: ${count(rows ?? 0)} rows, ${count(documents ?? 0)} ${things}${isEqual ? '' : ': they differ, which a filter or another table of the sink may explain'}`) // prettier-ignore
  if (!isEqual) process.exitCode = 1
}

function summed(table: string, { rows, documents, dropped, failed, changing, unknown, missing, different, extra }: Sums): string {
  const also = Object.entries({ 'dropped by the filter': dropped, 'that functions fail on': failed, 'that changed all the time': changing })
    .filter(([, number]) => number > 0)
    .map(([what, number]) => `, ${count(number)} ${what}`)
  const known = unknown === 0 ? '' : documents > 0 ? `, ${count(unknown)} of unknown rows` : `, ${count(unknown)} not known to the stream`
  const index = documents > 0 ? ` and ${count(documents)} documents${known}` : known
  return `${table}: ${count(rows)} rows${also.join('')}${index} compared: ${count(missing)} missing, ${count(different)} different, ${count(extra)} extra`
}

/** A bar, on a terminal alone. */
function progressOf({ rows, documents }: Verified) {
  const { stderr } = process
  const all = Math.max(1, (rows ?? 0) + (documents ?? 0))
  const clear = () => void (stderr.isTTY && stderr.write('\r\u001B[K'))
  const show = (sums: Sums) => {
    if (!stderr.isTTY) return
    const done = Math.min(1, (sums.rows + sums.documents) / all)
    const full = Math.round(done * 30)
    stderr.write(
      `${'█'.repeat(full)}${'░'.repeat(30 - full)} ${Math.floor(done * 100)} %  ${count(sums.rows)} rows, ${count(sums.documents)} documents`,
    )
  }
  return { clear, show }
}

type Mending = Readonly<{ ask: Ask; path: string; table: string; keys: readonly Key[]; isQuiet: boolean }>

/** Has the rows of some keys read again, and waits until they have been. @returns whether all were */
async function mended({ ask, path, table, keys, isQuiet }: Mending): Promise<boolean> {
  if (keys.length > MAX_MENDED)
    throw new CommandFailed(`more than ${count(MAX_MENDED)} rows differ: backfill the table (tailrace backfill start)`)
  for (let at = 0; at < keys.length; at += KEYS_EACH) {
    const some = keys.slice(at, at + KEYS_EACH)
    const { id } = await ask('POST', `${path}/backfills`, { table, where: conditionOf(some) })
    for (;;) {
      const { state, error } = await ask('GET', `${path}/backfills/${String(id)}`)
      if (state === 'completed') break
      if (state !== 'active') throw new CommandFailed(`the backfill ${String(id)} is ${String(state)}: ${JSON.stringify(error)}`)
      await delay(LOOK_EVERY_MS)
    }
  }
  if (!isQuiet) print(`${count(keys.length)} rows were read again, and are on their way to the destination.`)
  return true
}

/** Names rows in SQL: the values are texts, which PostgreSQL takes as the types of their columns. */
function conditionOf(keys: readonly Key[]): string {
  const columns = Object.keys(keys[0] ?? {})
  const names = columns.map((name) => escapeIdentifier(name)).join(', ')
  const values = keys.map((key) => `(${columns.map((column) => escapeLiteral(key[column] ?? '')).join(', ')})`)
  return `(${names}) in (${values.join(', ')})`
}

const count = (number: number): string => number.toLocaleString('en')
