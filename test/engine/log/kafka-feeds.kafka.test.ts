/** Many readers of one partition in one process: what is fetched for them, and that each gets everything, at its own pace. */
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { test } from 'node:test'
import type { OwnedPartition } from '../../../actors/partition/owned-partition.ts'
import { PartitionReading } from '../../../actors/partition/partition-reading.ts'
import { AckPending } from '../../../engine/dispatch/ack-pending.ts'
import { refsOf } from '../../../engine/dispatch/batch.ts'
import { commitPoint, committed } from '../../../engine/dispatch/commits.ts'
import { hasRoom, newDispatcher } from '../../../engine/dispatch/dispatcher.ts'
import { finish } from '../../../engine/dispatch/ends.ts'
import { take } from '../../../engine/dispatch/take.ts'
import type { Log } from '../../../engine/log/log.ts'
import { at, lsnsOf, pack, SOURCE, started, TOPIC } from './conformance.ts'
import { Connections, kafkaHome } from './kafka-home.ts'
import { until } from '../../waiting.ts'

const BODY_BYTES = 50_000
const RECORDS = 200
const upTo = (count: number, from = 1) => Array.from({ length: count }, (_, i) => from + i)

/** Of random bytes, so that they don't get smaller on their way. */
async function write(log: Log, from: number, count: number): Promise<void> {
  for (const lsn of upTo(count, from))
    await log.append([{ topic: TOPIC, partition: 0, pack: pack(lsn, lsn, randomBytes(BODY_BYTES)) }], { source: SOURCE, position: at(lsn) })
}

/** Reads as far as it is let. */
class Reader {
  readonly lsns: number[] = []
  readonly packs: Buffer[] = []
  readonly #abort = new AbortController()
  readonly #done: Promise<void>
  #until = Infinity
  #go = Promise.withResolvers<void>()

  constructor(log: Log, { from = 0, until = Infinity } = {}) {
    this.#until = until
    this.#done = this.#run(log, from)
  }

  /** Does not stop any more. */
  goesOn(): void {
    this.#until = Infinity
    this.#go.resolve()
  }

