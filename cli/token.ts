/** `tailrace token create|ls|revoke`: the API tokens of an account of a running Tailrace, through its API. */
import { objectsOf } from '../engine/json.ts'
import { columns, CommandFailed, print, UsageError } from './command.ts'
import { service, type Access } from './running-service.ts'

type TokenOptions = Readonly<Partial<Record<'scopes' | 'sinks' | 'expires', string>>> & Readonly<{ json?: boolean | undefined }> & Access

/** Runs a verb of `tailrace token`. @throws UsageError, CommandFailed, EngineError SERVICE_UNREACHABLE */
export async function token(verb: 'create' | 'ls' | 'revoke', name: string, options: TokenOptions): Promise<void> {
  const { scopes, sinks, expires, json, ...access } = options
  if (verb !== 'ls' && name === '') throw new UsageError('NAME is missing: the name of the token')
  const ask = await service(access)
  if (verb === 'create') {
    const made = await ask('POST', '/api_keys', { name, scopes: listOf(scopes), sinks: listOf(sinks), expires_at: expires })
    // the text alone on the standard output, so that a script can take it
    if (json !== true) process.stderr.write(`The API token "${name}" (${rightsOf(made)}) is shown once:\n`)
    return print(json === true ? JSON.stringify(made, undefined, 2) : String(made['token']))
  }
  const { data } = await ask('GET', '/api_keys')
  const tokens = objectsOf(data)
  if (verb === 'ls') {
    if (json === true) return print(JSON.stringify({ data }, undefined, 2))
    if (tokens.length === 0) return print('The account has no API tokens.')
    return print(columns(tokens.map((one) => [`${String(one['name'])}  ${rightsOf(one)}`, aboutOf(one)])))
  }
  const found = tokens.find((one) => one['name'] === name || one['id'] === name)
  if (!found) throw new CommandFailed(`There is no API token "${name}".`)
  const answer = await ask('DELETE', `/api_keys/${String(found['id'])}`)
  print(json === true ? JSON.stringify(answer) : `The API token "${String(found['name'])}" is revoked: it works no more.`)
}

const listOf = (text: string | undefined): readonly string[] | undefined => text?.split(',').map((part) => part.trim())

function rightsOf({ scopes, sinks }: Readonly<Record<string, unknown>>): string {
  const words = Array.isArray(scopes) ? scopes.join(', ') : ''
  return Array.isArray(sinks) ? `${words} of ${sinks.map((sink) => (sink === '*' ? 'all sinks' : sink)).join(', ')}` : words
}

const MAKERS: Readonly<Record<string, string>> = { file: 'made by the file of the start', apply: 'made by a file that was applied' }

function aboutOf({ inserted_at, last_used_at, expires_at, made_by }: Readonly<Record<string, unknown>>): string {
  const parts = [
    `since ${dayOf(inserted_at)}`,
    typeof last_used_at === 'string' ? `used ${last_used_at.slice(0, 16)}Z` : 'not used yet',
    typeof expires_at === 'string' ? `until ${expires_at}` : '',
    MAKERS[String(made_by)] ?? '',
  ]
  return parts.filter((part) => part !== '').join(', ')
}

const dayOf = (time: unknown): string => String(time).slice(0, 10)
