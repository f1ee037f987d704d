/**
 * The slot may be confirmed only from the durable log: once Postgres is told, it may throw the write-ahead log away, so
 * from then on everything has to be there without Postgres. Seen from outside: the process is killed under load, its
 * way to Postgres is cut, and it is started again. What the slot says is confirmed must all be delivered from the log.
 */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { parseLsn } from '../../engine/lsn.ts'
import { createDatabase, createState } from '../services/postgres.ts'
import { NetProxy } from './net-proxy.ts'
import type { Transaction } from './journal.ts'
import { comparePlaces, type Message } from './oracle.ts'
import { Random } from './random.ts'
import { withSeed } from './scenario.ts'
import { Service, SLOT, TOKEN } from './service.ts'
import { HttpSinkClient, Passing } from './sink-client.ts'
import { seeds } from './size.ts'
import { judge } from './verdict.ts'
import { CAPTURED, DDL } from './workload-tables.ts'
import { Workload } from './workload.ts'
import { gather, pass, until } from '../waiting.ts'

const CUTS = 3
const ACK_WAIT_MS = 500
const COMES_WITHIN_MS = 60_000

for (const seed of seeds(1)) {
  test(`what the slot has confirmed is delivered after a SIGKILL with Postgres out of reach (seed ${seed})`, async () => {
    await withSeed(seed, 'durability.pg.test.ts', async () => {
      await using source = await createDatabase(DDL)
      await using state = await createState()
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
      const confirmed = async () => {
        const [slot] = await source.query<{ lsn: string }>(
          'select confirmed_flush_lsn::text as lsn from pg_replication_slots where slot_name = $1',
          [SLOT],
        )
        return parseLsn(slot!.lsn)
      }
      for (let cut = 0; cut < CUTS; cut++) {
        const begun = workload.committed.length
        const isFurther = async () => {
          const from = await confirmed()
          return workload.committed.slice(begun).some(({ before }) => before <= from)
        }
        await until('the slot is confirmed further', isFurther, { service })
        await pass(random.int(0, 1_000), 'any point in the stream; nobody receives, so the log holds it all')
        await service.kill()
        proxy.cut()
        const known = await confirmed()
        const due = workload.committed.filter(({ before }) => before <= known)
        service.start()
        const before = delivered.size
        const lost = await drain(client, delivered, () => due.filter((transaction) => !isDelivered(transaction, delivered)))
        assert.deepEqual(
          lost.map(({ name }) => name),
          [],
          service.failure(`confirmed up to ${known}, but these are not in the log`).message,
        )
        proven += delivered.size - before
        proxy.heal()
        await service.untilReady()
      }
      writing.abort()
      await written
      assert.ok(proven > 0, 'nothing was ever confirmed: the run has tested nothing')
      await drain(client, delivered, () => (delivered.size < workload.changes ? [workload.changes - delivered.size] : []))
      assert.deepEqual(judge([...delivered.values()].sort(comparePlaces), workload.committed, await workload.tables()), [])
    })
  })
}

function isDelivered({ changes, after, before }: Transaction, delivered: ReadonlyMap<string, Message>): boolean {
  const idxs = new Set<number>()
  for (const { lsn, idx } of delivered.values()) if (lsn >= after && lsn < before) idxs.add(idx)
  return changes.every(({ idx }) => idxs.has(idx))
}

/** Receives and acks until nothing is missing. @returns what still is, when it has not come for long */
async function drain<T>(client: HttpSinkClient, delivered: Map<string, Message>, missing: () => readonly T[]): Promise<readonly T[]> {
  let deadline = performance.now() + COMES_WITHIN_MS
  const next = async () => {
    try {
      const messages = await client.receive({ batchSize: 1_000, waitMs: ACK_WAIT_MS })
      if (messages.length > 0) deadline = performance.now() + COMES_WITHIN_MS
      for (const message of messages) delivered.set(message.ackId, message)
      if (messages.length > 0) await client.ack(messages.map((message) => message.ackId))
      return messages
    } catch (error) {
      if (!(error instanceof Passing) || performance.now() > deadline) throw error
      await pass(50, 'it tries again, as a client does')
      return []
    }
  }
  await gather('what is missing', next, () => missing().length === 0 || performance.now() > deadline, { withinMs: Infinity })
  return missing()
}
