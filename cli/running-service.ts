/** A command's way to a running Tailrace: its API, by the token of an account. */
import { EngineError } from '../engine/errors.ts'
import { loadDemoAccess } from './demo.ts'
import { readSettings } from './settings.ts'

export type Access = Readonly<{ token?: string | undefined; url?: string | undefined }>
export type ServiceAnswer = Readonly<{ status: number; body: Readonly<Record<string, unknown>> }>
type Ask = (method: 'GET' | 'POST' | 'PATCH', path: string, body?: object) => Promise<ServiceAnswer>

/**
 * Posts to the API; says what is wrong, and sets the exit code, when that can't be done or is refused.
 * @param command names itself in what is said @param path below /api
 * @returns undefined: it was said
 * @throws EngineError SERVICE_UNREACHABLE
 */
export async function post(command: string, access: Access, path: string, body?: object): Promise<ServiceAnswer['body'] | undefined> {
  const ask = await service(command, access)
  const answer = await ask?.('POST', path, body)
  return answer && answered(command, answer)
}

/** What came of a call; a refusal is said, and sets the exit code. @returns undefined: it was refused */
export function answered(command: string, { status, body }: ServiceAnswer): ServiceAnswer['body'] | undefined {
  if (status < 300) return body
  process.stderr.write(`tailrace ${command}: ${String(body['summary'] ?? JSON.stringify(body))}\n`)
  process.exitCode = 1
  return undefined
}

/** @returns what asks the API, paths below /api; undefined: no token is known, which was said */
export async function service(command: string, access: Access): Promise<Ask | undefined> {
  const { dataFolder, server, token: ownToken } = readSettings()
  const token = access.token ?? ownToken ?? (await loadDemoAccess(dataFolder).catch(() => undefined))?.token
  if (token === undefined) {
    process.stderr.write(
      `tailrace ${command}: give --token with an API token of the account, or set TAILRACE_TOKEN, which no list of processes shows; only that of a demo is found by itself\n`,
    )
    process.exitCode = 2
    return undefined
  }
  const base = `${access.url ?? `http://127.0.0.1:${server.port}`}/api`
  return (method, path, body) => ask(method, base + path, token, body)
}

async function ask(method: string, url: string, token: string, body: object | undefined): Promise<ServiceAnswer> {
  const headers = { authorization: `Bearer ${token}`, ...(body ? { 'content-type': 'application/json' } : {}) }
  try {
    const answer = await fetch(url, { method, headers, ...(body ? { body: JSON.stringify(body) } : {}) })
    return { status: answer.status, body: (await answer.json()) as Record<string, unknown> }
  } catch (cause) {
    throw new EngineError('SERVICE_UNREACHABLE', `no answer of Tailrace from ${url}`, { url }, { cause })
  }
}
