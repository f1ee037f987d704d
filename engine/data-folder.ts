/**
 * The data folder of one process: log, embedded Postgres, key and demo access live in it. It is held by an exclusive
 * transaction on `lock.sqlite` that stays open, because the kernel frees it whatever way the process ends (a pid file
 * alone fools containers, where every process is pid 1 or 7; and lmdb lets a second process in).
 */
import { mkdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { dirname, join, resolve } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { EngineError, codeOf, errorText } from './errors.ts'

interface DataFolder extends Disposable {
  readonly path: string
}

/** Referenced from here, because a connection that is collected as garbage closes and lets the lock go. */
const held = new Set<DatabaseSync>()

const SQLITE_BUSY = 5

/**
 * Takes a data folder for this process, and makes it if there is none.
 * @throws EngineError DATA_FOLDER_IN_USE: another process holds it; the message says its pid
 * SETTING_INVALID: it is no folder that could be made or written to
 */
export function openDataFolder(folder: string): DataFolder {
  const path = resolve(folder)
  let lock: DatabaseSync | undefined
  try {
    makeFolder(path)
    writeFileSync(join(path, 'lock.sqlite'), '', { flag: 'a', mode: 0o600 }) // whoever may read it may hold it
    lock = new DatabaseSync(join(path, 'lock.sqlite'))
    lock.exec('begin exclusive')
    writeFileSync(join(path, 'lock.pid'), `${process.pid}\n`, { mode: 0o600 })
  } catch (cause) {
    lock?.close()
    const isBusy = cause instanceof Error && 'errcode' in cause && cause.errcode === SQLITE_BUSY
    throw isBusy ? inUse(path, cause) : unusable(path, cause)
  }
  const open = lock
  held.add(open)
  return {
    path,
    [Symbol.dispose]: () => {
      held.delete(open)
      open.close()
    },
  }
}

/** mkdir's own `recursive` never ends where a folder can't be made below one that is there, such as /proc. */
function makeFolder(path: string): void {
  const there = statSync(path, { throwIfNoEntry: false })
  if (there?.isDirectory()) return
  if (there) throw new Error(`${path} is not a folder`)
  makeFolder(dirname(path))
  try {
    mkdirSync(path, { mode: 0o700 })
  } catch (error) {
    if (codeOf(error) !== 'EEXIST') throw error // another process was faster
  }
}

function inUse(path: string, cause: unknown): EngineError {
  const holder = readHolder(path)
  const text = `the data folder ${path} is in use by process ${holder}`
  return new EngineError('DATA_FOLDER_IN_USE', text, { folder: path, pid: holder }, { cause })
}

function unusable(path: string, cause: unknown): EngineError {
  const text =
    `TAILRACE_DATA: ${path} can't be the data folder: ${errorText(cause)}. Name a folder that this process may write to ` +
    '(a missing one is created), or give this user the right to write there'
  return new EngineError('SETTING_INVALID', text, { variables: 'TAILRACE_DATA', folder: path }, { cause })
}

/** Only said, never trusted: the lock alone decides. */
function readHolder(path: string): string {
  try {
    return readFileSync(join(path, 'lock.pid'), 'utf8').trim()
  } catch {
    return '(just starting)'
  }
}
