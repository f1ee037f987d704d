/**
 * `tailrace source accept-gap|retry NAME`: says to a running Tailrace, through its API, that its source may go on although
 * changes are missing, or that it shall try again because what it stopped at is mended.
 */
import { parseArgs } from 'node:util'
import { ACCESS_OPTIONS } from './command-options.ts'
import { post } from './running-service.ts'

type Command = Readonly<{
  path: string
  /** @returns what to print, on stderr when it has failed */
  told: (name: string, body: Readonly<Record<string, unknown>>) => Readonly<{ text: string; failed?: true }>
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
  const { positionals, values } = parseArgs({ args: [...args], options: ACCESS_OPTIONS, allowPositionals: true })
  const [word = '', name, ...more] = positionals
  const command = Object.hasOwn(COMMANDS, word) ? COMMANDS[word] : undefined
  if (!command || name === undefined || more.length > 0) {
    process.stderr.write(
      `usage: tailrace source ${Object.keys(COMMANDS).join(' | ')} NAME [--token API_TOKEN] [--url http://127.0.0.1:7376]\n`,
    )
    process.exitCode = 2
    return
  }
  const body = await post('source', values, `/postgres_databases/${encodeURIComponent(name)}/${command.path}`)
  if (!body) return
  const { text, failed } = command.told(name, body)
  if (failed) process.exitCode = 1
  process[failed ? 'stderr' : 'stdout'].write(`${text}\n`)
}
