/**
 * `tailrace function`, without a server: `test` runs a function from a file on messages from another, `build` puts it and the
 * libraries that it imports into one file.
 */
import { once } from 'node:events'
import { watch } from 'node:fs'
import { basename } from 'node:path'
import { parseArgs } from 'node:util'
import { EngineError } from '../engine/errors.ts'
import { sinkTypeOf } from '../api/function-form.ts'
import { routeTrial } from '../api/route-trial.ts'
import { parseExact } from '../transforms/exact-json.ts'
import { FunctionPool } from '../transforms/sandbox/pool.ts'
import { bundled, functionText } from './bundle.ts'
import { EXAMPLE, trialMessage, tryFunction, type TrialMessage, type TrialResult } from '../transforms/trial.ts'
import { readText, writeText } from './text-file.ts'

const USAGE = `usage: tailrace function test FILE [--type filter|transform|routing] [--sink-type TYPE] [--input FILE] [--watch]
       tailrace function build FILE [--output FILE] [--minify]`
const TYPES = ['filter', 'transform', 'routing'] as const
type Type = (typeof TYPES)[number]
const MEMORY_MB = 512

export async function runFunction(args: readonly string[]): Promise<void> {
  const { values, positionals } = parseArgs({
    args: [...args],
    allowPositionals: true,
    options: {
      ...({ type: { type: 'string' }, 'sink-type': { type: 'string' }, input: { type: 'string' }, watch: { type: 'boolean' } } as const),
      ...({ output: { type: 'string' }, minify: { type: 'boolean' } } as const),
    },
  })
  const [verb, file, more] = positionals
  const { type: given, 'sink-type': sinkType, input } = values
  const type = TYPES.find((one) => one === given)
  const wrong = type === given ? '' : `--type ${given} can not be tried here: it is one of ${TYPES.join(', ')}\n`
  if ((verb !== 'test' && verb !== 'build') || file === undefined || more !== undefined || wrong !== '') {
    process.stderr.write(`${wrong}${USAGE}\n`)
    process.exitCode = 2
    return
  }
  if (verb === 'build') return built(file, values)
  if (file.endsWith('.sql'))
    throw new EngineError(
      'ARGUMENT_INVALID',
      `${file} is no function but a query, which needs its database: POST /api/functions/test runs an enrichment, with "database" in the body`,
    )
  for (const one of [file, ...(input === undefined ? [] : [input])]) readText(one)
  const pool = new FunctionPool({ threads: 1, memoryMb: MEMORY_MB })
  try {
    for (;;) {
      const changed = values.watch ? untilChanged([file, ...(input === undefined ? [] : [input])]) : undefined
      const passed = await tried(file, { type, sinkType, input }, pool)
      if (!changed) {
        if (!passed) process.exitCode = 1
        return
      }
      await changed
    }
  } finally {
    await pool.stop()
  }
}

/** @throws EngineError VALIDATION_FAILED, ARGUMENT_INVALID */
async function built(file: string, { output, minify = false }: { output?: string; minify?: boolean }): Promise<void> {
  const target = output ?? `${file.replace(/\.[cm]?[jt]s$/, '')}.bundle.js`
  readText(file)
  const code = bundled(file, { minify })
  writeText(target, code)
  process.stdout.write(`${target}: ${Buffer.byteLength(code)} bytes\n`)
}

/** Settles when one of the files is written from here on. */
async function untilChanged(files: readonly string[]): Promise<void> {
  const watchers = files.map((one) => watch(one))
  await Promise.race(watchers.map((watcher) => once(watcher, 'change')))
  for (const watcher of watchers) watcher.close()
}

/** @returns whether it could be built and no message failed */
async function tried(
  file: string,
  { type, sinkType, input }: { type: Type | undefined; sinkType: string | undefined; input: string | undefined },
  pool: FunctionPool,
): Promise<boolean> {
  try {
    const source = readText(file)
    const kind = type ?? (sinkType === undefined ? kindOf(source) : 'routing')
    const messages = input === undefined ? [EXAMPLE] : messagesOf(readText(input), input)
    const named = sinkType ?? (kind === 'routing' ? /\bRoute<\s*['"](\w+)['"]/.exec(source)?.[1] : undefined)
    const code = functionText(file)
    const written = { name: basename(file), type: kind, description: null, sinkType: sinkTypeOf(named), code }
    const results = await tryFunction(written, messages, pool, routeTrial(written.sinkType))
    if (input === undefined) process.stdout.write(`a ${kind}, on an example (--input FILE: on your own): ${JSON.stringify(EXAMPLE)}\n`)
    for (const result of results) process.stdout.write(shown(result))
    return results.every(({ error }) => error === undefined)
  } catch (error) {
    if (!(error instanceof EngineError) || (error.code !== 'VALIDATION_FAILED' && error.code !== 'ARGUMENT_INVALID')) throw error
    process.stdout.write(`✗ ${error.code === 'VALIDATION_FAILED' ? `${file}: ` : ''}${error.message}\n`)
    return false
  }
}

/** By the types that it imports, or by its own name. */
function kindOf(code: string): Type {
  if (/\bFilter\b|function\s+filter\b/.test(code)) return 'filter'
  return /\bRoute\b|function\s+rout(?:e|ing)\b/.test(code) ? 'routing' : 'transform'
}

function shown({ output, routing, error, timeUs, logs }: TrialResult): string {
  const place = error?.line === undefined ? '' : ` (line ${error.line}${error.column === undefined ? '' : `, column ${error.column}`})`
  const result = error ? `✗ ${error.text}${place}` : JSON.stringify(routing ?? output, undefined, 2)
  return `${logs.map((line) => `  ${line}\n`).join('')}${result}   ${timeUs} µs\n`
}

/** One message, a list of them, an answer of receive or of a sink's messages, or a message a line. @throws EngineError ARGUMENT_INVALID */
function messagesOf(text: string, file: string): TrialMessage[] {
  const listed = (json: string): unknown[] => {
    const value = parseExact(json)
    const data = isObject(value) && !('record' in value) && 'data' in value ? value.data : value
    return (Array.isArray(data) ? data : [data]).map((one: unknown) => (isObject(one) && 'message' in one ? one.message : one))
  }
  let list: unknown[]
  try {
    const lines = text.split('\n').filter((line) => line.trim() !== '')
    list = lines.length > 1 && lines.every((line) => /^\s*\{.*\}\s*$/.test(line)) ? lines.flatMap(listed) : listed(text)
  } catch (error) {
    throw new EngineError('ARGUMENT_INVALID', `${file} is not JSON: ${(error as Error).message}`)
  }
  if (list.length === 0 || !list.every((message) => isObject(message) && 'record' in message))
    throw new EngineError('ARGUMENT_INVALID', `${file} holds no messages: a JSON object with "record", a list of them, or one a line`)
  return list.map(trialMessage)
}

const isObject = (value: unknown): value is object => typeof value === 'object' && value !== null
