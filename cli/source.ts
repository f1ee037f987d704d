/**
 * `tailrace source accept-gap|retry NAME`: says to a running Tailrace, through its API, that its source may go on although
 * changes are missing, or that it shall try again because what it stopped at is mended.
 */
import { print, printJson } from './command.ts'
import { service, type Access } from './running-service.ts'

/** Lets the source of a database go on. @throws EngineError SERVICE_UNREACHABLE */
export async function source(
  verb: 'accept-gap' | 'retry',
  name: string,
  { json: isJson = false, ...access }: Access & Readonly<{ json?: boolean }>,
): Promise<void> {
  const ask = await service(access)
  const answer = await ask('POST', `/postgres_databases/${encodeURIComponent(name)}/${verb.replace('-', '_')}`)
  if (isJson) {
    printJson(answer)
    if (answer['success'] !== true) process.exitCode = 1
    return
  }
  if (verb === 'accept-gap') return print(`accepted: ${String(answer['accepted'])}\nThe source of "${name}" starts again.`)
  const { success, state, code, reason, remedy } = answer
  if (success === true) return print(`The source of "${name}" is ${String(state)}.`)
  const why = typeof code === 'string' ? `: ${code}: ${String(reason)}\n  ${String(remedy)}` : ' still; GET /info shows how it goes on.'
  process.stderr.write(`The source of "${name}" is ${String(state)}${why}\n`)
  process.exitCode = 1
}
