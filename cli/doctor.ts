/**
 * `tailrace doctor`: looks whether this installation, the service that runs and its databases are as they should be, and says what mends what is
 * not. With a database named it looks at that one alone, also before anything of Tailrace runs.
 */
import { constants, existsSync, accessSync } from 'node:fs'
import { statfs } from 'node:fs/promises'
import { createServer } from 'node:net'
import { totalmem } from 'node:os'
import { dirname, resolve } from 'node:path'
import { styleText } from 'node:util'
import { sizeText } from '../engine/amounts.ts'
import { EngineError, ERRORS, errorText } from '../engine/errors.ts'
import { fieldsOf, objectsOf } from '../engine/json.ts'
import { checkDatabase, type DatabaseCheck } from '../engine/wal/connection/database-checks.ts'
import { CommandFailed, print, printJson, UsageError } from './command.ts'
import { databaseArgument } from './database-argument.ts'
import { service, serviceOf, type Access, type Ask } from './running-service.ts'
import { readSettings, type Settings } from './settings.ts'
import type { ShownSink } from './sinks.ts'
import { version } from './version.ts'

type Options = Access & Readonly<{ json?: boolean; slot?: string; publication?: string }>
/** A check, and what it is of. */
type Found = DatabaseCheck & Readonly<{ of: string }>

const MEMORY_BYTES = 1e9
const FREE_BYTES = 2e9
const FREE_SHARE = 0.1
const NODE = 24

/** Checks, and sets the exit code: 1 when something is wrong. @throws UsageError; EngineError ARGUMENT_INVALID */
export async function doctor(database: string, options: Options): Promise<void> {
  const { json = false, slot, publication, ...access } = options
  if (database === '' && (slot ?? publication) !== undefined)
    throw new UsageError('--slot and --publication are of a DATABASE that is named')
  const found: Found[] = []
  const told = (of: string, checks: readonly DatabaseCheck[]) => {
    found.push(...checks.map((check) => ({ of, ...check })))
    if (!json && checks.length > 0) print([styleText('bold', of, { stream: process.stdout }), ...checks.map(lineOf)].join('\n'))
  }
  if (database === '') {
    told('this installation', await checkInstallation())
    await checkService(access, told)
  } else {
    const { name, connection } = await databaseArgument(database)
    told(`database ${name}`, await checkDatabase({ connection, slot, publication }))
  }
  const count = (status: DatabaseCheck['status']) => found.filter((check) => check.status === status).length
  const [errors, warnings] = [count('error'), count('warning')]
  if (json) printJson({ ok: errors === 0, errors, warnings, checks: found })
  else print(`${found.length} checks: ${errors} errors, ${warnings} warnings`)
  if (errors > 0) process.exitCode = 1
}

const SIGNS = { ok: ['green', '✓'], warning: ['yellow', '!'], error: ['red', '✗'] } as const

function lineOf({ name, status, message, remedy }: DatabaseCheck): string {
  const [color, sign] = SIGNS[status]
  const mends = remedy === undefined ? '' : `\n      ${remedy.replaceAll('\n', '\n      ')}`
  return `  ${styleText(color, sign, { stream: process.stdout })} ${name}: ${message}${mends}`
}

const ok = (name: string, message: string): DatabaseCheck => ({ name, status: 'ok', message })
const warning = (name: string, message: string, remedy: string): DatabaseCheck => ({ name, status: 'warning', message, remedy })
const failure = (name: string, message: string, remedy: string): DatabaseCheck => ({ name, status: 'error', message, remedy })

/** What a service would find that is started here. */
async function checkInstallation(): Promise<readonly DatabaseCheck[]> {
  const major = Number(process.versions.node.split('.')[0])
  const node =
    major >= NODE
      ? ok('Node', process.version)
      : failure('Node', `${process.version} is too old`, `Install Node ${NODE} or later: https://nodejs.org`)
  let settings: Settings
  try {
    settings = readSettings()
  } catch (error) {
    if (!(error instanceof EngineError)) throw error
    return [node, failure('Settings', error.message, ERRORS[error.code].remedy)]
  }
  const memory = Math.min(process.constrainedMemory() || Infinity, totalmem()) // without a limit some systems tell one that is far too large
  const free = process.availableMemory()
  const { unknown } = settings
  return [
    node,
    unknown.length > 0
      ? warning('Settings', `variables that nothing knows: ${unknown.join(', ')}`, 'See docs/settings.md: most likely they are misspelt.')
      : ok('Settings', 'every variable that is set is right'),
    memory >= MEMORY_BYTES
      ? ok('Memory', `${sizeText(memory)}, ${sizeText(free)} of it free`)
      : warning('Memory', `${sizeText(memory)} are little`, 'Give it 1 GB or more; else lower max_memory_mb of the sinks.'),
    await checkDisk(settings.dataFolder),
    checkVault(settings),
    await checkPort('SERVER_PORT', settings.server),
    await checkPort('TAILRACE_METRICS_PORT', settings.metrics),
  ]
}

async function checkDisk(dataFolder: string): Promise<DatabaseCheck> {
  let folder = resolve(dataFolder)
  while (!existsSync(folder) && dirname(folder) !== folder) folder = dirname(folder)
  try {
    accessSync(folder, constants.W_OK)
  } catch {
    return failure(
      'Data folder',
      `this user may not write to ${folder}`,
      'Change its owner, or set TAILRACE_DATA to a folder of this user.',
    )
  }
  const { bavail, blocks, bsize } = await statfs(folder)
  const [left, all] = [bavail * bsize, blocks * bsize]
  const message = `${sizeText(left)} of ${sizeText(all)} are free where ${folder} is`
  if (left >= FREE_BYTES && left >= FREE_SHARE * all) return ok('Disk', message)
  return warning(
    'Disk',
    message,
    'Appending stops before the disk is full, and the source waits: make room, or set TAILRACE_DATA to a larger disk.',
  )
}

