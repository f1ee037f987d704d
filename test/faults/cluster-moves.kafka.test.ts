/**
 * How long a cluster of processes on Kafka takes to close ranks, measured from outside with the settings as they come: when
 * the process that streams is killed, when one is added, and when one is stopped. What a client has in hand meanwhile is
 * answered, or answered with "try again".
 */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { CalmClock, msBetween, type Moment } from '../services/calm-clock.ts'
import { kafkaBrokers } from '../services/kafka.ts'
import { createDatabase, createState } from '../services/postgres.ts'
import { holdings } from './cluster-faults.ts'
import { Pulse, PULSE_TABLE } from './pulse.ts'
import { Service } from './service.ts'
import { LONG } from './size.ts'
import { until } from '../waiting.ts'

const PARTITIONS = 6
/** What is promised: with margin where a busy machine runs other tests beside. */
const STREAMS_WITHIN_MS = 5_000
const SERVED_WITHIN_MS = 10_000
const STOPPED_WITHIN_MS = LONG ? 2_000 : 5_000
const PAUSED_AT_MOST_MS = 5_000
const GIVE_UP_MS = 90_000
/** What was out when a process was killed comes again after this, and the test ends. */
const ACK_WAIT_MS = 5_000
const ROUNDS = LONG ? 8 : 1

test('a killed process is missed in time, one that is added or stopped is hardly noticed, and every ack is answered', async (context) => {
  await using source = await createDatabase(PULSE_TABLE)
  await using state = await createState()
  await using stack = new AsyncDisposableStack()
  using clock = new CalmClock()
  const nodes: Service[] = []
  for (let n = 0; n < 3; n++)
    nodes.push(
      stack.use(
        await Service.prepare({
          source: source.connection,
          stateUrl: state.url,
          sinks: [{ name: 'pulse', tables: ['public.pulse'], partitions: PARTITIONS, ack_wait_ms: ACK_WAIT_MS }],
          env: {
            KAFKA_BROKERS: (await kafkaBrokers()).join(','),
            KAFKA_TOPIC_PREFIX: `moves${process.pid}.`,
            VAULT_KEY: Buffer.alloc(32, 7).toString('base64'),
          },
        }),
      ),
    )
  for (const node of nodes) await node.startReady()
  await using pulse = new Pulse({ nodes, source, sink: 'pulse' })
  pulse.start()
  const kills: { from: Moment; to: Moment }[] = []
  for (let round = 0; round < ROUNDS; round++) {
    await spread(nodes, clock)
    const figures: Record<string, number> = {}

    const streaming = async () => (await holdings(nodes)).find((one) => one.source)
    const { service: holder } = await until('a process streams', streaming, { clock })
    const letAck = await pulse.inHand(PARTITIONS, GIVE_UP_MS) // so that some acks meet the move
    let at = pulse.now()
    await holder.kill()
    letAck()
    figures.streamsAfter = await pulse.firstAfter(at, GIVE_UP_MS)
    figures.servedAfter = await pulse.allAfter(at, PARTITIONS, GIVE_UP_MS)
    kills.push({ from: at, to: pulse.now() })

    at = pulse.now()
    await holder.startReady()
    await spread(nodes, clock)
    await pulse.allAfter(pulse.now(), PARTITIONS, GIVE_UP_MS)
    figures.addedPause = pulse.longestWait(at, pulse.now())

    at = pulse.now()
    await holder.stop()
    figures.stoppedAfter = msBetween(at, pulse.now())
    await pulse.allAfter(pulse.now(), PARTITIONS, GIVE_UP_MS)
    figures.stoppedPause = pulse.longestWait(at, pulse.now())

    context.diagnostic(JSON.stringify(figures))
    assert.ok(figures.streamsAfter <= STREAMS_WITHIN_MS, `another process streams after ${figures.streamsAfter} ms`)
    assert.ok(figures.servedAfter <= SERVED_WITHIN_MS, `the partitions are served after ${figures.servedAfter} ms`)
    assert.ok(figures.addedPause <= PAUSED_AT_MOST_MS, `a row waited ${figures.addedPause} ms while a process was added`)
    assert.ok(figures.stoppedAfter <= STOPPED_WITHIN_MS, holder.failure(`SIGTERM took ${figures.stoppedAfter} ms`).message)
    assert.ok(figures.stoppedPause <= PAUSED_AT_MOST_MS, `a row waited ${figures.stoppedPause} ms while a process was stopped`)
    await holder.startReady()
  }
  await pulse.finish(GIVE_UP_MS)
  for (const { from, to } of kills)
    context.diagnostic(`rows by the time they waited after a kill: ${JSON.stringify(pulse.waits(from, to))}`)
  context.diagnostic(`${pulse.rows} rows, ${pulse.putOff} acks were put off, the longest took ${pulse.longestAckMs} ms`)
  assert.ok(pulse.putOff > 0, 'no ack met a move: nothing was tested of them')
})

/** Settles when each process serves its share of the partitions. */
const spread = (nodes: readonly Service[], clock: CalmClock): Promise<boolean> =>
  until(
    'the partitions are spread',
    async () => (await holdings(nodes)).filter((one) => one.partitions === PARTITIONS / nodes.length).length === nodes.length,
    { clock },
  )
