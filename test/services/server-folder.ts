/**
 * Where the servers of tests have their files: in memory, where the machine has plenty. Each database, broker and topic is made of
 * files by the hundred, and on a disk to make and remove those takes several times the CPU time.
 */
import { statfsSync } from 'node:fs'
import { mkdtemp } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

const MEMORY = '/dev/shm'
const TMPFS = 0x01_02_19_94
/** Must be free, of the machine and of its folder: all servers of a run together have a quarter of it at the most. */
const ROOM_BYTES = 8 * 2 ** 30

/** @returns a new folder, for its user to remove */
export const serverFolder = (prefix: string): Promise<string> => mkdtemp(join(isRoomy() ? MEMORY : tmpdir(), prefix))

function isRoomy(): boolean {
  try {
    const { type, bavail, bsize } = statfsSync(MEMORY)
    return type === TMPFS && bavail * bsize >= ROOM_BYTES && process.availableMemory() >= ROOM_BYTES
  } catch {
    return false // other systems have no such folder
  }
}
