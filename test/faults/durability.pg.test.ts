/**
 * The slot may be confirmed only from the durable log: once Postgres is told, it may throw the write-ahead log away, so
 * from then on everything has to be there without Postgres. Seen from outside: the process is killed under load, its
 * way to Postgres is cut, and it is started again. What the slot says is confirmed must all be delivered from the log.
 */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseLsn } from '../../engine/lsn.ts'
import { createDatabase } from '../services/postgres.ts'
import { NetProxy } from './net-proxy.ts'
import { comparePlaces, type Message } from './oracle.ts'
import { Random } from './random.ts'
import { withSeed } from './scenario.ts'
import { Service, SLOT, TOKEN } from './service.ts'
import { HttpSinkClient, Passing } from './sink-client.ts'
import { seeds } from './size.ts'
import { judge } from './verdict.ts'
import { CAPTURED, DDL } from './workload-tables.ts'
import { Workload } from './workload.ts'

const CUTS = 3
const ACK_WAIT_MS = 500
const ANSWERS_WITHIN_MS = 30_000

for (const seed of seeds(1)) {
  test(`what the slot has confirmed is delivered after a SIGKILL with Postgres out of reach (seed ${seed})`, async () => {
    await withSeed(seed, 'durability.pg.test.ts', async () => {
      await using source = await createDatabase(DDL)
      await using state = await createDatabase()
      const { hostname: host, port } = source.connection
      await using proxy = await NetProxy.start({ host, port })
      await using service = await Service.prepare({
        source: { ...source.connection, hostname: '127.0.0.1', port: proxy.port },
        stateUrl: state.url,
        sinks: [{ name: 'one', tables: CAPTURED, ack_wait_ms: ACK_WAIT_MS }],
      })
      await using client = new HttpSinkClient({ origin: service.origin, sink: 'one', token: TOKEN })
      const random = new Random(seed)
      const workload = new Workload({ seed, connect: () => source.connect() })
      const writing = new AbortController()
      await service.startReady()
      service.forgetConfigFile() // a file is applied to the source itself, which will be out of reach
      const written = workload.run(writing.signal)
      written.catch(() => {})
      await using ended = { [Symbol.asyncDispose]: () => (writing.abort(), written.catch(() => {})) }
      void ended
      const delivered = new Map<string, Message>()
      let proven = 0
      for (let cut = 0; cut < CUTS; cut++) {
        await sleep(random.int(100, 1_500)) // any point in the stream; nobody receives, so the log holds it all
        await service.kill()
        proxy.cut()
        const [slot] = await source.query<{ lsn: string }>(
          'select confirmed_flush_lsn::text as lsn from pg_replication_slots where slot_name = $1',
          [SLOT],
        )
        const confirmed = parseLsn(slot!.lsn)
        const due = workload.committed.filter(({ before }) => before <= confirmed)
        service.start()
        const before = delivered.size
        await drain(client, delivered)
        const lost = due.filter(({ changes, after, before }) =>
          changes.some(
            ({ idx }) => ![...delivered.values()].some((message) => message.idx === idx && message.lsn >= after && message.lsn < before),
          ),
        )
        assert.deepEqual(
          lost.map(({ name }) => name),
          [],
          service.failure(`confirmed up to ${confirmed}, but these are not in the log`).message,
        )
        proven += delivered.size - before
        proxy.heal()
        await service.untilReady()
      }
      writing.abort()
      await written
      assert.ok(proven > 0, 'nothing was ever confirmed: the run has tested nothing')
      while (delivered.size < workload.changes) await drain(client, delivered)
      assert.deepEqual(judge([...delivered.values()].sort(comparePlaces), workload.committed, await workload.tables()), [])
    })
  })
}

/** Receives and acks until nothing more comes, with the time that open messages of a killed process stay invisible. */
async function drain(client: HttpSinkClient, delivered: Map<string, Message>): Promise<void> {
  const deadline = performance.now() + ANSWERS_WITHIN_MS
  for (;;) {
    try {
      const messages = await client.receive({ batchSize: 1_000, waitMs: ACK_WAIT_MS + 500 })
      if (messages.length === 0) return
      for (const message of messages) delivered.set(message.ackId, message)
      await client.ack(messages.map((message) => message.ackId))
    } catch (error) {
      if (!(error instanceof Passing) || performance.now() > deadline) throw error
      await sleep(50)
    }
  }
}
