/** For connections that may no longer answer. */
import type { Client } from 'pg'

/** Ends a connection at once, whatever it is doing; its own `end` says good-bye, and waits where nobody listens. */
export function cut(client: Client): void {
  const { stream } = (client as unknown as { connection: { stream: { destroy(): void } } }).connection
  stream.destroy()
}
