/**
 * What a connection pooler looks like to its clients: it names a process of its own at the login, and passes replication on or
 * refuses it, as PgBouncer does below 1.23.
 */
import { createConnection, createServer, type AddressInfo, type Socket } from 'node:net'
import type { Connection } from '../../engine/postgres/client-config.ts'

const BACKEND_KEY = 0x4b // K
const READY = 0x5a // Z
const REFUSAL = 'SERROR\0VERROR\0C08P01\0Munsupported startup parameter: replication\0\0'

/** Stands before a server until it is disposed of. */
export async function pooler(to: Connection, { passesReplication }: Readonly<{ passesReplication: boolean }>) {
  const sockets = new Set<Socket>()
  const server = createServer((client) => {
    const backend = createConnection(to.port, to.hostname)
    for (const socket of [client, backend]) {
      sockets.add(socket)
      socket.on('error', () => undefined)
      socket.on('close', () => (client.destroy(), backend.destroy(), sockets.delete(socket)))
    }
    client.once('data', (startup: Buffer) => {
      if (!passesReplication && startup.includes('replication\0')) return client.end(refusal())
      backend.write(startup)
      client.pipe(backend)
    })
    let held = Buffer.alloc(0)
    const onLogin = (chunk: Buffer) => {
      held = Buffer.concat([held, chunk])
      let at = 0
      while (held.length - at >= 5 && held.length >= at + 1 + held.readUInt32BE(at + 1)) {
        if (held[at] === BACKEND_KEY) held.writeUInt32BE(1_000_000, at + 5)
        if (held[at] === READY) {
          backend.off('data', onLogin)
          backend.pipe(client)
          at = held.length
          break
        }
        at += 1 + held.readUInt32BE(at + 1)
      }
      client.write(held.subarray(0, at))
      held = held.subarray(at)
    }
    backend.on('data', onLogin)
  })
  await new Promise<void>((resolve) => void server.listen(0, '127.0.0.1', resolve))
  return {
    port: (server.address() as AddressInfo).port,
    [Symbol.asyncDispose]: async () => {
      for (const socket of sockets) socket.destroy()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}

function refusal(): Buffer {
  const head = Buffer.from([0x45, 0, 0, 0, 0])
  head.writeUInt32BE(4 + REFUSAL.length, 1)
  return Buffer.concat([head, Buffer.from(REFUSAL, 'latin1')])
}
