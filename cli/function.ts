/** `tailrace function test`: runs a function from a file, on messages from another, without a server. */
import { once } from 'node:events'
import { readFileSync, watch } from 'node:fs'
import { basename } from 'node:path'
import { parseArgs } from 'node:util'
import { EngineError } from '../engine/errors.ts'
import { FunctionPool } from '../transforms/sandbox/pool.ts'
import { EXAMPLE, trialMessage, tryFunction, type TrialMessage, type TrialResult } from '../transforms/trial.ts'

const USAGE = 'usage: tailrace function test FILE [--type filter|transform] [--input FILE] [--watch]'
const MEMORY_MB = 512

export async function runFunction(args: readonly string[]): Promise<void> {
  const { values, positionals } = parseArgs({
    args: [...args],
    allowPositionals: true,
    options: { type: { type: 'string' }, input: { type: 'string' }, watch: { type: 'boolean' } },
  })
  const [verb, file, more] = positionals
  const { type, input } = values
  if (verb !== 'test' || file === undefined || more !== undefined || (type !== undefined && type !== 'filter' && type !== 'transform')) {
    process.stderr.write(`${USAGE}\n`)
    process.exitCode = 2
    return
  }
  const pool = new FunctionPool({ threads: 1, memoryMb: MEMORY_MB })
  try {
    for (;;) {
      const changed = values.watch ? untilChanged([file, ...(input === undefined ? [] : [input])]) : undefined
      const passed = await tried(file, { type, input }, pool)
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

/** Settles when one of the files is written from here on. */
async function untilChanged(files: readonly string[]): Promise<void> {
  const watchers = files.map((one) => watch(one))
  await Promise.race(watchers.map((watcher) => once(watcher, 'change')))
  for (const watcher of watchers) watcher.close()
}

/** @returns whether it could be built and no message failed */
async function tried(
  file: string,
  { type, input }: { type: 'filter' | 'transform' | undefined; input: string | undefined },
  pool: FunctionPool,
): Promise<boolean> {
  const code = readFileSync(file, 'utf8')
  const kind = type ?? (/\bFilter\b|function\s+filter\b/.test(code) ? 'filter' : 'transform')
  const messages = input === undefined ? [EXAMPLE] : messagesOf(readFileSync(input, 'utf8'), input)
  try {
    const results = await tryFunction({ name: basename(file), type: kind, description: null, code }, messages, pool)
    for (const result of results) process.stdout.write(shown(result))
    return results.every(({ error }) => error === undefined)
  } catch (error) {
    if (!(error instanceof EngineError) || error.code !== 'VALIDATION_FAILED') throw error
    process.stdout.write(`✗ ${file}: ${error.message}\n`)
    return false
  }
}

function shown({ output, error, timeUs, logs }: TrialResult): string {
  const place = error?.line === undefined ? '' : ` (line ${error.line}${error.column === undefined ? '' : `, column ${error.column}`})`
  const result = error ? `✗ ${error.text}${place}` : JSON.stringify(output, undefined, 2)
  return `${logs.map((line) => `  ${line}\n`).join('')}${result}   ${timeUs} µs\n`
}

/** One message, a list of them, an answer of receive, or a message a line. @throws EngineError REQUEST_INVALID */
function messagesOf(text: string, file: string): TrialMessage[] {
  const isObject = (value: unknown): value is object => typeof value === 'object' && value !== null
  const parsed = (json: string): unknown => {
    try {
      return JSON.parse(json)
    } catch {
      return undefined
    }
  }
  const whole = parsed(text)
  const data = isObject(whole) && 'data' in whole ? whole.data : whole
  const list = data === undefined ? text.split('\n').filter((line) => line.trim() !== '').map(parsed) : Array.isArray(data) ? data : [data] // prettier-ignore
  if (list.length === 0 || !list.every((message) => isObject(message) && 'record' in message))
    throw new EngineError('REQUEST_INVALID', `${file} holds no messages: a JSON object with "record", a list of them, or one a line`)
  return list.map(trialMessage)
}
