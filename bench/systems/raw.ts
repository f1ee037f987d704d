/** The limit: what Postgres gives at all. A replication connection that reads the range and throws it away. */
import { join } from 'node:path'
import { Reader } from '../reader.ts'
import type { Running, System, Task } from '../system.ts'

export const raw: System = {
  name: 'raw limit',
  description: 'a replication connection (pg, pgoutput, protocol 1) that reads and throws away',
  start: async (task: Task): Promise<Running> => {
    const reader = new Reader(join(import.meta.dirname, 'raw-reader.ts'), task)
    return {
      processes: { reader: () => [reader.pid] },
      reached: reader.reached,
      resetDelays: () => reader.resetDelays(),
      delays: () => reader.delays(),
      [Symbol.asyncDispose]: () => reader[Symbol.asyncDispose](),
    }
  },
}
