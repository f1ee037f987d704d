/**
 * Processes that read the range, at most decode it, and keep nothing. The first is the limit: what Postgres gives at all.
 *
 * A walsender sends every message by itself. Each of them wakes a reader that waits for it, which costs the walsender more
 * than sending does; so the limit's reader pauses when it has read all there is, and finds many messages the next time.
 */
import { join } from 'node:path'
import { Reader } from '../reader.ts'
import type { Running, System, Task } from '../system.ts'
import type { RawTask } from './raw-reader.ts'

/** In a longer one the walsender may fill the connection's window, 64 KB, and stand still; in one of this length it sends about that. */
const PAUSE_MS = 1

export const raw: System = {
  name: 'raw limit',
  description: `a replication connection (pgoutput, protocol 1) that reads and throws away, with ${PAUSE_MS} ms of rest when it has read all there is`,
  start: (task) => readRaw(task, PAUSE_MS),
}

export const rawWithoutPause: System = {
  name: 'raw reader without pause',
  description: 'the reader of the raw limit, waiting for every message',
  start: (task) => readRaw(task, 0),
}

export const decoderAlone: System = {
  name: 'pg-logical-replication, nothing kept',
  description: 'its PgoutputPlugin decodes every change, which is counted and forgotten',
  start: (task) => read('decoder-reader.ts', task),
}

function readRaw(task: Task, pauseMs: number): Promise<Running> {
  const raw: RawTask = { ...task, pauseMs }
  return read('raw-reader.ts', raw)
}

async function read(module: string, task: Task): Promise<Running> {
  const reader = new Reader(join(import.meta.dirname, module), task)
  return {
    processes: { reader: () => [reader.pid] },
    reached: reader.reached,
    [Symbol.asyncDispose]: () => reader[Symbol.asyncDispose](),
  }
}
