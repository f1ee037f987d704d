/**
 * Webhooks to a receiver on this machine. In batches of 100 the same drain as every system's, its ratio to the raw limit. One
 * message a request: what is in the log already is sent, its ratio to a loop that posts such bodies over as many connections
 * and does nothing else.
 */
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import { Client } from 'pg'
import { coresApart, keepApart } from '../cores.ts'
import type { Bench } from '../postgres.ts'
import { freePort } from '../free-port.ts'
import { UsageMeter, type Processes } from '../process-usage.ts'
import { Reader } from '../reader.ts'
import { spread, type Spread } from '../statistics.ts'
import { raw } from '../systems/raw.ts'
import { tailraceOf } from '../systems/tailrace.ts'
import type { LoopTask } from '../systems/undici-loop.ts'
import type { ReceiverTask } from '../systems/webhook-receiver.ts'
import { workloadTask } from '../workload.ts'
import { drain, dropSlot, type Drain, type Range } from './drain.ts'

export type Webhook = Readonly<{ batch: Spread; single: Spread; turns: readonly Turn[] }>
type Turn = Readonly<{ raw: Drain; batch: Drain; single: Sending; loop: Sending }>
/** Of the CPU: µs for each message, of who sends and of the receiver. */
type Sending = Readonly<{ perSecond: number; senderCpu: number; receiverCpu: number }>

/** As many as a webhook sink has when nothing is said. */
const CONNECTIONS = 10
const LOOK_EVERY_MS = 50
/** Requests that don't count, of the sink and of the loop: until then much of their code is not compiled. */
const WARM_UP = 10_000
const CORES = coresApart()
const batched = tailraceOf('Tailrace to a webhook, batches of 100', { partitions: 1, processes: 1, webhook: { batchSize: 100 } })
const single = tailraceOf('Tailrace to a webhook, one by one', {
  partitions: 1,
  processes: 1,
  webhook: { batchSize: 1, isHeld: true, warmUp: WARM_UP },
})

/** @param range `singles` of its changes are sent one by one */
export async function webhook(
  bench: Bench,
  { singles, pairs, ...range }: Range & Readonly<{ singles: number; pairs: number }>,
  say: (text: string) => void,
): Promise<Webhook> {
  if (!CORES) say('one by one: sender and receiver share their cores here, so rates differ more from run to run')
  const turns: Turn[] = []
  for (let pair = 1; pair <= pairs; pair++) {
    const turn: Turn = {
      raw: await drain(bench, raw, range),
      batch: await drain(bench, batched, range),
      single: await sendLog(bench, { ...range, changes: singles }),
      loop: await loop(singles),
    }
    turns.push(turn)
    const rate = (perSecond: number) => `${Math.round(perSecond)}/s`
    const { batch, single: one, loop: tight } = turn
    const told = ({ perSecond, senderCpu, receiverCpu }: Sending) =>
      `${rate(perSecond)} (${senderCpu.toFixed(1)} + ${receiverCpu.toFixed(1)} µs)`
    say(
      `${pair}/${pairs}  raw ${rate(turn.raw.changesPerSecond)}  batches of 100 ${rate(batch.changesPerSecond)}  one by one ${told(one)}  loop ${told(tight)}`,
    )
  }
  return {
    batch: spread(turns.map((turn) => turn.batch.changesPerSecond / turn.raw.changesPerSecond)),
    single: spread(turns.map((turn) => turn.single.perSecond / turn.loop.perSecond)),
    turns,
  }
}

/** Sends what the log holds. */
async function sendLog(bench: Bench, { slot, changes, profileFolder }: Range): Promise<Sending> {
  const copy = `${slot}_copy`
  const client = new Client(bench.database)
  await client.connect()
  try {
    await client.query('select pg_copy_logical_replication_slot($1, $2)', [slot, copy])
    const { database } = bench
    const task = workloadTask({ database, slot: copy, changes })
    try {
      await using running = await single.start({ ...task, ...(profileFolder !== undefined && { profileFolder }) })
      await untilConfirmed(client, copy)
      const { service, client: receiver } = running.processes
      keepApart(CORES, { sender: service?.() ?? [], receiver: receiver?.() ?? [] })
      await running.begin?.()
      return await sending(running, changes - WARM_UP, running.processes)
    } finally {
      await dropSlot(client, copy)
    }
  } finally {
    await client.end()
  }
}

/** Settles when everything written until now is in the log of whoever reads the slot. */
async function untilConfirmed(client: Client, slot: string): Promise<void> {
  const { rows: now } = await client.query<{ lsn: string }>('select pg_current_wal_insert_lsn()::text as lsn')
  for (;;) {
    const { rows } = await client.query<{ done: boolean }>(
      'select confirmed_flush_lsn >= $2::pg_lsn as done from pg_replication_slots where slot_name = $1',
      [slot, now[0]?.lsn],
    )
    if (rows[0]?.done === true) return
    await setTimeout(LOOK_EVERY_MS)
  }
}

async function loop(changes: number): Promise<Sending> {
  const port = await freePort()
  const receiverTask: ReceiverTask = { port, changes }
  await using receiver = new Reader(join(import.meta.dirname, '..', 'systems', 'webhook-receiver.ts'), receiverTask)
  const requests = changes - WARM_UP
  const loopTask: LoopTask = { origin: `http://127.0.0.1:${port}`, connections: CONNECTIONS, requests, warmUp: WARM_UP }
  await using looping = new Reader(join(import.meta.dirname, '..', 'systems', 'undici-loop.ts'), loopTask)
  keepApart(CORES, { sender: [looping.pid], receiver: [receiver.pid] })
  return await sending(looping, requests, { service: () => [looping.pid], client: () => [receiver.pid] })
}

async function sending(
  { warm, reached }: Readonly<{ warm?: Promise<number>; reached: Promise<number> }>,
  messages: number,
  processes: Processes,
): Promise<Sending> {
  const startedAt = (await Promise.race([warm, reached])) ?? Number.NaN
  using meter = new UsageMeter(processes)
  const seconds = ((await reached) - startedAt) / 1000
  const { service, client } = meter.read()
  const each = (cpuSeconds = 0) => (cpuSeconds * 1e6) / messages
  return { perSecond: messages / seconds, senderCpu: each(service?.cpuSeconds), receiverCpu: each(client?.cpuSeconds) }
}
