/**
 * A client that takes a whole window of messages and acknowledges them in any order, with gaps; then the process is killed.
 * What comes again afterwards is what a commit has kept of the gaps.
 */
import assert from 'node:assert/strict'
import { createDatabase, createState } from '../services/postgres.ts'
import { Random } from './random.ts'
import { Service, TOKEN } from './service.ts'
import { HttpSinkClient, Passing } from './sink-client.ts'
import { until } from '../waiting.ts'

const WINDOW = 10_000
const BATCH = 1_000
/** ids of one ack call */
const ACKED_AT_ONCE = 100
const CALLS_AT_ONCE = 8
/** while the window is taken: what lapses meanwhile would come twice */
const TAKING_ACK_WAIT_MS = 120_000
/** before the process is killed: what was with the client comes again after it */
const ACK_WAIT_MS = 1_000

/** Which of the messages are acknowledged, by their place in the window. */
export const PATTERNS = {
  'half of them, by chance': (_place: number, random: Random) => random.chance(0.5),
  'every second one': (place: number) => place % 2 === 1,
  'all but a few': (_place: number, random: Random) => !random.chance(0.01),
} as const satisfies Record<string, (place: number, random: Random) => boolean>
export type Pattern = keyof typeof PATTERNS

export type Outcome = Readonly<{ unacked: number; redelivered: number }>

/** @returns how many were left, and how many came again. @throws AssertionError one came again whose ack was answered */
export async function killAfterGaps(pattern: Pattern, env: Readonly<Record<string, string>> = {}): Promise<Outcome> {
  const random = new Random(5)
  await using source = await createDatabase('create table row (id int primary key)')
  await using state = await createState()
  await using service = await Service.prepare({
    source: source.connection,
    stateUrl: state.url,
    sinks: [{ name: 'rows', tables: ['public.row'], partitions: 1, ack_wait_ms: TAKING_ACK_WAIT_MS, max_ack_pending: WINDOW }],
    env,
  })
  await using client = new HttpSinkClient({ origin: service.origin, sink: 'rows', token: TOKEN })
  await service.startReady()
  await source.query(`insert into row select generate_series(1, ${WINDOW})`)
  const taken = await receive(client, WINDOW)
  const acked = taken.filter((_, place) => PATTERNS[pattern](place, random))
  await ackInAnyOrder(client, acked, random)
  service.forgetConfigFile()
  assert.equal((await service.patch('/api/sinks/rows', { ack_wait_ms: ACK_WAIT_MS })).status, 200)
  await service.kill()
  await service.startReady()
  const ended = new Set(acked)
  const unacked = new Set(taken.filter((id) => !ended.has(id)))
  const again = await receive(client, unacked.size)
  again.push(...(await client.receive({ batchSize: BATCH, waitMs: 500 })).map(({ ackId }) => ackId))
  const wrong = again.filter((id) => !unacked.has(id))
  assert.deepEqual(wrong.slice(0, 10), [], `${wrong.length} came again although their ack was answered, or came twice`)
  return { unacked: unacked.size, redelivered: new Set(again).size }
}

/** So many different messages, none of them acknowledged. */
async function receive(client: HttpSinkClient, count: number): Promise<string[]> {
  const ids = new Set<string>()
  const haveCome = async () => {
    try {
      for (const { ackId } of await client.receive({ batchSize: BATCH, waitMs: 1_000 })) ids.add(ackId)
    } catch (error) {
      if (!(error instanceof Passing)) throw error
    }
    return ids.size >= count
  }
  if (count > 0) await until(() => `${count} messages, of which ${ids.size} came`, haveCome)
  return [...ids]
}

async function ackInAnyOrder(client: HttpSinkClient, ids: readonly string[], random: Random): Promise<void> {
  const shuffled = ids.map((id) => ({ id, at: random.next() })).sort((a, b) => a.at - b.at)
  const calls = Array.from({ length: Math.ceil(shuffled.length / ACKED_AT_ONCE) }, (_, n) =>
    shuffled.slice(n * ACKED_AT_ONCE, (n + 1) * ACKED_AT_ONCE).map(({ id }) => id),
  )
  const caller = async () => {
    for (let call = calls.pop(); call; call = calls.pop()) await client.ack(call)
  }
  await Promise.all(Array.from({ length: CALLS_AT_ONCE }, caller))
}
