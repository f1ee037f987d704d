/** `tailrace tail`: prints what comes to a sink as it comes, and takes nothing from its clients. */
import { setTimeout as delay } from 'node:timers/promises'
import { stripVTControlCharacters, styleText } from 'node:util'
import { EngineError } from '../engine/errors.ts'
import { fieldsOf } from '../engine/json.ts'
import { print } from './command.ts'
import { service, type Access, type Ask } from './running-service.ts'

const WAIT = '20s'
const AGAIN_MS = 1_000
const COLORS = { insert: 'green', update: 'yellow', delete: 'red', read: 'cyan' } as const
type Page = Readonly<{ data: readonly Readonly<Record<string, unknown>>[]; skipped: number; trimmed: number; next: string }>

/** Prints the messages of a sink until it is interrupted. @throws CommandFailed; EngineError SERVICE_UNREACHABLE: at the first call */
export async function tail(sink: string, { json = false, ...access }: Access & Readonly<{ json?: boolean }>): Promise<void> {
  const ask = await service(access)
  const path = `/sinks/${encodeURIComponent(sink)}/messages/tail`
  let page = await look(ask, path)
  if (process.stderr.isTTY) process.stderr.write(`looking at "${sink}"; Ctrl-C ends\n`)
  let isAway = false
  for (;;) {
    try {
      page = await look(ask, `${path}?after=${encodeURIComponent(page.next)}&limit=1000&wait_for=${WAIT}`)
      isAway = false
    } catch (error) {
      if (!(error instanceof EngineError) || error.code !== 'SERVICE_UNREACHABLE') throw error
      if (!isAway) process.stderr.write(`${error.message}: it is asked again until it does\n`)
      isAway = true
      await delay(AGAIN_MS)
      continue
    }
    const { skipped, trimmed, data } = page
    if (skipped > 0) process.stderr.write(`… ${skipped} older messages are skipped\n`)
    if (trimmed > 0) process.stderr.write(`… ${trimmed} records of the log were gone before they were looked at\n`)
    for (const message of data) print(json ? JSON.stringify(message) : lineOf(message))
    // a slow reader is not asked for more than it takes; meanwhile older messages are skipped
    if (process.stdout.writableNeedDrain) await new Promise((resolve) => process.stdout.once('drain', resolve))
  }
}

const look = async (ask: Ask, path: string): Promise<Page> => (await ask('GET', path)) as Page // of the same release

function lineOf({ action, table, commit_timestamp, message, routing, error }: Readonly<Record<string, unknown>>): string {
  const paint = (style: Parameters<typeof styleText>[0], text: string) => styleText(style, text, { stream: process.stdout })
  const verb = String(action)
  const color = Object.entries(COLORS).find(([name]) => name === verb)?.[1]
  // of the default message what changes: the rest is the same in each, and --json has it
  const { record, changes, metadata } = fieldsOf(message)
  const shown =
    metadata === undefined ? message : changes === null || changes === undefined ? record : { ...fieldsOf(record), '←': changes }
  const parts = [
    paint('gray', String(commit_timestamp).slice(11, 23)),
    color === undefined ? verb : paint(color, verb.padEnd(6)),
    paint('bold', String(table)),
    message === null ? '' : stripVTControlCharacters(JSON.stringify(shown)),
    routing === undefined ? '' : paint('gray', `→ ${JSON.stringify(routing)}`),
    error === undefined ? '' : paint('red', `✗ ${String(fieldsOf(error)['message'])}`),
  ]
  return parts.filter((part) => part !== '').join(' ')
}
