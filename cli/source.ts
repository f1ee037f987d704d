/**
 * `tailrace source accept-gap|retry NAME`: says to a running Tailrace, through its API, that its source may go on although
 * changes are missing, or that it shall try again because what it stopped at is mended.
 */
import { parseArgs } from 'node:util'
import { EngineError } from '../engine/errors.ts'
import { loadDemoAccess } from './demo.ts'
import { readSettings } from './settings.ts'

type Answer = Readonly<{ ok: boolean; body: Readonly<Record<string, unknown>> }>
type Command = Readonly<{
  path: string
  /** @returns what to print, on stderr when it has failed */
  told: (name: string, body: Answer['body']) => Readonly<{ text: string; failed?: true }>
}>

const COMMANDS: Readonly<Record<string, Command>> = {
  'accept-gap': {
    path: 'accept_gap',
    told: (name, { accepted }) => ({ text: `accepted: ${String(accepted)}\nThe source of "${name}" starts again.` }),
  },
  retry: {
    path: 'retry',
    told: (name, { success, state, code, reason, remedy }) => {
      if (success === true) return { text: `The source of "${name}" is ${String(state)}.` }
      const why = typeof code === 'string' ? `: ${code}: ${String(reason)}\n  ${String(remedy)}` : ' still; GET /info shows how it goes on.'
      return { text: `The source of "${name}" is ${String(state)}${why}`, failed: true }
    },
  },
}

/** @throws EngineError SERVICE_UNREACHABLE */
export async function source(args: readonly string[]): Promise<void> {
  const { positionals, values } = parseArgs({
    args: [...args],
    options: { token: { type: 'string' }, url: { type: 'string' } },
    allowPositionals: true,
  })
  const [word = '', name, ...more] = positionals
  const command = Object.hasOwn(COMMANDS, word) ? COMMANDS[word] : undefined
  if (!command || name === undefined || more.length > 0) {
    process.stderr.write(
      `usage: tailrace source ${Object.keys(COMMANDS).join(' | ')} NAME [--token API_TOKEN] [--url http://127.0.0.1:7376]\n`,
    )
    process.exitCode = 2
    return
  }
  const { dataFolder, server } = readSettings()
  const token = values.token ?? (await loadDemoAccess(dataFolder).catch(() => undefined))?.token
  if (token === undefined) {
    process.stderr.write('tailrace source: give --token with an API token of the account; only that of a demo is found by itself\n')
    process.exitCode = 2
    return
  }
  const url = values.url ?? `http://127.0.0.1:${server.port}`
  const { ok, body } = await post(`${url}/api/postgres_databases/${encodeURIComponent(name)}/${command.path}`, token)
  const { text, failed } = ok
    ? command.told(name, body)
    : { text: `tailrace source: ${String(body['summary'] ?? JSON.stringify(body))}`, failed: true }
  if (failed) process.exitCode = 1
  process[failed ? 'stderr' : 'stdout'].write(`${text}\n`)
}

async function post(url: string, token: string): Promise<Answer> {
  try {
    const answer = await fetch(url, { method: 'POST', headers: { authorization: `Bearer ${token}` } })
    return { ok: answer.ok, body: (await answer.json()) as Record<string, unknown> }
  } catch (cause) {
    throw new EngineError('SERVICE_UNREACHABLE', `no answer of Tailrace from ${url}`, { url }, { cause })
  }
}
