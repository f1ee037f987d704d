/** Databases of accounts, which whoever has a token may name. */
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer, type AddressInfo, type Server } from 'node:net'
import { afterEach, test } from 'node:test'
import { Egress } from '../../../engine/net/egress.ts'
import { guardDatabases } from '../../../engine/postgres/guarded-socket.ts'
import { provision } from '../../../engine/wal/connection/provision.ts'
import type { Connection } from '../../../engine/postgres/client-config.ts'
import { ReplicationWire } from '../../../engine/wal/connection/replication-wire.ts'
import { sourceClient } from '../../../engine/wal/connection/source-client.ts'

const ASK_PASSWORD = Buffer.from([0x52, 0, 0, 0, 8, 0, 0, 0, 3])
afterEach(() => guardDatabases({ egress: new Egress({ mode: 'private' }) }))

/** Asks for the password in clear, and keeps what came. */
class Greedy implements AsyncDisposable {
  readonly server: Server
  readonly passwords: string[] = []
  connections = 0

  constructor() {
    this.server = createServer((socket) => {
      this.connections++
      socket.on('error', () => {})
      socket.once('data', () => {
        socket.write(ASK_PASSWORD)
        socket.once('data', (message) => {
          this.passwords.push(message.toString('latin1', 5, message.length - 1))
          socket.destroy()
        })
      })
    })
  }

  connection(hostname: string, password = ''): Connection {
    const { port } = this.server.address() as AddressInfo
    return { hostname, port, database: 'd', username: 'u', password, ssl: false }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.server.close()
    await once(this.server, 'close')
  }
}

async function greedy(): Promise<Greedy> {
  const it = new Greedy()
  it.server.listen(0, '127.0.0.1')
  await once(it.server, 'listening')
  return it
}

const asked = (connection: Connection) =>
  provision(connection, { slot: { name: 's', create: false }, publication: { name: 'p', create: false } })

test('a database without a password is not given the one of the service', async () => {
  await using it = await greedy()
  const { PGPASSWORD } = process.env
  process.env['PGPASSWORD'] = 'password-of-the-service'
  try {
    await assert.rejects(asked(it.connection('127.0.0.1')), { code: 'SOURCE_UNREACHABLE' })
    await assert.rejects(asked(it.connection('127.0.0.1', 'own')), { code: 'SOURCE_UNREACHABLE' })
  } finally {
    if (PGPASSWORD === undefined) delete process.env['PGPASSWORD']
    else process.env['PGPASSWORD'] = PGPASSWORD
  }
  assert.deepEqual(it.passwords, ['', 'own'])
})

test('databases are reached on addresses that the guard has checked, and not by sockets in folders', async () => {
  await using it = await greedy()
  const names: Record<string, string> = { 'inside.test': '127.0.0.1', 'outside.test': '8.8.8.8' }
  const resolve = async (name: string) => [{ address: names[name] as string, family: 4 as const }]
  guardDatabases({ egress: new Egress({ mode: 'public', resolve, setting: 'EGRESS_DATABASES' }) })
  for (const hostname of ['127.0.0.1', 'inside.test', '169.254.169.254', '/tmp'])
    await assert.rejects(asked(it.connection(hostname)), { code: 'EGRESS_REFUSED' }, hostname)
  const wire = new ReplicationWire(sourceClient(it.connection('inside.test'), 'test'), () => {}) as ReplicationWire & {
    connect: (port: number, host: string) => void
  }
  wire.connect(it.connection('').port, 'inside.test')
  const [refusal] = (await once(wire, 'error').catch((error: unknown) => [error])) as [{ code: string }]
  assert.equal(refusal.code, 'EGRESS_REFUSED')
  assert.equal(it.connections, 0)
  guardDatabases({ egress: new Egress({ mode: 'public', resolve, allow: ['inside.test'] }) })
  await assert.rejects(asked(it.connection('inside.test')), { code: 'SOURCE_UNREACHABLE' }) // nobody looks it up again: only our own answer is known
  const { port } = it.connection('')
  guardDatabases({ egress: new Egress({ mode: 'public', resolve }), own: { hostname: '127.0.0.1', port } })
  await assert.rejects(asked(it.connection('127.0.0.1')), { code: 'SOURCE_UNREACHABLE' })
  assert.equal(it.connections, 2)
})
