/** `tailrace backfill`: begins and watches backfills of a running Tailrace, through its API. */
import { setTimeout as pause } from 'node:timers/promises'
import { durationText } from '../engine/amounts.ts'
import { objectsOf } from '../engine/json.ts'
import { qualified } from '../engine/postgres/table-name.ts'
import { columns, CommandFailed, print, printJson, UsageError } from './command.ts'
import { service, type Access, type Ask } from './running-service.ts'

type Verb = 'start' | 'ls' | 'get' | 'pause' | 'resume' | 'cancel' | 'delete'
type Options = Access &
  Readonly<{
    all?: boolean
    where?: string
    'sort-column'?: string
    from?: string
    'max-timeout-ms'?: string
    wait?: boolean
    json?: boolean
  }>
/** A backfill as the API shows it. */
type Shown = Readonly<{
  id: string
  state: string
  table: string
  rows_initial_count: number | null
  rows_processed_count: number
  rows_per_second: number | null
  seconds_left: number | null
  waiting: string | null
  error: Readonly<{ code: string; message: string }> | null
  inserted_at: string
}>

const LOOK_EVERY_MS = 500
const STATE_OF = { pause: 'paused', resume: 'active', cancel: 'cancelled' } as const
const DONE = { start: 'begun', pause: 'paused', resume: 'resumed', cancel: 'cancelled', delete: 'deleted' } as const

/** Does with backfills of a sink what the verb says. @param of `words`: tables, or ids of backfills @throws UsageError, CommandFailed; EngineError SERVICE_UNREACHABLE */
export async function backfill(
  verb: Verb,
  { sink, words }: Readonly<{ sink: string; words: readonly string[] }>,
  options: Options,
): Promise<void> {
  refuseOdd(verb, words, options)
  const ask = await service(options)
  const path = `/sinks/${encodeURIComponent(sink)}/backfills`
  const list = async () => listIn(await ask('GET', path))
  if (verb === 'ls') {
    const all = await list()
    if (options.json === true) return printJson({ data: all })
    return print(all.length > 0 ? columns(all.map(rowOf)) : `"${sink}" has no backfills.`)
  }
  const meant =
    verb === 'start' ? await begin(ask, path, words, options) : chosen(verb, await list(), { sink, words, isAll: options.all === true })
  const changed: Shown[] = []
  for (const one of meant) {
    const own = `${path}/${one.id}`
    if (verb === 'delete') await ask('DELETE', own)
    const isMoved = verb === 'pause' || verb === 'resume' || verb === 'cancel'
    changed.push(isMoved ? shownIn(await ask('PATCH', own, { state: STATE_OF[verb] })) : one)
    if (options.json !== true && verb !== 'get') {
      const why = verb === 'start' && one.waiting !== null ? `; it waits: ${one.waiting}` : ''
      print(`${one.table}: ${DONE[verb]} (${one.id})${why}`)
    }
  }
  const isJson = options.json === true
  const last = options.wait === true ? await untilEnded(changed, list, isJson) : changed
  if (isJson) printJson(last.length === 1 ? last[0] : { data: last })
  else if (verb === 'get' && options.wait !== true) for (const one of last) print(progressOf(one))
  if (options.wait === true && last.some(({ state }) => state !== 'completed')) process.exitCode = 1
}

/** @throws UsageError */
function refuseOdd(verb: Verb, words: readonly string[], options: Options): void {
  const only = (names: readonly (keyof Options)[], verbs: readonly Verb[]) => {
    const odd = names.find((name) => options[name] !== undefined)
    if (odd !== undefined && !verbs.includes(verb)) throw new UsageError(`--${odd} is of ${verbs.join(', ')}, not of ${verb}`)
  }
  only(['where', 'sort-column', 'from', 'max-timeout-ms'], ['start'])
  only(['all'], ['start', 'pause', 'resume', 'cancel'])
  only(['wait'], ['start', 'get', 'resume'])
  if (options.all === true && words.length > 0) throw new UsageError(`--all stands in the place of tables, and "${words[0]}" is one`)
  if (verb === 'ls' && words.length > 0) throw new UsageError(`ls takes no table ("${words[0]}" came)`)
  if (verb === 'delete' && words.length === 0) throw new UsageError('delete needs the table or the id of a backfill')
}

