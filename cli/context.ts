/** `tailrace context`: names services with their tokens, so that neither has to be typed. */
import { createInterface } from 'node:readline/promises'
import { text as readAll } from 'node:stream/consumers'
import { Writable } from 'node:stream'
import { CommandFailed, print, printJson, UsageError } from './command.ts'
import { contextNamed, contextsFile, loadContexts, saveContexts } from './contexts.ts'
import { readSettings } from './settings.ts'
import { table } from './table.ts'

type Verb = 'add' | 'ls' | 'select' | 'info' | 'rm'
type Options = Readonly<{ url?: string; token?: string; select?: boolean; json?: boolean }>

/** Does with the contexts of the user what the verb says. @throws UsageError, CommandFailed; EngineError ARGUMENT_INVALID */
export async function context(verb: Verb, name: string, options: Options): Promise<void> {
  refuseOdd(verb, name, options)
  const isJson = options.json === true
  const { selected, all } = loadContexts()
  if (verb === 'add') {
    if (!/^[\w.-]{1,100}$/.test(name)) throw new UsageError('the name of a context has letters, digits, ".", "_" and "-"')
    const url = addressOf(options.url ?? readSettings().url ?? 'http://127.0.0.1:7376')
    const token = options.token ?? readSettings().token ?? (await typedToken())
    const isNew = all.every((one) => one.name !== name)
    const isSelected = options.select === true || selected === name || all.length === 0
    saveContexts({
      selected: isSelected ? name : selected,
      all: [...all.filter((one) => one.name !== name), { name, url, token }].toSorted((a, b) => (a.name < b.name ? -1 : 1)),
    })
    if (isJson) return printJson({ name, url, selected: isSelected })
    return print(`${name}: ${isNew ? 'added' : 'replaced'}${isSelected ? ', and selected' : ''}`)
  }
  if (verb === 'ls') {
    const rows = all.map((one) => ({ name: one.name, url: one.url, selected: one.name === selected }))
    if (isJson) return printJson({ data: rows })
    if (rows.length === 0) return print(`There are no contexts in ${contextsFile()}.`)
    return print(table(['', 'NAME', 'URL'], rows.map((row) => [row.selected ? '*' : '', row.name, row.url]))) // prettier-ignore
  }
  const meant = name === '' ? selected : name
  if (meant === undefined) throw new CommandFailed('no context is selected (tailrace context select NAME)', 2)
  const one = contextNamed(meant, { selected, all })
  if (verb === 'info') {
    const shown = { name: one.name, url: one.url, token: masked(one.token), selected: one.name === selected, file: contextsFile() }
    return isJson ? printJson(shown) : print(table([], Object.entries(shown).map(([key, value]) => [key, String(value)]))) // prettier-ignore
  }
  const isGone = verb === 'rm'
  saveContexts({
    selected: isGone ? (selected === one.name ? undefined : selected) : one.name,
    all: isGone ? all.filter((other) => other !== one) : all,
  })
  if (isJson) return printJson({ name: one.name, [isGone ? 'removed' : 'selected']: true })
  print(`${one.name}: ${isGone ? 'removed' : 'selected'}`)
}

/** @throws UsageError */
function refuseOdd(verb: Verb, name: string, options: Options): void {
  if (verb === 'ls' && name !== '') throw new UsageError(`ls takes no name ("${name}" came)`)
  if (name === '' && verb !== 'ls' && verb !== 'info') throw new UsageError('NAME is missing: of the context')
  for (const option of ['url', 'token', 'select'] as const)
    if (options[option] !== undefined && verb !== 'add') throw new UsageError(`--${option} is of add, not of ${verb}`)
}

/** @throws UsageError */
function addressOf(given: string): string {
  const url = URL.parse(given)
  const isOurs = url !== null && /^https?:$/.test(url.protocol) && url.username === '' && url.password === '' && url.search === ''
  if (!isOurs) throw new UsageError(`--url is an address such as https://tailrace.example.com, without user, password and query`)
  return url.href.replace(/(?<!\/)\/+$/, '')
}

/** Reads a token from a pipe, or asks for it on a terminal without showing it. @throws CommandFailed */
async function typedToken(): Promise<string> {
  const { stdin, stderr } = process
  const given = stdin.isTTY ? await asked() : await readAll(stdin)
  const token = given.trim()
  if (token !== '') return token
  throw new CommandFailed('a token is missing: type it, pipe it in, or set TAILRACE_TOKEN', 2)

  async function asked(): Promise<string> {
    stderr.write('API token (it is not shown): ')
    const silent = new Writable({ write: (_chunk, _encoding, done) => done() })
    const terminal = createInterface({ input: stdin, output: silent, terminal: true })
    const gone = new AbortController()
    terminal.once('close', () => gone.abort()) // Ctrl-C or Ctrl-D
    const answer = await terminal.question('', { signal: gone.signal }).catch(() => '')
    terminal.close()
    stderr.write('\n')
    return answer
  }
}

/** Shows enough of a token to know it by. */
const masked = (token: string): string => (token.length < 12 ? '…' : `${token.slice(0, 3)}…${token.slice(-2)}`)
