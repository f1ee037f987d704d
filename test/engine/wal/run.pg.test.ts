/** One run of a source at its seams: with an append of the run before it, with a catalogue that has moved on, with a keepalive at a bad time. */
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { connect, createServer, type AddressInfo, type Socket } from 'node:net'
import { test } from 'node:test'
import { setImmediate as turn } from 'node:timers/promises'
import type { SourceActor } from '../../../actors/source/source-actor.ts'
import { reaches, routedSink, SourceFixture } from './source-fixture.ts'
import { pass, until } from '../../waiting.ts'

const TABLE = 'create table item (id int primary key, name text not null)'

test('a run begins no append while one that the former run gave up on is still open, and goes on behind it', async () => {
  await using it = await SourceFixture.create({ ddl: TABLE })
  const open = Promise.withResolvers<void>()
  let begun = 0
  it.log.before = () => (begun++ === 0 ? open.promise : undefined)
  const actor = it.start({ appendTimeoutMs: 100 })
  await it.db.query(`insert into item select i, '' from generate_series(1, 3) i`)
  await retried(actor, 2)
  assert.equal(actor.lastError?.code, 'LOG_APPEND_TIMEOUT')
  assert.equal(begun, 1)
  open.resolve()
  await it.db.query(`insert into item values (4, '')`)
  const seen = await it.until((s) => s.some((m) => m.json.record.id === 4))
  assert.deepEqual(
    seen.map((m) => m.json.record.id),
    [1, 2, 3, 4],
  )
})

test('a transaction that was cut goes on under the key it began with, whatever the key is by then', async () => {
  await using it = await SourceFixture.create({ ddl: `${TABLE}; alter table item replica identity full` })
  const actor = it.start({ packBytes: 16 * 1024, maxBytesInFlight: 64 * 1024 })
  await it.db.query(`insert into item values (0, 'before')`)
  const end = await it.walEnd()
  await until('the table is known and confirmed', async () => (await it.slotRow()).confirmed >= end)
  it.log.after = () => {
    it.log.before = () => Promise.reject(new Error('cut'))
    throw new Error('cut')
  }
  const session = await it.db.connect()
  await session.query('begin')
  await session.query(`insert into item select i, 'n' || i from generate_series(1, 2500) i`)
  await session.query('analyze item') // Postgres announces the table anew with the next row, as it does whenever anyone analyzes it
  await session.query(`insert into item select i, 'n' || i from generate_series(2501, 5000) i`)
  await session.query('commit')
  await reaches(actor, 'waiting')
  await actor.stop()
  const cut = await it.messages()
  assert.ok(cut.length > 1 && cut.length < 2500, `cut after ${cut.length} messages`)
  await it.db.query('alter table item drop constraint item_pkey, add primary key (name)')
  await it.db.query(`insert into item values (5001, 'under the later key')`)
  it.log.before = it.log.after = undefined
  it.start()
  const seen = await it.until((s) => s.length > 5001)
  assert.deepEqual(
    seen.map((m) => m.key),
    [...Array.from({ length: 5001 }, (_, id) => `["${id}"]`), '["under the later key"]'],
  )
})

test('nothing is confirmed to the server before the log remembers it', async () => {
  await using it = await SourceFixture.create({ ddl: TABLE })
  it.log.remember = () => Promise.reject(new Error('not now'))
  const actor = it.start()
  await reaches(actor, 'waiting') // it does not even start
  it.log.remember = async () => undefined
  await reaches(actor, 'streaming')
  await it.db.query(`insert into item values (1, 'one')`)
  const end = await it.walEnd()
  const asked = Promise.withResolvers<void>()
  const goesOn = Promise.withResolvers<void>()
  it.log.remember = async (_source, { confirmed }) => {
    if (confirmed < end) return
    asked.resolve()
    await goesOn.promise
  }
  await asked.promise
  await turn() // what goes on without waiting has gone on
  const confirmed = actor.figures?.confirmedLsn ?? 0n
  goesOn.resolve() // first: a source that ends confirms what it can
  assert.ok(confirmed < end, `${confirmed} of ${end} is confirmed`)
  await until('it is confirmed', async () => (await it.slotRow()).confirmed >= end)
})

