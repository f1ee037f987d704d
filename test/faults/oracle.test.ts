/** The oracle is believed because it was seen to catch: each thing a service can do wrong, done by a fake one. */
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { withMoreTime } from '../services/more-time.ts'
import { Consumer } from './consumer.ts'
import { FakeSink, FAULTS, type Fault } from './fake-sink.ts'
import type { Json, Row } from './json.ts'
import type { Change, Transaction } from './journal.ts'
import { Oracle } from './oracle.ts'
import { Random } from './random.ts'
import { judge, type TableContent } from './verdict.ts'

/** Longer than a busy machine keeps a client waiting, or else one of the next: what is with a client and comes again is seen as too early. */
const ACK_WAITS_MS = [600, 3_000, 15_000] as const

describe('the oracle', { concurrency: true }, () => {
  for (const fault of Object.keys(FAULTS) as Fault[]) {
    const title = fault === 'none' ? 'finds nothing wrong with a sink that keeps its promises' : `catches it when ${FAULTS[fault]}`
    test(title, async () => {
      if (fault === 'none') assert.deepEqual(await observe(fault, ACK_WAITS_MS[0]), [])
      else
        await withMoreTime(ACK_WAITS_MS, async (ackWaitMs) =>
          assert.notDeepEqual(await observe(fault, ackWaitMs), [], `nobody noticed that ${FAULTS[fault]}`),
        )
    })
  }
})

async function observe(fault: Fault, ackWaitMs: number): Promise<string[]> {
  const idleMs = Math.max(5_000, ackWaitMs * 2)
  const random = new Random(7)
  const { transactions, tables } = history(random, 60)
  const sink = new FakeSink({ transactions, ackWaitMs, fault, random: random.fork() })
  const oracle = new Oracle({ ackWaitMs })
  const consumers = [1, 2, 3].map((n) => new Consumer({ name: `client ${n}`, client: sink, oracle, random: random.fork(), ackWaitMs }))
  const stop = new AbortController()
  const running = consumers.map((consumer) => consumer.run(stop.signal))
  const total = transactions.reduce((sum, transaction) => sum + transaction.changes.length, 0)
  await oracle.untilAcked(() => total / 3, idleMs)
  await sink.crash()
  await oracle.untilAcked(() => total / 2, idleMs)
  await sink.crash()
  for (const consumer of consumers) consumer.settleDown()
  const outcome = await oracle.untilAcked(() => total - oracle.unanswered.length, idleMs).catch((error: Error) => error.message)
  stop.abort()
  await Promise.all(running)
  return [...oracle.violations, ...judge(oracle.messages, transactions, tables), ...(outcome === undefined ? [] : [outcome])]
}

/** Transactions over two tables made up in memory. */
function history(random: Random, count: number): { transactions: Transaction[]; tables: TableContent[] } {
  const rows = new Map<number, Row>()
  const transactions: Transaction[] = []
  let stamp = 0
  for (let n = 1; n <= count; n++) {
    const annotations: Json = random.chance(0.3) ? { n } : null
    const changes: Change[] = []
    const enter = (change: Omit<Change, 'table' | 'idx' | 'annotations'>) =>
      changes.push({ ...change, table: 'doc', idx: changes.length, annotations })
    for (let left = random.int(2, 8); left > 0; left--) {
      const id = random.int(1, 12)
      const key = [String(id)]
      const before = rows.get(id)
      stamp++
      if (!before) {
        rows.set(id, { id, stamp, body: random.text(8) })
        enter({ action: 'insert', key, record: rows.get(id)!, changes: null, unchanged: [] })
      } else if (random.chance(0.2)) {
        rows.delete(id)
        enter({ action: 'delete', key, record: before, changes: null, unchanged: [] })
      } else {
        const left = random.chance(0.5)
        rows.set(id, { id, stamp, body: left ? before['body']! : random.text(8) })
        enter({ action: 'update', key, record: rows.get(id)!, changes: {}, unchanged: left ? ['body'] : [] })
      }
    }
    transactions.push({ name: `transaction ${n}`, after: BigInt(n * 1_000), before: BigInt(n * 1_000 + 1), changes })
  }
  const content = [...rows].map(([id, row]) => ({ key: [String(id)], row }))
  return { transactions, tables: [{ table: 'doc', keyColumns: ['id'], rows: content }] }
}
