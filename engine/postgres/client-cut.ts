/** What lies below a connection: for those that may no longer answer, or answer too much. */
import type { Socket } from 'node:net'
import type { Client } from 'pg'

/** What comes in and goes out of it. */
export const streamOf = (client: Client): Socket => (client as unknown as { connection: { stream: Socket } }).connection.stream

/** Ends a connection at once, whatever it is doing; its own `end` says good-bye, and waits where nobody listens. */
export function cut(client: Client): void {
  streamOf(client).destroy()
}
