/** Cuts connections off that may no longer answer, or that answer too much. */
import type { Socket } from 'node:net'
import type { Client } from 'pg'

const streamOf = (client: Client): Socket => (client as unknown as { connection: { stream: Socket } }).connection.stream

/** Ends a connection at once, whatever it is doing; its own `end` says good-bye, and waits where nobody listens. */
export function cut(client: Client): void {
  streamOf(client).destroy()
}

/** Says that an answer is larger than whoever asked can take. */
export class TooMuch extends Error {}

/**
 * Asks, and cuts the connection off when the answer is larger than a bound. Bytes are counted as they come in, because a value is
 * put together whole before anybody is told of its row.
 * @throws TooMuch: then the connection can't be used any more
 */
export async function askWithin<T>(client: Client, maxBytes: number, ask: () => Promise<T>): Promise<T> {
  const stream = streamOf(client)
  const { promise: excess, reject } = Promise.withResolvers<never>()
  let bytes = 0
  const count = (chunk: Buffer) => {
    bytes += chunk.length
    if (bytes <= maxBytes) return
    stream.off('data', count)
    reject(new TooMuch(`it gave more than ${maxBytes / 1024 / 1024} MB`))
    cut(client)
  }
  stream.on('data', count)
  try {
    return await Promise.race([ask(), excess])
  } finally {
    stream.off('data', count)
  }
}
