/**
 * The data folder of one process: log, embedded Postgres, key and demo access live in it. It is held by an exclusive
 * transaction on `lock.sqlite` that stays open, because the kernel frees it whatever way the process ends (a pid file
 * alone fools containers, where every process is pid 1 or 7; and lmdb lets a second process in).
 */
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { EngineError } from './errors.ts'

export interface DataFolder extends Disposable {
  readonly path: string
}

/** Referenced from here, because a connection that is collected as garbage closes and lets the lock go. */
const held = new Set<DatabaseSync>()

/** @throws EngineError DATA_FOLDER_IN_USE: another process holds it; the message says its pid */
export function openDataFolder(folder: string): DataFolder {
  const path = resolve(folder)
  mkdirSync(path, { recursive: true, mode: 0o700 })
  const lock = new DatabaseSync(join(path, 'lock.sqlite'))
  try {
    lock.exec('begin exclusive')
  } catch (cause) {
    lock.close()
    const holder = readHolder(path)
    throw new EngineError(
      'DATA_FOLDER_IN_USE',
      `the data folder ${path} is in use by the process ${holder}`,
      { folder: path, pid: holder },
      { cause },
    )
  }
  writeFileSync(join(path, 'lock.pid'), `${process.pid}\n`, { mode: 0o600 })
  held.add(lock)
  return {
    path,
    [Symbol.dispose]: () => {
      held.delete(lock)
      lock.close()
    },
  }
}

/** Only said, never trusted: the lock alone decides. */
function readHolder(path: string): string {
  try {
    return readFileSync(join(path, 'lock.pid'), 'utf8').trim()
  } catch {
    return 'that is just starting'
  }
}
