/** `tailrace source accept-gap NAME`: says to a running Tailrace, through its API, that its source may go on although changes are missing. */
import { parseArgs } from 'node:util'
import { EngineError } from '../engine/errors.ts'
import { loadDemoAccess } from './demo.ts'
import { readSettings } from './settings.ts'

/** @throws EngineError SERVICE_UNREACHABLE */
export async function source(args: readonly string[]): Promise<void> {
  const { positionals, values } = parseArgs({
    args: [...args],
    options: { token: { type: 'string' }, url: { type: 'string' } },
    allowPositionals: true,
  })
  const [command, name, ...more] = positionals
  if (command !== 'accept-gap' || name === undefined || more.length > 0) {
    process.stderr.write('usage: tailrace source accept-gap NAME [--token API_TOKEN] [--url http://127.0.0.1:7376]\n')
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
  const { ok, body } = await post(`${url}/api/postgres_databases/${encodeURIComponent(name)}/accept_gap`, token)
  if (ok) process.stdout.write(`accepted: ${String(body['accepted'])}\nThe source of "${name}" starts again.\n`)
  else {
    process.stderr.write(`tailrace source: ${String(body['summary'] ?? JSON.stringify(body))}\n`)
    process.exitCode = 1
  }
}

async function post(url: string, token: string): Promise<{ ok: boolean; body: Readonly<Record<string, unknown>> }> {
  try {
    const answer = await fetch(url, { method: 'POST', headers: { authorization: `Bearer ${token}` } })
    return { ok: answer.ok, body: (await answer.json()) as Record<string, unknown> }
  } catch (cause) {
    throw new EngineError('SERVICE_UNREACHABLE', `no answer of Tailrace from ${url}`, { url }, { cause })
  }
}