  /** Reads on until it has so many. */
  async has(count: number): Promise<this> {
    this.#until = Math.max(this.#until, count)
    this.#go.resolve()
    const isRead = until(
      () => `${count} records, of which ${this.lsns.length} were read`,
      () => this.lsns.length >= count,
    )
    await Promise.race([isRead, this.#done])
    return this
  }

  async stop(): Promise<void> {
    this.#abort.abort()
    this.#go.resolve()
    await this.#done
  }

  async #run(log: Log, from: number): Promise<void> {
    for await (const record of log.read(TOPIC, 0, from, this.#abort.signal)) {
      this.lsns.push(...lsnsOf([record]))
      this.packs.push(record.pack)
      while (this.lsns.length >= this.#until && !this.#abort.signal.aborted) {
        this.#go = Promise.withResolvers()
        await this.#go.promise
      }
    }
  }
}

test('what many readers of a partition get is fetched once for all of them, in one buffer', async () => {
  using received = new Connections()
  await using home = await kafkaHome()
  await using log = await started(home)
  await write(log, 1, 20)
  const readers = Array.from({ length: 10 }, () => new Reader(log))
  await Promise.all(readers.map((reader) => reader.has(20)))
  await write(log, 21, RECORDS)
  await Promise.all(readers.map((reader) => reader.has(20 + RECORDS)))
  const { bytes } = await log.stats(TOPIC, 0)
  assert.ok(received.bytes <= bytes * 1.2, `${received.bytes} bytes received, ${bytes} written`)
  for (const { lsns, packs } of readers) {
    assert.deepEqual(lsns, upTo(20 + RECORDS))
    assert.ok(packs.every((one, i) => one === readers[0]?.packs[i]))
  }
  await Promise.all(readers.map((reader) => reader.stop()))
})

test('a reader that stands still holds up nobody, keeps no memory, and goes on where it stood; those who come later catch up', async () => {
  using received = new Connections()
  await using home = await kafkaHome()
  await using log = await home.open({ readBytes: 2 * 1024 * 1024 })
  await log.createTopic(TOPIC, 1)
  await log.beginRun(SOURCE)
  const slow = new Reader(log, { until: 3 })
  const readers = Array.from({ length: 5 }, () => new Reader(log))
  await write(log, 1, RECORDS)
  await Promise.all(readers.map((reader) => reader.has(RECORDS)))
  assert.equal(slow.lsns.length, 3)
  const late = [new Reader(log), new Reader(log, { from: 50 })]
  await Promise.all([...late, slow].map((reader) => reader.has(RECORDS - 50)))
  const all = [...readers, ...late, slow]
  const more = async (from: number, count: number) => {
    const has = from + count - 1
    await Promise.all([write(log, from, count), ...all.map((reader) => reader.has(reader === late[1] ? has - 50 : has))])
  }
  await more(RECORDS + 1, 1)
  slow.goesOn()
  const [receivedBefore, { bytes: writtenBefore }] = [received.bytes, await log.stats(TOPIC, 0)]
  await more(RECORDS + 2, 100)
  const [fetched, written] = [received.bytes - receivedBefore, (await log.stats(TOPIC, 0)).bytes - writtenBefore]
  assert.ok(fetched <= written * 1.2, `${fetched} bytes received, ${written} written`)
  for (const { lsns } of [...readers, slow, late[0] as Reader]) assert.deepEqual(lsns, upTo(RECORDS + 101))
  assert.deepEqual(late[1]?.lsns, upTo(RECORDS + 51, 51))
  await Promise.all(all.map((reader) => reader.stop()))
})

test('a sink whose client asks now and then leaves the log at most once: what was fetched for it is not fetched again at each answer', async () => {
  using received = new Connections()
  await using home = await kafkaHome()
  await using log = await started(home)
  for (let from = 1; from <= 2 * RECORDS; from += 20) {
    const records = upTo(20, from).map((lsn) => ({ topic: TOPIC, partition: 0, pack: pack(lsn, lsn, randomBytes(BODY_BYTES)) }))
    await log.append(records, { source: SOURCE, position: at(from + 19) })
  }
  let now = 0
  const dispatcher = newDispatcher({
    ...{ generation: 1, partition: 0, grouping: true, keyed: false, pending: new AckPending(10_000), clock: () => now },
    settings: { ackWaitMs: 30_000, maxDeliveries: null, windowBytes: 128 * 1024 * 1024 },
    restore: { commit: undefined, head: 0, parkedRefs: { offsets: [], indexes: [] }, parkedGroups: [] },
  })
  const commit = () => committed(dispatcher, commitPoint(dispatcher, 1))
  commit()
  const generations = { span: async () => ({ endsAt: undefined, takes: [], version: 1 }) }
  const owned = {
    ...{ dispatcher, key: { partition: 0 }, served: { topic: TOPIC, reader: 'another', shape: {} } },
    ...{ trimming: { read: () => undefined }, commits: { passed: () => undefined }, changed: () => undefined },
    sink: {
      ...{ surroundings: { log, generations }, transport: { sends: false }, stage: { isFiltering: false }, deliverable: () => undefined },
    },
  }
  const reading = new PartitionReading(owned as unknown as OwnedPartition)
  const end = new AbortController()
  const running = reading.run(end.signal)
  const hasReadAhead = () => until('it has read ahead', async () => !hasRoom(dispatcher))
  await hasReadAhead()
  for (let taken = 0; taken < RECORDS; now += 15_000) {
    const { messages } = take(dispatcher, 20, { max: Infinity, overhead: 0, first: true }) ?? assert.fail('there is more')
    taken += messages.length
    finish(dispatcher, refsOf(messages))
    commit()
    reading.room.ring()
    await hasReadAhead()
  }
  const { bytes } = await log.stats(TOPIC, 0)
  assert.ok(received.bytes < bytes * 1.25, `${received.bytes} bytes received, ${bytes} written`)
  end.abort()
  await running
})
