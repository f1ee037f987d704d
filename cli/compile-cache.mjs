// Where what was compiled once is kept, which halves the time of a start. It is code that runs as the service's user, and Node
// asks neither whose it is nor who may write it: so it lies in a folder that is ours and that nobody else can write or replace.
import { existsSync, lstatSync, mkdirSync, realpathSync } from 'node:fs'
import { homedir } from 'node:os'
import { dirname, join } from 'node:path'

const OTHERS_WRITE = 0o002
const GROUP_WRITES = 0o020
const STICKY = 0o1000

/** @returns a folder below the user's own for caches; undefined: there is none to trust, and then nothing is kept */
export function compileCacheFolder() {
  // oxlint-disable-next-line no-process-env -- what reads the settings is among what is kept
  const { XDG_CACHE_HOME, LOCALAPPDATA } = process.env
  const caches = process.platform === 'win32' ? LOCALAPPDATA : (XDG_CACHE_HOME ?? join(homedir(), '.cache'))
  return caches ? trustedFolder(join(caches, 'tailrace', 'compiled')) : undefined
}

/** Makes the folder where it is missing. @returns undefined: it can't be made, or others could put something into it, now or by a folder above it */
export function trustedFolder(path) {
  try {
    // level by level: Node's own recursion never ends where a system answers ENOENT below a folder that is there, as /proc does
    for (const level of [dirname(dirname(path)), dirname(path), path]) if (!existsSync(level)) mkdirSync(level, { mode: 0o700 })
    if (process.getuid === undefined) return path // Windows: what lies below a user's folder is the user's
    const own = process.getuid()
    const folder = realpathSync(path)
    if (lstatSync(path).isSymbolicLink()) return undefined
    const { uid, mode } = lstatSync(folder)
    if (uid !== own || mode & (OTHERS_WRITE | GROUP_WRITES)) return undefined
    for (let above = dirname(folder), below = folder; above !== below; below = above, above = dirname(above))
      if (!isTrusted(lstatSync(above), own)) return undefined
    return folder
  } catch {
    return undefined
  }
}

/** Whoever may write a folder can put another one in the place of what is in it, but for a sticky one such as /tmp. */
function isTrusted({ uid, gid, mode }, own) {
  if (uid !== own && uid !== 0) return false
  if (mode & STICKY) return true
  const isPrivateGroup = gid === own && gid === process.getgid() // many systems give each user a group of the same number
  return (mode & OTHERS_WRITE) === 0 && ((mode & GROUP_WRITES) === 0 || isPrivateGroup)
}
