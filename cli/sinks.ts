/** `tailrace sinks`: shows, pauses, makes and deletes the sinks of a running Tailrace, through its API. */
import { createInterface } from 'node:readline/promises'
import { text as readAll } from 'node:stream/consumers'
import { parse } from 'yaml'
import { errorText } from '../engine/errors.ts'
import { fieldsOf, isObject } from '../engine/json.ts'
import type { Health } from '../engine/status.ts'
import { CommandFailed, print, printJson, UsageError } from './command.ts'
import { service, type Access } from './running-service.ts'
import { table } from './table.ts'
import { readText } from './text-file.ts'

type Verb = 'ls' | 'get' | 'pause' | 'resume' | 'create' | 'delete'
type Options = Access & Readonly<{ json?: boolean; yes?: boolean }>
/** A sink as the API shows it, as far as it is told here. */
export type ShownSink = Readonly<{
  id: string
  name: string
  status: string
  database: string
  destination: Readonly<{ type: string }> & Readonly<Record<string, unknown>>
  health: Health
}>

const STATUS_OF = { pause: 'paused', resume: 'active' } as const

/** Does with sinks what the verb says. @param words names of sinks, or a file @throws UsageError, CommandFailed; EngineError SERVICE_UNREACHABLE */
export async function sinks(verb: Verb, words: readonly string[], options: Options): Promise<void> {
  const isJson = options.json === true
  if (verb === 'ls' && words.length > 0) throw new UsageError(`ls takes no sink ("${words[0]}" came)`)
  if (verb !== 'ls' && words.length === 0) throw new UsageError(verb === 'create' ? 'FILE is missing' : 'SINK is missing: its name')
  if ((verb === 'get' || verb === 'create') && words.length > 1) throw new UsageError(`"${words[1]}" is one argument too many`)
  if (options.yes !== undefined && verb !== 'delete') throw new UsageError(`--yes is of delete, not of ${verb}`)
  const form = verb === 'create' ? await formIn(words[0] ?? '') : undefined
  const ask = await service(options)
  const pathOf = (name: string) => `/sinks/${encodeURIComponent(name)}`
  if (verb === 'ls') {
    const all = await listSinks(options)
    if (isJson) return printJson({ data: all })
    if (all.length === 0) return print('There are no sinks.')
    const rows = all.map((one) => [one.name, one.destination.type, one.status, one.health.status, one.database, worstOf(one)])
    return print(table(['NAME', 'TYPE', 'STATUS', 'HEALTH', 'DATABASE', ''], rows))
  }
  if (verb === 'get') {
    const one = await ask('GET', pathOf(words[0] ?? ''))
    return isJson ? printJson(one) : print(described(one))
  }
  if (verb === 'create') {
    const one = await ask('POST', '/sinks', form)
    return isJson ? printJson(one) : print(`${String(one['name'])}: created (${String(one['id'])})`)
  }
  if (verb === 'delete' && options.yes !== true && !(await isConfirmed(words))) throw new CommandFailed('nothing was deleted')
  const done: unknown[] = []
  for (const name of words) {
    const answer = verb === 'delete' ? await ask('DELETE', pathOf(name)) : await ask('PATCH', pathOf(name), { status: STATUS_OF[verb] })
    done.push(answer)
    if (!isJson) print(`${name}: ${verb === 'delete' ? 'deleted' : String(answer['status'])}`)
  }
  if (isJson) printJson(done.length === 1 ? done[0] : { data: done })
}

/** Lists the sinks of the account. @throws CommandFailed; EngineError SERVICE_UNREACHABLE */
export async function listSinks(access: Access): Promise<readonly ShownSink[]> {
  const { data } = await (await service(access))('GET', '/sinks')
  return Array.isArray(data) ? (data as readonly ShownSink[]) : [] // of the same release
}

/** Says in short what is wrong with a sink: its first check that is not well. */
function worstOf({ health }: ShownSink): string {
  const check = health.checks.find(({ status }) => status === health.status && status !== 'healthy' && status !== 'paused')
  return check?.error === undefined ? '' : `${check.error.code}: ${check.error.message}`.slice(0, 100)
}

function described(sink: Readonly<Record<string, unknown>>): string {
  const { health, ...fields } = sink
  const { status, checks } = health as Health // of the same release
  const shown = (value: unknown) => (isObject(value) || Array.isArray(value) ? JSON.stringify(value) : String(value))
  const rows = Object.entries(fields).filter(
    ([, value]) => value !== null && value !== 'none' && !(Array.isArray(value) && value.length === 0),
  )
  const told = checks.map((check) => [`  ${check.name}`, check.status, check.error ? `${check.error.code}: ${check.error.message}` : ''])
  return `${table([], rows.map(([key, value]) => [key, shown(value)]))}\nhealth: ${status}\n${table([], told)}` // prettier-ignore
}

/** Reads a sink from a file in YAML or JSON, as one stands in the configuration file. @throws UsageError; EngineError ARGUMENT_INVALID */
async function formIn(file: string): Promise<object> {
  const text = file === '-' ? await readAll(process.stdin) : readText(file)
  let form: unknown
  try {
    form = parse(text)
  } catch (error) {
    throw new CommandFailed(`${file} is neither YAML nor JSON: ${errorText(error)}`, 2)
  }
  if (isObject(form) && !('sinks' in fieldsOf(form))) return form
  throw new CommandFailed(`${file} must hold one sink, a mapping with name, database and destination; "config apply" takes several`, 2)
}

/** @throws CommandFailed: nobody can be asked */
async function isConfirmed(names: readonly string[]): Promise<boolean> {
  const { stdin: input, stdout: output } = process
  if (!input.isTTY || !output.isTTY)
    throw new CommandFailed('nothing was deleted: there is no terminal to ask at; --yes deletes without asking')
  const terminal = createInterface({ input, output })
  const gone = new AbortController()
  terminal.once('close', () => gone.abort()) // Ctrl-C or Ctrl-D
  const question = `Delete ${names.join(', ')}, with everything that waits there? (yes or no) `
  const answer = await terminal.question(question, { signal: gone.signal }).catch(() => '')
  terminal.close()
  return /^y(?:es)?$/i.test(answer.trim())
}