function checkVault({ vaultKey, state, kafka }: Settings): DatabaseCheck {
  if (vaultKey) return ok('VAULT_KEY', 'secrets are encrypted by it')
  if (!state && !kafka) return ok('VAULT_KEY', 'not set: the key is kept in the data folder, with the state')
  const message = 'it is not set: the key of the secrets is in the data folder, away from the state database that holds them'
  return warning('VAULT_KEY', message, 'Keep vault.key of the data folder safe, or set VAULT_KEY to what is in it.')
}

/** A port is free, or somebody listens: which may be the service itself. */
async function checkPort(name: string, { host, port }: Readonly<{ host: string; port: number }>): Promise<DatabaseCheck> {
  if (port === 0) return ok(name, 'any free one, or none')
  const server = createServer()
  const code = await new Promise<string | undefined>((settle) => {
    server.once('error', (error: NodeJS.ErrnoException) => settle(error.code ?? 'unknown'))
    server.listen({ host, port, exclusive: true }, () => server.close(() => settle(undefined)))
  })
  if (code === undefined) return ok(name, `${host}:${port} is free`)
  if (code === 'EADDRINUSE') return ok(name, `${host}:${port} is in use: by the service, if it runs here`)
  return failure(name, `${host}:${port} can't be listened on: ${code}`, `Set ${name} to a port that this user may listen on.`)
}

/** What the service says of itself, its nodes, its databases and sinks. */
async function checkService(access: Access, told: (of: string, checks: readonly DatabaseCheck[]) => void): Promise<void> {
  let ask: Ask
  let info: Readonly<Record<string, unknown>>
  let url = ''
  try {
    ;({ url } = await serviceOf(access))
    ask = await service(access)
    info = await ask('GET', '/info')
  } catch (error) {
    if (!(error instanceof EngineError) && !(error instanceof CommandFailed)) throw error
    const remedy =
      error instanceof EngineError ? ERRORS[error.code].remedy : 'Set TAILRACE_TOKEN, or name a service: tailrace context add NAME.'
    return told('the service', [failure('Reachability', errorText(error), remedy)])
  }
  const nodes = objectsOf(info['nodes'])
  const versions = new Set(nodes.map((node) => String(node['version'])))
  const silent = nodes.filter(({ reachable }) => reachable !== true)
  const actors = nodes.flatMap((node) => objectsOf(node['actors']))
  const stopped = actors.filter(({ kind, state }) => kind === 'source' && (state === 'failed' || state === 'waiting'))
  told('the service', [
    ok('Reachability', `${url} answers, version ${String(info['version'])}`),
    info['version'] === version()
      ? ok('Version', 'the same as of this command')
      : warning('Version', `this command is of version ${version()}`, 'Use the command of the same release.'),
    versions.size <= 1
      ? ok('Nodes', `${nodes.length} of one version`)
      : warning('Nodes', `of several versions: ${[...versions].join(', ')}`, 'Finish the upgrade.'),
    ...silent.map((node) =>
      failure('Nodes', `${String(node['name'])} does not answer its peers`, 'See whether it runs, and TAILRACE_NODE_ADDRESS of it.'),
    ),
    ...stopped.map(troubleOf),
  ])
  const { data } = await ask('GET', '/sinks')
  const sinks = Array.isArray(data) ? (data as readonly ShownSink[]) : [] // of the same release
  told('sinks', sinks.flatMap(checksOf))
  const names = new Set([
    ...actors.filter(({ kind }) => kind === 'source').map(({ name }) => String(name)),
    ...sinks.map((sink) => sink.database),
  ])
  for (const name of names) {
    const answer = await ask('GET', `/postgres_databases/${encodeURIComponent(name)}/checks`)
    told(`database ${name}`, objectsOf(answer['data']) as unknown as readonly DatabaseCheck[]) // of the same release
  }
}

function troubleOf({ name, state, last_error }: Readonly<Record<string, unknown>>): DatabaseCheck {
  const { code, message } = fieldsOf(last_error)
  const remedy = typeof code === 'string' && Object.hasOwn(ERRORS, code) ? ERRORS[code as keyof typeof ERRORS].remedy : 'See its logs.'
  const words = `the source of "${String(name)}" is ${String(state)}${code === undefined ? '' : `: ${String(code)}: ${String(message)}`}`
  return state === 'failed' ? failure('Source', words, remedy) : warning('Source', words, remedy)
}

function checksOf({ name, health }: ShownSink): readonly DatabaseCheck[] {
  const bad = health.checks.filter(({ status, error }) => error && (status === 'error' || status === 'warning'))
  if (bad.length === 0) return [ok(name, health.status)]
  return bad.map(({ name: check, status, error }) => {
    const code = error?.code ?? ''
    const remedy = Object.hasOwn(ERRORS, code) ? ERRORS[code as keyof typeof ERRORS].remedy : `See: tailrace sinks get ${name}`
    return { name, status: status === 'error' ? 'error' : 'warning', message: `${check}: ${code}: ${error?.message ?? ''}`, remedy }
  })
}
