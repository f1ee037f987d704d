/** `tailrace messages`: looks at the messages of a sink that wait, failed, were given up or delivered, and edits them, through the API. */
import { isObject } from '../engine/json.ts'
import type { MessageRecord } from '../engine/dispatch/parked/message-records.ts'
import { print, printJson, UsageError } from './command.ts'
import { service, type Access } from './running-service.ts'
import { table } from './table.ts'

type Verb = 'ls' | 'get' | 'redeliver' | 'acknowledge' | 'discard'
type Options = Access & Readonly<{ state?: string; order?: string; limit?: string; json?: boolean }>

const DONE = { redeliver: 'to be delivered again', acknowledge: 'acknowledged', discard: 'discarded' } as const
const PAGE = 1_000
const MAX_IDS = 1_000

/** Does with messages of a sink what the verb says. @param of `ids`: of messages @throws UsageError, CommandFailed; EngineError SERVICE_UNREACHABLE */
export async function messages(
  verb: Verb,
  { sink, ids }: Readonly<{ sink: string; ids: readonly string[] }>,
  options: Options,
): Promise<void> {
  const { state, order, limit, json: isJson = false } = options
  refuseOdd(verb, ids, options)
  const ask = await service(options)
  const path = `/sinks/${encodeURIComponent(sink)}/messages`
  if (verb === 'ls') {
    const wanted = Number(limit ?? 100)
    const found: MessageRecord[] = []
    let cursor: string | undefined
    do {
      const asked = { state, order, cursor, limit: String(Math.min(PAGE, wanted - found.length)) }
      const query = new URLSearchParams(
        Object.entries(asked).flatMap(([key, value]): [string, string][] => (value === undefined ? [] : [[key, value]])),
      )
      const { data, next_cursor } = await ask('GET', `${path}?${query.toString()}`)
      found.push(...(data as readonly MessageRecord[])) // of the same release
      cursor = typeof next_cursor === 'string' ? next_cursor : undefined
    } while (cursor !== undefined && found.length < wanted)
    if (isJson) return printJson({ data: found, ...(cursor !== undefined && { next_cursor: cursor }) })
    if (found.length === 0) return print(`"${sink}" has no such messages.`)
    print(table(['ID', 'STATE', 'TABLE', 'KEY', 'ACTION', 'TRIES ', 'ERROR'], found.map(rowOf)))
    if (cursor !== undefined) process.stderr.write('There are more: --limit shows them.\n')
  } else if (verb === 'get') {
    const one = await ask('GET', `${path}/${encodeURIComponent(ids[0] ?? '')}`)
    if (isJson) return printJson(one)
    const { attempts, message, functions, ...record } = one
    const shown = (value: unknown) => (isObject(value) || Array.isArray(value) ? JSON.stringify(value) : String(value))
    print(table([], Object.entries(record).map(([key, value]) => [key, shown(value)]))) // prettier-ignore
    const parts = Object.entries({ attempts, message, functions })
    for (const [name, value] of parts) print(`${name}:\n${JSON.stringify(value, undefined, 2)}`)
  } else {
    const isAll = state !== undefined
    const lists = isAll ? [{ state }] : Array.from({ length: Math.ceil(ids.length / MAX_IDS) }, (_, at) => ({ ids: ids.slice(at * MAX_IDS, (at + 1) * MAX_IDS) })) // prettier-ignore
    let changed = 0
    // one is asked for by its path, which says why it can't be done
    if (!isAll && ids.length === 1) changed = Number((await ask('POST', `${path}/${encodeURIComponent(ids[0] ?? '')}/${verb}`))['messages'])
    else for (const body of lists) changed += Number((await ask('POST', `${path}/${verb}`, body))['messages'])
    if (isJson) return printJson({ success: true, messages: changed })
    print(`${changed} messages ${DONE[verb]}`)
  }
}

/** @throws UsageError */
function refuseOdd(verb: Verb, ids: readonly string[], { state, order, limit }: Options): void {
  if (verb === 'ls' && ids.length > 0) throw new UsageError(`ls takes no message ("${ids[0]}" came)`)
  if (verb === 'get' && ids.length !== 1) throw new UsageError('get takes the id of one message')
  if (verb === 'get' && state !== undefined) throw new UsageError('--state is of ls, redeliver, acknowledge and discard')
  if (verb !== 'ls' && (order ?? limit) !== undefined) throw new UsageError(`--${order === undefined ? 'limit' : 'order'} is of ls`)
  if (limit !== undefined && !/^[1-9]\d{0,8}$/.test(limit)) throw new UsageError('--limit is a whole number from 1')
  if (verb === 'ls' || verb === 'get') return
  if (ids.length > 0 === (state !== undefined)) throw new UsageError(`${verb} takes either ids of messages or --state`)
}

function rowOf(message: MessageRecord): readonly string[] {
  const { id, state, table: from, record_pks: keys, action, deliver_count, error } = message
  const key = keys.map((one) => one ?? 'null').join(',')
  return [id, state, from ?? '', key, action, String(deliver_count), (error ?? '').replaceAll(/\s+/g, ' ').slice(0, 80)]
}
