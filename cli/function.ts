/**
 * `tailrace function`: `test` runs a function from a file on messages from another, `build` puts it and the libraries that it
 * imports into one file, both without a server; `save` puts it into one that runs.
 */
import { readFileSync, watch } from 'node:fs'
import { basename, dirname, join, resolve } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { EngineError, errorText } from '../engine/errors.ts'
import { FUNCTION_FIELDS, FUNCTION_KINDS, SANDBOX_KINDS, type FunctionKind, type SandboxKind } from '../engine/state/function-kinds.ts'
import type { Connection } from '../engine/postgres/client-config.ts'
import { sinkTypeOf, routeTrial } from '../actors/resources/function-form.ts'
import { isObject, parseExact } from '../engine/json.ts'
import { FunctionPool, type AccountPool } from '../transforms/sandbox/pool.ts'
import { bundled, functionText, tellOutside, hasImports } from './bundle.ts'
import { CommandFailed, print, printJson, UsageError } from './command.ts'
import { databaseArgument } from './database-argument.ts'
import { service, type Access } from './running-service.ts'
import { tryEnrichment } from '../transforms/enrichment-trial.ts'
import { placeText } from '../transforms/sandbox/source-position.ts'
import { syntheticMessage } from '../transforms/synthetic-message.ts'
import { sampleOf } from '../transforms/table-sample.ts'
import { EXAMPLE, trialMessage, tryFunction, type TrialMessage, type TrialResult } from '../transforms/trial.ts'
import { readText, writeText } from './text-file.ts'

/** What a file may hold: each goes by the name of the setting of a sink that takes it. */
const TYPES = FUNCTION_FIELDS
type Type = FunctionKind
const MEMORY_MB = 512
/** One save of an editor may touch a file several times. */
const SETTLED_MS = 50

/** What a function is, as far as it was said. */
type Named = Readonly<{ file: string; type: Type | undefined; sinkType: string | undefined }>
/** The function to try, and the message to try it on. @property isWatched whatever goes wrong is mended next */
type Asked = Named &
  Readonly<{ input: string | undefined; database: string | undefined; table: string | undefined; isWatched: boolean; isJson: boolean }>
type Options = SaveOptions &
  Readonly<{ type?: string; 'sink-type'?: string; input?: string; database?: string; table?: string; watch?: boolean }> &
  Readonly<{ output?: string; minify?: boolean }>

/** Does with a function's file what the verb says. @throws UsageError, CommandFailed, EngineError */
export async function runFunction(verb: 'test' | 'build' | 'save', file: string, options: Options): Promise<void> {
  const { type: given, 'sink-type': sinkType, input, database, table, watch: isWatched = false, json: isJson = false } = options
  const type = TYPES.find((one) => one === given)
  if (type !== given) throw new UsageError(`--type must be one of ${TYPES.join(', ')}; "${given}" came`)
  if (table !== undefined && database === undefined) throw new UsageError('--table needs --database: the database that has the table')
  if (table !== undefined && input !== undefined) throw new UsageError('give either --input or --table')
  if (verb === 'build') return build(file, options)
  if (verb === 'save') return save({ file, type, sinkType }, options)
  for (const one of [file, ...(input === undefined ? [] : [input])]) readText(one)
  const asked = { file, type, sinkType, input, database, table, isWatched, isJson }
  const pool = new FunctionPool({ threads: 1, memoryMb: MEMORY_MB })
  const own = pool.of('')
  try {
    if (!isWatched && !(await tried(asked, own))) process.exitCode = 1
    if (isWatched)
      for await (const what of changes(asked)) {
        aside(asked, what)
        await tried(asked, own)
      }
  } finally {
    await pool.stop()
  }
}

/** @throws EngineError VALIDATION_FAILED, ARGUMENT_INVALID */
async function build(file: string, { output, minify = false, json = false }: Pick<Options, 'output' | 'minify' | 'json'>): Promise<void> {
  const target = output ?? `${file.replace(/\.[cm]?[jt]s$/, '')}.bundle.js`
  readText(file)
  const code = bundled(file, { minify, outside: tellOutside })
  writeText(target, code)
  const bytes = Buffer.byteLength(code)
  if (json) printJson({ file: target, bytes })
  else print(`${target}: ${bytes} bytes`)
}

type SaveOptions = Access & Readonly<{ name?: string; sink?: string; json?: boolean }>

/**
 * Creates a function in a running Tailrace from a file, or updates it by its name, and gives it to a sink.
 * @throws EngineError VALIDATION_FAILED: it can't be bundled; SERVICE_UNREACHABLE
 */
