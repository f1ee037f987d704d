/** A command's way to a running Tailrace: its API, by the token of an account. */
import { codeOf, EngineError } from '../engine/errors.ts'
import { fieldsOf, parseExact } from '../engine/json.ts'
import { CommandFailed } from './command.ts'
import { contextNamed, loadContexts } from './contexts.ts'
import { loadDemoAccess } from './demo.ts'
import { readSettings } from './settings.ts'
import { version } from './version.ts'

/** The options that say where a running Tailrace is. */
export type Access = Readonly<{ token?: string | undefined; url?: string | undefined; context?: string | undefined }>
/** A running Tailrace, and a token for it. */
export type Service = Readonly<{ url: string; token: string }>
type Body = Readonly<Record<string, unknown>>
/** The function that asks the API. @param path below /api @throws EngineError SERVICE_UNREACHABLE, CONFIG_INVALID; CommandFailed: it refuses, in its words */
export type Ask = (method: 'GET' | 'POST' | 'PATCH' | 'DELETE', path: string, body?: object) => Promise<Body>

const NO_TOKEN =
  'an API token is missing: set TAILRACE_TOKEN to an API token of the account, or give --token, which others can see in the list of processes. Or keep both once: tailrace context add NAME. Only the token of a demo is found by itself'

/**
 * Finds the service that is meant and a token for it: what options say stands before what the context of --context says, that before the
 * environment, and that before the context which is selected. The token of a context goes to the address of that context alone,
 * unless both are named.
 * @throws CommandFailed: no token is known, or no such context
 */
export async function serviceOf({ token, url, context }: Access): Promise<Service> {
  const { dataFolder, server, edge, token: ownToken, url: ownUrl } = readSettings()
  const isSaid = [token, url, ownToken, ownUrl].some((one) => one !== undefined)
  const contexts = context === undefined && isSaid ? undefined : loadContexts()
  const name = context ?? contexts?.selected
  const chosen = name === undefined ? undefined : contextNamed(name, contexts)
  const known = token ?? chosen?.token ?? ownToken ?? (await loadDemoAccess(dataFolder).catch(() => undefined))?.token
  if (known === undefined) throw new CommandFailed(NO_TOKEN, 2)
  return {
    url: (url ?? chosen?.url ?? ownUrl ?? `${edge.tls ? 'https' : 'http'}://127.0.0.1:${server.port}`).replace(/(?<!\/)\/+$/, ''),
    token: known,
  }
}

/** Finds the service, and a way to ask it. @throws CommandFailed: no token is known */
export async function service(access: Access): Promise<Ask> {
  const { url, token } = await serviceOf(access)
  const base = `${url}/api`
  return async (method, path, form) => {
    const { isRefused, body } = await answerOf(method, base + path, token, form)
    if (!isRefused) return body
    const summary = String(body['summary'] ?? body['reason'] ?? JSON.stringify(body))
    const { code } = body
    throw code === 'CONFIG_INVALID'
      ? new EngineError(code, summary)
      : new CommandFailed(summary, 1, typeof code === 'string' ? code : undefined)
  }
}

async function answerOf(
  method: string,
  url: string,
  token: string,
  form: object | undefined,
): Promise<Readonly<{ isRefused: boolean; body: Body }>> {
  const headers = {
    authorization: `Bearer ${token}`,
    'user-agent': `tailrace-cli/${version()}`,
    ...(form && { 'content-type': 'application/json' }),
  }
  try {
    const answer = await fetch(url, { method, headers, ...(form && { body: JSON.stringify(form) }) })
    const body = parseExact(await answer.text()) // rows may have more digits than a JavaScript number keeps
    return { isRefused: !answer.ok, body: fieldsOf(body) }
  } catch (cause) {
    const code = codeOf(cause instanceof Error ? cause.cause : undefined) // fetch says in its cause why it failed
    const why = code === undefined ? '' : ` (${code})`
    throw new EngineError('SERVICE_UNREACHABLE', `no Tailrace answers at ${url}${why}`, { url }, { cause })
  }
}
