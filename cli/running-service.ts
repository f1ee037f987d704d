/** A command's way to a running Tailrace: its API, by the token of an account. */
import { EngineError } from '../engine/errors.ts'
import { loadDemoAccess } from './demo.ts'
import { readSettings } from './settings.ts'

export type Access = Readonly<{ token?: string | undefined; url?: string | undefined }>
export type Answer = Readonly<{ ok: boolean; body: Readonly<Record<string, unknown>> }>

/**
 * Posts to the API; says what is wrong, and sets the exit code, when that can't be done or is refused.
 * @param command names itself in what is said @param path below /api
 * @returns undefined: it was said
 * @throws EngineError SERVICE_UNREACHABLE
 */
export async function post(command: string, access: Access, path: string, body?: object): Promise<Answer['body'] | undefined> {
  const { dataFolder, server } = readSettings()
  const token = access.token ?? (await loadDemoAccess(dataFolder).catch(() => undefined))?.token
  if (token === undefined) {
    process.stderr.write(`tailrace ${command}: give --token with an API token of the account; only that of a demo is found by itself\n`)
    process.exitCode = 2
    return undefined
  }
  const answer = await ask(`${access.url ?? `http://127.0.0.1:${server.port}`}/api${path}`, token, body)
  if (answer.ok) return answer.body
  process.stderr.write(`tailrace ${command}: ${String(answer.body['summary'] ?? JSON.stringify(answer.body))}\n`)
  process.exitCode = 1
  return undefined
}

async function ask(url: string, token: string, body: object | undefined): Promise<Answer> {
  const headers = { authorization: `Bearer ${token}`, ...(body ? { 'content-type': 'application/json' } : {}) }
  try {
    const answer = await fetch(url, { method: 'POST', headers, ...(body ? { body: JSON.stringify(body) } : {}) })
    return { ok: answer.ok, body: (await answer.json()) as Record<string, unknown> }
  } catch (cause) {
    throw new EngineError('SERVICE_UNREACHABLE', `no answer of Tailrace from ${url}`, { url }, { cause })
  }
}