async function save(given: Named, { name = nameOf(given.file), sink, json = false, ...access }: SaveOptions): Promise<void> {
  const { kind, routes } = described(given)
  const code = functionText(given.file, tellOutside)
  const ask = await service(access)
  const path = `/functions/${encodeURIComponent(name)}`
  const form = { type: kind, code, sink_type: routes }
  const isKnown = await ask('GET', path).then(
    () => true,
    (error: unknown) => {
      if (error instanceof CommandFailed && error.code === 'NOT_FOUND') return false
      throw error
    },
  )
  const saved = isKnown ? await ask('PATCH', path, form) : await ask('POST', '/functions', { name, ...form })
  const { used_by, warnings } = saved
  const users = textsOf(used_by)
  const isGiven = sink !== undefined && !users.includes(sink)
  if (!json) {
    print(`${name}: ${isKnown ? 'updated' : 'saved'}, type ${kind}${users.length > 0 ? `; sinks that have it: ${users.join(', ')}` : ''}`)
    for (const warning of textsOf(warnings)) process.stderr.write(`it fails ${warning}\n`)
  }
  if (isGiven) await ask('PATCH', `/sinks/${encodeURIComponent(sink)}`, { [kind]: name })
  if (json) printJson(isGiven ? { ...saved, used_by: [...users, sink] } : saved)
  else if (isGiven) print(`${sink}: has it now`)
}

const textsOf = (list: unknown): readonly string[] => (Array.isArray(list) ? list.filter((one) => typeof one === 'string') : [])

const nameOf = (file: string): string => basename(file).replace(/(?:\.bundle)?\.[^.]+$/, '')

/**
 * Says what to run it for: at first, and after each change of the files, and of those beside a function that imports. Folders
 * are watched, for editors put another file in the place of the one that they save.
 */
async function* changes({ file, input }: Asked): AsyncGenerator<string> {
  const files = [file, ...(input === undefined ? [] : [input])].map((one) => resolve(one))
  const isWatched = (path: string) =>
    files.includes(path) || (dirname(path) === dirname(resolve(file)) && CODE.test(path) && importsOf(file))
  let changed = Promise.withResolvers<string>()
  const watchers = [...new Set(files.map((one) => dirname(one)))].map((folder) =>
    watch(folder, (_, name) => {
      const path = name === null ? undefined : join(folder, name)
      if (path === undefined || isWatched(path)) changed.resolve(path ?? folder)
    }),
  )
  try {
    yield `watching ${files.map((one) => basename(one)).join(', ')}; Ctrl-C ends\n`
    for (;;) {
      const path = await changed.promise
      await delay(SETTLED_MS)
      changed = Promise.withResolvers()
      yield `\n── ${new Date().toLocaleTimeString()} ${basename(path)} ──\n`
    }
  } finally {
    for (const watcher of watchers) watcher.close()
  }
}
const CODE = /\.(?:[cm]?[jt]s|json)$/

/** A file that isn't there at the moment imports nothing. */
function importsOf(file: string): boolean {
  try {
    return hasImports(readFileSync(file, 'utf8'))
  } catch {
    return false
  }
}

/** @returns whether it could be built and no message failed */
async function tried(asked: Asked, pool: AccountPool): Promise<boolean> {
  const { file, isWatched, isJson } = asked
  try {
    const { kind, routes } = described(asked)
    const connection = asked.database === undefined ? undefined : (await databaseArgument(asked.database)).connection
    const messages = await messagesFor(asked, kind, connection)
    const code = functionText(file, tellOutside)
    const written = { name: basename(file), type: kind, description: null, sinkType: sinkTypeOf(routes), code }
    const results =
      kind === 'enrichment' && connection
        ? await tryEnrichment(written, messages, { connection, pool })
        : await tryFunction(written, messages, pool, routeTrial(written.sinkType))
    if (messages[0] === EXAMPLE) aside(asked, `a ${kind}, on an example (--input FILE: on your own): ${JSON.stringify(EXAMPLE)}\n`)
    if (isJson) printJson(results.map(inJson))
    else for (const result of results) process.stdout.write(shown(result))
    return results.every(({ error }) => error === undefined)
  } catch (error) {
    const isOurs = error instanceof EngineError && (error.code === 'VALIDATION_FAILED' || error.code === 'ARGUMENT_INVALID')
    if (!(error instanceof EngineError) || !((isOurs && !isJson) || isWatched)) throw error
    aside(asked, `✗ ${error.code === 'VALIDATION_FAILED' ? `${file}: ` : ''}${error.message}\n`)
    return false
  }
}