async function begin(ask: Ask, path: string, tables: readonly string[], options: Options): Promise<readonly Shown[]> {
  const { all, where, 'sort-column': sort_column, from: start_position, 'max-timeout-ms': limit } = options
  const [table] = tables
  // what is left out is no member of the JSON
  const answer = await ask('POST', path, {
    ...(all === true ? { tables: 'all' } : tables.length > 1 ? { tables } : { table }),
    where,
    sort_column,
    start_position,
    max_timeout_ms: limit === undefined || !/^\d{1,9}$/.test(limit) ? limit : Number(limit), // else the service says what is wrong with it
  })
  return Array.isArray(answer['data']) ? listIn(answer) : [shownIn(answer)]
}

/** Finds the backfills that are meant. @param all of the sink, newest first @throws CommandFailed */
function chosen(
  verb: Exclude<Verb, 'start' | 'ls'>,
  all: readonly Shown[],
  { sink, words, isAll }: Readonly<{ sink: string; words: readonly string[]; isAll: boolean }>,
): readonly Shown[] {
  const isOpen = ({ state }: Shown) => state === 'active' || state === 'paused'
  const open = all.filter(isOpen)
  if (isAll) return open
  if (words.length === 0 && verb === 'get') {
    const [newest] = all
    if (newest) return [newest]
    throw new CommandFailed(`"${sink}" has no backfills`)
  }
  if (words.length === 0) {
    if (open.length === 1) return open
    if (open.length === 0) throw new CommandFailed(`"${sink}" has no backfill that has not ended`)
    throw new CommandFailed(`"${sink}" has ${open.length} backfills that have not ended: name a table, or all of them by --all`, 2)
  }
  return words.map((word) => {
    const found = all.find(({ id }) => id === word.toLowerCase()) ?? open.find(isOf(word)) ?? all.find(isOf(word))
    if (!found) throw new CommandFailed(`"${sink}" has no backfill of ${qualified(word)}`)
    return found
  })
}
const isOf =
  (table: string) =>
  (one: Shown): boolean =>
    one.table === qualified(table)

/** Tells how far they are until the last one has ended: on a terminal all the time, else when one ends. @returns them as they are then */
async function untilEnded(begun: readonly Shown[], list: () => Promise<readonly Shown[]>, isQuiet: boolean): Promise<readonly Shown[]> {
  const wanted = new Set(begun.map(({ id }) => id))
  const told = new Set<string>()
  const { stderr } = process
  const clear = stderr.isTTY ? '\r\u001B[K' : ''
  for (;;) {
    const now = (await list()).filter(({ id }) => wanted.has(id))
    if (now.length < wanted.size) throw new CommandFailed('a backfill was deleted meanwhile')
    const open = now.filter(({ state }) => state === 'active' || state === 'paused')
    for (const one of now) {
      if (open.includes(one) || told.has(one.id)) continue
      told.add(one.id)
      if (isQuiet) continue
      stderr.write(clear)
      print(progressOf(one))
    }
    const [first] = open
    if (!first) return now
    const others = now.length > 1 ? `${now.length - open.length} of ${now.length} ended; ` : ''
    if (stderr.isTTY && !isQuiet)
      stderr.write(`${clear}${`${others}${progressOf(first)}`.slice(0, Math.max(20, (stderr.columns || 80) - 1))}`)
    await pause(LOOK_EVERY_MS)
  }
}

/** Says in a line how far a backfill is. */
function progressOf({ table, state, waiting, error, ...one }: Shown): string {
  const { rows_processed_count: read, rows_initial_count: about, rows_per_second: speed, seconds_left: left } = one
  const of = about === null || about < read ? '' : ` of about ${count(about)}`
  const percent = about === null || about <= 0 || about < read ? '' : ` (${Math.floor((100 * read) / about)} %)`
  const pace = [speed === null ? '' : `, ${count(speed)} a second`, left === null ? '' : `, ${durationText(left)} left`].join('')
  const why = error ? `: ${error.code}: ${error.message}` : waiting === null ? '' : `: it waits, ${waiting}`
  const rows = state === 'completed' ? `${count(read)} rows` : `${count(read)}${of} rows${percent}${pace}`
  return `${table}: ${state}, ${rows}${why}`
}

const rowOf = (one: Shown): readonly [string, string] => [one.inserted_at.slice(0, 19) + 'Z', `${one.id}  ${progressOf(one)}`]
const count = (rows: number): string => rows.toLocaleString('en')

const shownIn = (body: unknown): Shown => body as Shown // of the same release
const listIn = ({ data }: Readonly<Record<string, unknown>>): readonly Shown[] => objectsOf(data).map(shownIn)
