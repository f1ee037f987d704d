/**
 * How long a cluster of processes on Kafka takes to close ranks, measured from outside with the settings as they come: when
 * the process that streams is killed, when one is added, and when one is stopped. What a client has in hand meanwhile is
 * answered, or answered with "try again".
 */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { kafkaBrokers } from '../services/kafka.ts'
import { createDatabase } from '../services/postgres.ts'
import { holdings, until } from './cluster-faults.ts'
import { now } from './consumer.ts'
import { Pulse, PULSE_TABLE } from './pulse.ts'
import { Service } from './service.ts'
import { LONG } from './size.ts'

const PARTITIONS = 6
/** What is promised, and what is waited for before the figure is judged. */
const STREAMS_WITHIN_MS = 5_000
const SERVED_WITHIN_MS = 10_000
const STOPPED_WITHIN_MS = 2_000
const PAUSED_AT_MOST_MS = 3_000
const GIVE_UP_MS = 40_000
const ROUNDS = LONG ? 8 : 1

test('a killed process is missed in time, one that is added or stopped is hardly noticed, and every ack is answered', async (context) => {
  await using source = await createDatabase(PULSE_TABLE)
  await using state = await createDatabase()
  await using stack = new AsyncDisposableStack()
  const nodes: Service[] = []
  for (let n = 0; n < 3; n++)
    nodes.push(
      stack.use(
        await Service.prepare({
          source: source.connection,
          stateUrl: state.url,
          sinks: [{ name: 'pulse', tables: ['public.pulse'], partitions: PARTITIONS }],
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
  for (let round = 0; round < ROUNDS; round++) {
    await spread(nodes)
    const figures: Record<string, number> = {}

    const holder = (await holdings(nodes)).find((one) => one.source)!.service
    let at = now()
    await holder.kill()
    figures.streamsAfter = await pulse.firstAfter(at, GIVE_UP_MS)
    figures.servedAfter = await pulse.allAfter(at, PARTITIONS, GIVE_UP_MS)

    at = now()
    await holder.startReady()
    await spread(nodes)
    await pulse.allAfter(now(), PARTITIONS, GIVE_UP_MS)
    figures.addedPause = pulse.longestWait(at, now())

    at = now()
    await holder.stop()
    figures.stoppedAfter = Math.round(now() - at)
    await pulse.allAfter(now(), PARTITIONS, GIVE_UP_MS)
    figures.stoppedPause = pulse.longestWait(at, now())
    await holder.startReady()

    context.diagnostic(JSON.stringify(figures))
    assert.ok(figures.streamsAfter <= STREAMS_WITHIN_MS, `another process streams after ${figures.streamsAfter} ms`)
    assert.ok(figures.servedAfter <= SERVED_WITHIN_MS, `the partitions are served after ${figures.servedAfter} ms`)
    assert.ok(figures.addedPause <= PAUSED_AT_MOST_MS, `a row waited ${figures.addedPause} ms while a process was added`)
    assert.ok(figures.stoppedAfter <= STOPPED_WITHIN_MS, `SIGTERM took ${figures.stoppedAfter} ms`)
    assert.ok(figures.stoppedPause <= PAUSED_AT_MOST_MS, `a row waited ${figures.stoppedPause} ms while a process was stopped`)
  }
  await pulse.finish(GIVE_UP_MS)
  context.diagnostic(`${pulse.rows} rows, ${pulse.putOff} acks were put off, the longest took ${pulse.longestAckMs} ms`)
  assert.ok(pulse.putOff > 0, 'no ack met a move: nothing was tested of them')
})

/** Settles when each process serves its share of the partitions. */
const spread = (nodes: readonly Service[]): Promise<void> =>
  until(
    'the partitions are spread',
    async () => (await holdings(nodes)).filter((one) => one.partitions === PARTITIONS / nodes.length).length === nodes.length,
  )