/** @throws EngineError ARGUMENT_INVALID, SOURCE_UNREACHABLE, … */
async function messagesFor(asked: Asked, kind: Type, connection: Connection | undefined): Promise<readonly TrialMessage[]> {
  const { file, input, table } = asked
  if (kind === 'enrichment' && (!connection || (input === undefined && table === undefined)))
    throw new EngineError(
      'ARGUMENT_INVALID',
      `${file} is a query, which needs a database with rows: give --database DATABASE, and --table TABLE for its first rows, or --input FILE`,
    )
  if (input !== undefined) return messagesOf(readText(input), input)
  if (table === undefined || !connection) return [EXAMPLE]
  const rows = await sampleOf(connection, table)
  if (rows.length > 0) return rows
  if (kind === 'enrichment') throw new EngineError('ARGUMENT_INVALID', `the table ${table} has no rows, and a query runs only for rows`)
  const made = await syntheticMessage(connection, table)
  aside(asked, `the table ${table} has no rows: on one made up for its columns: ${JSON.stringify(made.record)}\n`)
  return [made]
}

/** What a function is, as far as it was said, else by its text; and of a routing function the type of its sinks. */
function described({ file, type, sinkType }: Pick<Asked, 'file' | 'type' | 'sinkType'>): { kind: Type; routes: string | undefined } {
  const source = readText(file)
  const kind = type ?? (file.endsWith('.sql') ? 'enrichment' : sinkType === undefined ? kindOf(source) : 'routing')
  return { kind, routes: sinkType ?? (kind === 'routing' ? /\bRoute<\s*['"](\w+)['"]/.exec(source)?.[1] : undefined) }
}

/** Guesses the kind of a function from its code: by the type that it imports, or by the function's own name. */
function kindOf(code: string): Type {
  const words = new Set(code.match(/\w+/g))
  const functions = new Set(Array.from(code.matchAll(/\bfunction\s+(\w+)/g), ([, name]) => name))
  const isOf = (kind: SandboxKind) => {
    const { importedType, functionNames } = FUNCTION_KINDS[kind]
    return words.has(importedType) || functionNames.some((name) => functions.has(name))
  }
  return SANDBOX_KINDS.find(isOf) ?? 'transform'
}

/** Prints what is no result: where those are JSON, beside them. */
const aside = ({ isJson }: Asked, words: string): void => void (isJson ? process.stderr : process.stdout).write(words)

function inJson({ input, output, parameters, routing, error, timeUs, logs }: TrialResult) {
  const failure = error && { ...error }
  return {
    record_pks: input.metadata.record_pks,
    parameters,
    ...(routing ? { routing } : { output }),
    error: failure,
    time_us: timeUs,
    logs,
  }
}

function shown({ input, output, parameters, routing, error, timeUs, logs }: TrialResult): string {
  const result = error ? `✗ ${error.text}${placeText(error)}` : JSON.stringify(routing ?? output, undefined, 2)
  const { record_pks: key } = input.metadata
  const given = parameters || (error && error.kind === 'enrichment') ? `  for ${JSON.stringify(parameters ?? key)}\n` : ''
  return `${given}${logs.map((line) => `  ${line}\n`).join('')}${result}   ${timeUs} µs\n`
}

/** One message, a list of them, an answer of receive or of a sink's messages, or a message a line. @throws EngineError ARGUMENT_INVALID */
function messagesOf(text: string, file: string): TrialMessage[] {
  const listed = (json: string): unknown[] => {
    const value = parseExact(json)
    const data = isObject(value) && !('record' in value) && 'data' in value ? value['data'] : value
    return (Array.isArray(data) ? data : [data]).map((one: unknown) => (isObject(one) && 'message' in one ? one['message'] : one))
  }
  let list: unknown[]
  try {
    const lines = text.split('\n').filter((line) => line.trim() !== '')
    list = lines.length > 1 && lines.every((line) => /^\s*\{.*\}\s*$/.test(line)) ? lines.flatMap(listed) : listed(text)
  } catch (error) {
    throw new EngineError('ARGUMENT_INVALID', `${file} is not JSON: ${errorText(error)}`)
  }
  if (list.length === 0 || !list.every((message) => isObject(message) && 'record' in message))
    throw new EngineError('ARGUMENT_INVALID', `${file} holds no messages: a JSON object with "record", a list of them, or one a line`)
  return list.map(trialMessage)
}