test('a source that is stopped while it makes a routing version ready has stopped when that is done: the log may be closed then', async () => {
  await using it = await SourceFixture.create({ ddl: TABLE })
  const actor = it.start()
  await reaches(actor, 'streaming')
  const joins = Promise.withResolvers<void>()
  const stops = Promise.withResolvers<void>()
  const order: string[] = []
  it.log.join = async (...of) => {
    joins.resolve()
    await stops.promise
    await pass(500, 'it is a slow log: longer than a stop takes')
    await it.log.inner.join(...of)
    order.push('joined')
  }
  await it.route(actor, [routedSink({ generation: 2 })])
  await joins.promise
  const stopped = actor.stop()
  await until('its slot is free', async () => !(await it.slotRow()).active)
  stops.resolve()
  await stopped
  order.push('stopped')
  assert.deepEqual(order, ['joined', 'stopped'])
})

test('a keepalive within a transaction confirms nothing of it', async () => {
  await using it = await SourceFixture.create({ ddl: TABLE })
  await using line = await lineTo(it.db.connection.port)
  const database = it.database({ ...it.db.connection, hostname: '127.0.0.1', port: line.port })
  await reaches(it.start({ idleConfirmEveryMs: 1, walSenderTimeoutMs: 300 }, { database }), 'streaming')
  const held = line.holdNextTransaction()
  await it.db.query(`insert into item values (1, 'one')`)
  const { commitLsn, keepalive, letGo } = await held
  for (let i = 0; i < 30; i++) assert.ok((await keepalive(commitLsn + 4096n)) <= commitLsn)
  assert.ok((await it.savedConfirmed()) <= commitLsn)
  letGo()
  assert.equal((await it.until((s) => s.length > 0)).length, 1)
  const end = await it.walEnd()
  await until('it is confirmed', async () => (await it.slotRow()).confirmed >= end)
})

/** Settles when the source has failed and tried again so many times. */
function retried(actor: SourceActor, times: number): Promise<void> {
  return new Promise((resolve) => {
    let left = times
    const unwatch = actor.watch((state) => {
      if (state !== 'waiting' || --left > 0) return
      unwatch()
      resolve()
    })
  })
}

type Held = {
  commitLsn: bigint
  /** sends a keepalive that asks for an answer. @returns the position which the answer confirms */
  keepalive: (walEnd: bigint) => Promise<bigint>
  letGo: () => void
}

/** A line to the server that can stop right behind the Begin of a transaction, and say there what a server may say. */
async function lineTo(serverPort: number) {
  let hold: ((held: Held) => void) | undefined
  const sockets = new Set<Socket>()
  const server = createServer((client) => {
    const upstream = connect(serverPort, '127.0.0.1')
    for (const socket of [client, upstream]) sockets.add(socket.on('error', () => undefined).on('close', () => sockets.delete(socket)))
    client.on('close', () => upstream.destroy())
    upstream.on('close', () => client.destroy())
    let answered: ((confirmed: bigint) => void) | undefined
    client.on('data', (chunk) => {
      upstream.write(chunk)
      // CopyData with a status: 'd', length, 'r', written, flushed, …: it comes in a chunk of its own
      if (chunk[0] === 0x64 && chunk[5] === 0x72) answered?.(chunk.readBigUInt64BE(14))
    })
    let waiting = Buffer.alloc(0)
    let isHeld = false
    const pass = () => {
      while (!isHeld && waiting.length >= 5 && waiting.length > waiting.readUInt32BE(1)) {
        const message = waiting.subarray(0, waiting.readUInt32BE(1) + 1)
        waiting = waiting.subarray(message.length)
        client.write(message)
        // CopyData with a message of the stream: 'd', length, 'w', three times 8 bytes, then 'B' and the commit's LSN
        if (!hold || message[0] !== 0x64 || message[5] !== 0x77 || message[30] !== 0x42) continue
        isHeld = true
        hold({
          commitLsn: message.readBigUInt64BE(31),
          keepalive: (walEnd) => {
            const { promise, resolve } = Promise.withResolvers<bigint>()
            answered = resolve
            client.write(keepaliveFrame(walEnd))
            return promise
          },
          letGo: () => {
            isHeld = false
            pass()
          },
        })
        hold = undefined
      }
    }
    upstream.on('data', (chunk) => {
      waiting = Buffer.concat([waiting, chunk])
      pass()
    })
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  return {
    port: (server.address() as AddressInfo).port,
    holdNextTransaction: () => new Promise<Held>((resolve) => (hold = resolve)),
    [Symbol.asyncDispose]: async () => {
      for (const socket of sockets) socket.destroy()
      server.close()
      await once(server, 'close')
    },
  }
}

function keepaliveFrame(walEnd: bigint): Buffer {
  const frame = Buffer.alloc(23)
  frame[0] = 0x64
  frame.writeUInt32BE(22, 1)
  frame[5] = 0x6b
  frame.writeBigUInt64BE(walEnd, 6)
  frame[22] = 1 // answer at once
  return frame
}
