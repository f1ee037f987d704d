import assert from 'node:assert/strict'
import { once } from 'node:events'
import { connect, createServer, type AddressInfo, type Socket } from 'node:net'
import { test } from 'node:test'
import { EngineError } from '../../../../engine/errors.ts'
import type { Lsn } from '../../../../engine/lsn.ts'
import {
  ReplicationConnection,
  statusMessage,
  type ReplicationOptions,
  type StreamListener,
} from '../../../../engine/wal/connection/replication.ts'
import { sourceClient } from '../../../../engine/wal/connection/source-client.ts'
import type { Chunk } from '../../../../engine/wal/decode/chunk.ts'
import { NetProxy } from '../../../faults/net-proxy.ts'
import { withMoreTime } from '../../../services/more-time.ts'
import { createDatabase, type TestDatabase } from '../../../services/postgres.ts'
import { pass, until } from '../../../waiting.ts'

const slotOf = (db: TestDatabase) => `r_${db.name}`

/** A line that lets a test look at what goes to the server, and swallow what comes back. */
async function relay(serverPort: number, { toServer, passes }: { toServer: (chunk: Buffer) => void; passes: () => boolean }) {
  const sockets: Socket[] = []
  const server = createServer((near) => {
    const far = connect(serverPort, '127.0.0.1')
    sockets.push(near, far)
    near.on('error', () => undefined).on('close', () => far.destroy())
    far.on('error', () => undefined).on('close', () => near.destroy())
    near.on('data', (chunk) => {
      toServer(chunk)
      far.write(chunk)
    })
    far.on('data', (chunk) => passes() && near.write(chunk))
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  return {
    port: (server.address() as AddressInfo).port,
    [Symbol.asyncDispose]: async () => {
      for (const socket of sockets) socket.destroy()
      await new Promise((closed) => server.close(closed))
    },
  }
}

async function prepared(): Promise<TestDatabase> {
  const db = await createDatabase('create table t (id int primary key); create publication "Pub, with comma" for all tables')
  await db.query(`select pg_create_logical_replication_slot($1, 'pgoutput')`, [slotOf(db)])
  return db
}

type Over = Partial<ReplicationOptions & StreamListener> & { port?: number; confirmed?: Lsn }

/** A connection to the slot of the database, and what opens its stream. */
function connection(db: TestDatabase, over: Over = {}) {
  const { port = db.connection.port, walSenderTimeoutMs = 10_000, confirmed = 0n, onMessage, onKeepalive, ...options } = over
  const stream = new ReplicationConnection({
    client: sourceClient({ ...db.connection, port }, 'test', { wal_sender_timeout: walSenderTimeoutMs }),
    slot: slotOf(db),
    publication: 'Pub, with comma',
    ...options,
    walSenderTimeoutMs,
  })
  const open = async () => {
    await stream.connect()
    await stream.stream({ onMessage: onMessage ?? (() => undefined), onKeepalive: onKeepalive ?? (() => undefined) }, confirmed)
  }
  return { stream, open }
}

test('a status message holds the LSN exactly, three times, and microseconds since 2000', () => {
  const lsn: Lsn = 0x16_ffffffffn
  const message = statusMessage(lsn, Date.UTC(2000, 0, 1, 0, 0, 1), true)
  assert.equal(message.length, 34)
  assert.equal(String.fromCharCode(message[0]!), 'r')
  for (const at of [1, 9, 17]) assert.equal(message.readBigUInt64BE(at), lsn)
  assert.equal(message.readBigInt64BE(25), 1_000_000n)
  assert.equal(message[33], 1)
})

test('the server takes the confirmed LSN as it is, and its clock agrees with ours', async () => {
  await using db = await prepared()
  const [row] = await db.query<{ lsn: string }>(`select (pg_current_wal_lsn() - '0/0')::text as lsn`)
  const confirmed = BigInt(row!.lsn)
  const { stream, open } = connection(db, { confirmed })
  await open()
  stream.confirm(confirmed)
  const slot = await until('it is confirmed', async () => {
    const [found] = await db.query<{ lsn: string; lag: number }>(
      `select (confirmed_flush_lsn - '0/0')::text as lsn, abs(extract(epoch from now() - reply_time))::float8 as lag
       from pg_replication_slots join pg_stat_replication on pid = active_pid where slot_name = $1`,
      [slotOf(db)],
    )
    return BigInt(found!.lsn) >= confirmed && found
  })
  assert.equal(BigInt(slot.lsn), confirmed)
  assert.ok(slot.lag < 5, `reply_time is ${slot.lag} s off`)
  stream.stop()
  assert.equal(await stream.ended, undefined)
})

test('a throw while handling a chunk ends the connection with a typed error, not the process', async () => {
  for (const [thrown, code] of [
    [new RangeError('beyond'), 'MESSAGE_MALFORMED'],
    [new TypeError('defect'), 'INTERNAL'],
    [new EngineError('SLOT_GAP', 'own'), 'SLOT_GAP'],
  ] as const) {
    await using db = await prepared()
    const { stream, open } = connection(db, {
      onMessage: () => {
        throw thrown
      },
    })
    await open()
    await db.query('insert into t values (1)')
    assert.equal((await stream.ended)?.code, code)
  }
})

test('a server that falls silent without a word is given up, after it was asked', async () => {
  await using db = await prepared()
  await using proxy = await NetProxy.start({ host: '127.0.0.1', port: db.connection.port })
  const { stream, open } = connection(db, { port: proxy.port, walSenderTimeoutMs: 300 })
  await open()
  proxy.fallSilent()
  const error = await stream.ended
  assert.equal(error?.code, 'SOURCE_UNREACHABLE')
  assert.ok(Number(error.context.silentMs) >= 300)
})

test('a great row on a slow line comes through, however long it takes: every byte of it is a sign of life', () =>
  withMoreTime([900, 3_000], async (walSenderTimeoutMs) => {
    await using db = await prepared()
    await db.query('create table doc (id int primary key, body text)')
    await using proxy = await NetProxy.start({ host: '127.0.0.1', port: db.connection.port })
    const came = Promise.withResolvers<void>()
    const bytes = 1_600 * walSenderTimeoutMs // twice as long as a server may be silent
    const onMessage = (chunk: Chunk) => void (chunk.length > bytes && came.resolve())
    const { stream, open } = connection(db, { port: proxy.port, walSenderTimeoutMs, onMessage })
    await open()
    proxy.weather = { delayMs: 0, bytesPerSecond: 400_000 }
    await db.query(`insert into doc values (1, repeat('x', $1))`, [bytes])
    assert.equal(await Promise.race([came.promise, stream.ended]), undefined)
    stream.stop()
  }))

test('a server that is silent is asked for an answer before it is given up', () =>
  withMoreTime([300, 3_000], async (walSenderTimeoutMs) => {
    await using db = await prepared()
    const asked: boolean[] = []
    let isSilent = false
    await using line = await relay(db.connection.port, {
      toServer: (chunk) => {
        // CopyData with a status: 'd', length, 'r', three positions and a time, then whether an answer is wanted
        if (isSilent && chunk[0] === 0x64 && chunk[5] === 0x72) asked.push(chunk[38] === 1)
      },
      passes: () => !isSilent,
    })
    const { stream, open } = connection(db, { port: line.port, walSenderTimeoutMs })
    await open()
    isSilent = true
    assert.equal((await stream.ended)?.code, 'SOURCE_UNREACHABLE')
    assert.ok(asked.filter((wanted) => wanted).length >= 3, `${asked}`)
  }))

test('an idle server is not taken for a silent one', async () => {
  await withMoreTime([150, 600, 2_400], async (walSenderTimeoutMs) => {
    await using db = await prepared()
    const { stream, open } = connection(db, { walSenderTimeoutMs })
    await open()
    await pass(walSenderTimeoutMs * 10, 'time itself is what is tested')
    stream.stop()
    assert.equal(await stream.ended, undefined)
  })
})

test('whatever else waits gets its turn within half a megabyte of a backlog, and a pause outlives the turn', async () => {
  await using db = await prepared()
  await db.query('create table doc (id int primary key, body text)')
  await db.query(`insert into doc select i, repeat('x', 16000) from generate_series(1, 400) i`)
  let inTurn = 0
  let most = 0
  let total = 0
  const rested = new Int32Array(new SharedArrayBuffer(4))
  const half = Promise.withResolvers<void>()
  const end = Promise.withResolvers<void>()
  const { stream, open } = connection(db, {
    onMessage: (chunk) => {
      Atomics.wait(rested, 0, 0, 1) // slower than the server, so that there is always more to read
      if (inTurn === 0) setImmediate(() => (inTurn = 0))
      inTurn += chunk.length
      most = Math.max(most, inTurn)
      const before = total
      total += chunk.length
      if (before < 3_000_000 && total >= 3_000_000) {
        stream.pause()
        half.resolve()
      }
      if (total > 400 * 16_000) end.resolve()
    },
  })
  await open()
  await half.promise
  await new Promise((read) => setImmediate(read)) // what the last read brought is still handed over
  const held = total
  await pass(50, 'what comes all the same has come by then')
  assert.equal(total, held)
  stream.resume()
  await end.promise
  assert.ok(most < 512 * 1024, `${most} bytes in one turn`)
  stream.stop()
})

test('what keeps a stream from opening is named', async () => {
  await using db = await prepared()
  await assert.rejects(connection(db, { port: 1 }).open(), { code: 'SOURCE_UNREACHABLE' })
  await assert.rejects(connection(db, { slot: 'not_there' }).open(), { code: 'SOURCE_UNABLE', message: /not_there/ })
  const client = sourceClient({ ...db.connection, database: 'not_there' }, 'test')
  await assert.rejects(connection(db, { client }).open(), { code: 'SOURCE_LOGIN_REFUSED' })
  const first = connection(db)
  await first.open()
  await assert.rejects(connection(db).open(), { code: 'SLOT_IN_USE' })
  first.stream.stop()
})

test('a stop while it opens settles at once', async () => {
  await using db = await prepared()
  await using proxy = await NetProxy.start({ host: '127.0.0.1', port: db.connection.port })
  proxy.fallSilent()
  const { stream, open } = connection(db, { port: proxy.port })
  const opening = open()
  stream.stop()
  await opening
  assert.equal(await stream.ended, undefined)
})
