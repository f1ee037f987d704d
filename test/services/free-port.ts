/**
 * Ports for servers that are told where to listen. They lie below those that the system gives to connections by itself: a server that is
 * started a while after its port was chosen, or once more after a kill, would find a connection of somebody else there now and then.
 */
import { randomInt } from 'node:crypto'
import { once } from 'node:events'
import { createServer } from 'node:net'

const LOWEST = 10_000
/** Linux begins at 32768, others later. */
const BELOW = 32_000
const chosen = new Set<number>()

/** A port of 127.0.0.1 that nobody listens on at the moment, and that this process was not given before. */
export async function freePort(): Promise<number> {
  for (;;) {
    const port = randomInt(LOWEST, BELOW)
    if (chosen.has(port) || !(await isFree(port))) continue
    chosen.add(port)
    return port
  }
}

async function isFree(port: number): Promise<boolean> {
  const server = createServer().listen(port, '127.0.0.1')
  try {
    await once(server, 'listening')
  } catch {
    return false
  }
  server.close()
  await once(server, 'close')
  return true
}
