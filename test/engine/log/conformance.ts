/** What every home of the log promises: the same tests for each (embedded.test.ts, kafka.kafka.test.ts). */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { readerOf, type Commit, type FinishedRange, type Log, type LogRecord, type Reached } from '../../../engine/log/log.ts'
import { encodeMarker, PackBuilder } from '../../../engine/log/pack-builder.ts'
import { ACTION, Pack, type ActionCode } from '../../../engine/log/pack.ts'
import type { Position } from '../../../engine/position.ts'

/** One log, which may be opened again after it was closed. */
export interface LogHome extends AsyncDisposable {
  open(): Promise<Log>
  /** An append of the source that must fail. */
  failAppend(log: Log, source: string): Promise<void>
}

export const TOPIC = 'sink.1'
export const SOURCE = 'shop'
export const at = (lsn: number, idx = 0): Position => ({ history: 0, lsn: BigInt(lsn), idx, part: 1 })

export const reached = (lsn: number): Reached => ({ position: at(lsn), transaction: { xid: lsn, commitTimeUs: lsn } })

export function pack(
  lsn: number,
  commitTimeUs = lsn,
  body: Buffer = Buffer.from(`message ${lsn}`),
  action: ActionCode = ACTION.insert,
): Buffer {
  const builder = new PackBuilder({ history: 0, term: 1, routing: 1 })
  builder.begin(BigInt(lsn), lsn, commitTimeUs)
  builder.bodies.copy(body)
  builder.add(0, 1, action, 1, 0, lsn, 0, 0)
  return builder.encode()
}

export const append = (log: Log, lsn: number, partition = 0, topic = TOPIC) =>
  log.append([{ topic, partition, pack: pack(lsn) }], { source: SOURCE, ...reached(lsn) })

export async function readSome(log: Log, count: number, from = 0, partition = 0, topic = TOPIC): Promise<LogRecord[]> {
  const abort = new AbortController()
  const records: LogRecord[] = []
  if (count === 0) return records
  for await (const record of log.read(topic, partition, from, abort.signal)) {
    records.push(record)
    if (records.length === count) abort.abort()
  }
  return records
}
export const offsetsOf = (records: readonly LogRecord[]) => records.map(({ offset }) => offset)
export const lsnsOf = (records: readonly LogRecord[]) => records.map(({ pack: bytes }) => Number(Pack.decode(bytes).lsn(0)))
const upTo = (from: number, count: number) => Array.from({ length: count }, (_, i) => from + i)

/** With a topic, and a run begun. */
export async function started(home: LogHome, partitions = 1): Promise<Log> {
  const log = await home.open()
  await log.createTopic(TOPIC, partitions)
  await log.beginRun(SOURCE)
  return log
}

const aCommit = (offset: number, more: Partial<Commit> = {}): Commit => ({
  next: { offset, index: 3 },
  accepted: { history: 2, lsn: 0xffff_fffe_0000_0001n, idx: 70_000, part: 0 },
  finished: [],
  handedOut: { offset: offset + 64, index: 0 },
  term: 1,
  ...more,
})

export function conforms(name: string, home: () => Promise<LogHome>): void {
  test(`${name}: what was appended is read in order, by a reader at the tail and by one from the start after reopening`, async () => {
    await using it = await home()
    {
      await using log = await started(it)
      const reading = readSome(log, 50)
      for (let i = 1; i <= 50; i++) await append(log, i)
      const records = await reading
      assert.deepEqual(offsetsOf(records), upTo(0, 50))
      assert.deepEqual(lsnsOf(records), upTo(1, 50))
    }
    await using log = await it.open()
    assert.deepEqual(lsnsOf(await readSome(log, 40, 10)), upTo(11, 40))
    assert.deepEqual(await log.progress(SOURCE), reached(50))
    assert.deepEqual(await log.topics(), [{ topic: TOPIC, partitions: 1 }])
  })

  test(`${name}: an append over several partitions stands in all of them, and each partition has offsets of its own`, async () => {
    await using it = await home()
    await using log = await started(it, 3)
    const record = (partition: number, lsn: number) => ({ topic: TOPIC, partition, pack: pack(lsn) })
    await log.append([record(0, 1), record(2, 1), record(0, 2)], { source: SOURCE, position: at(2) })
    const nexts = await Promise.all([0, 1, 2].map(async (p) => (await log.stats(TOPIC, p)).next))
    assert.deepEqual(nexts, [2, 0, 1])
    assert.deepEqual(lsnsOf(await readSome(log, 2)), [1, 2])
    assert.deepEqual(lsnsOf(await readSome(log, 1, 0, 2)), [1])
  })

  test(`${name}: packs of any size come back as they were`, async () => {
    await using it = await home()
    await using log = await started(it)
    const bodies = [0, 1, 600, 70_000, 3_000_000].map((length, i) => Buffer.alloc(length, `body ${i} `))
    const records = bodies.map((body, i) => ({ topic: TOPIC, partition: 0, pack: pack(i + 1, i + 1, body) }))
    await log.append(records, { source: SOURCE, position: at(bodies.length) })
    for (const [i, record] of (await readSome(log, bodies.length)).entries()) {
      const { buffer, ...decoded } = bodyOf(record)
      assert.equal(decoded.length, bodies[i]?.length)
      assert.ok(buffer.equals(bodies[i] as Buffer), `body ${i}`)
    }
  })

  test(`${name}: after a failed append nothing more is appended until a new run begins`, async () => {
    await using it = await home()
    await using log = await started(it)
    await append(log, 1)
    await it.failAppend(log, SOURCE)
    await assert.rejects(append(log, 3), { code: 'LOG_APPEND_FAILED' })
    assert.equal((await log.stats(TOPIC, 0)).next, 1)
    await log.beginRun(SOURCE)
    await append(log, 2)
    assert.deepEqual(lsnsOf(await readSome(log, 2)), [1, 2])
    assert.deepEqual(await log.progress(SOURCE), reached(2))
  })

  test(`${name}: how far a source is can be forgotten, for good, and how often it was appended to can not`, async () => {
    await using it = await home()
    let appends: number
    {
      await using log = await started(it)
      await append(log, 1)
      appends = log.appendCount(SOURCE)
      await log.forgetProgress(SOURCE)
      await log.beginRun(SOURCE)
      assert.equal(await log.progress(SOURCE), undefined)
    }
    await using log = await it.open()
    assert.deepEqual([await log.progress(SOURCE), log.appendCount(SOURCE)], [undefined, appends])
    await log.beginRun(SOURCE)
    await append(log, 1)
    assert.deepEqual(await log.progress(SOURCE), reached(1))
    assert.deepEqual(lsnsOf(await readSome(log, 2)), [1, 1])
  })

  test(`${name}: a commit is found again, whole, also after reopening, and each partition has its own`, async () => {
    await using it = await home()
    const finished: FinishedRange[] = [
      { from: { offset: 7, index: 5 }, to: { offset: 7, index: 9 } },
      { from: { offset: 7, index: 11 }, to: { offset: 9, index: 0 } },
      { from: { offset: 12, index: 300 }, to: { offset: 12, index: 301 } },
    ]
    const first = aCommit(7, { finished })
    const clean = aCommit(8, {
      term: 2,
      inFlight: [
        { message: { offset: 8, index: 4 }, invisibleForMs: 30_000 },
        { message: { offset: 3, index: 1 }, invisibleForMs: 0, origin: { generation: 1, partition: 2 } },
      ],
    })
    {
      await using log = await started(it, 2)
      for (let i = 1; i <= 20; i++) await append(log, i)
      for (let i = 1; i <= 20; i++) await append(log, i, 1)
      assert.equal(await log.committed(TOPIC, 0), undefined)
      await log.commit(TOPIC, 0, first)
      await log.commit(TOPIC, 1, aCommit(1))
      assert.deepEqual(await log.committed(TOPIC, 0), first)
      await log.commit(TOPIC, 0, clean)
    }
    await using log = await it.open()
    assert.deepEqual(await log.committed(TOPIC, 0), clean)
    assert.deepEqual(await log.committed(TOPIC, 1), aCommit(1))
  })

  test(`${name}: each reader of a topic has its own commits and its own backlog, and goes without touching those of others`, async () => {
    await using it = await home()
    const [one, two] = [readerOf(TOPIC, 'one.1'), readerOf(TOPIC, 'two.1')]
    const finished = async (log: Log, reader: string, from = 0) => {
      const { bytes, finishedBytes } = await log.stats(reader, 0, 0, from)
      return `${Math.round((finishedBytes * 40) / all)} of ${Math.round((bytes * 40) / all)}`
    }
    let all = 0
    {
      await using log = await started(it)
      for (let i = 1; i <= 40; i++) await append(log, i)
      all = (await log.stats(one, 0)).bytes
      await readSome(log, 40)
      await log.commit(one, 0, aCommit(10))
      await log.commit(two, 0, aCommit(30))
      assert.deepEqual((await log.committed(one, 0))?.next.offset, 10)
      assert.deepEqual((await log.committed(two, 0))?.next.offset, 30)
      assert.equal(await finished(log, one), '10 of 40')
      assert.equal(await finished(log, two), '30 of 40')
      assert.equal(await finished(log, two, 25), '5 of 15', 'what lies below is kept for the other')
      const served = Promise.withResolvers<number>()
      await using _ = await log.subscribe(one, { assigned: served.resolve, revoked: () => undefined })
      assert.equal(await served.promise, 0)
      assert.ok(log.holds(one))
      await log.deleteReader(two)
    }
    await using log = await it.open()
    assert.equal(await log.committed(two, 0), undefined)
    assert.deepEqual((await log.committed(one, 0))?.next.offset, 10)
    await log.deleteTopic(TOPIC)
    await log.createTopic(TOPIC, 1)
    assert.equal(await log.committed(one, 0), undefined)
  })

  test(`${name}: streams, and whoever has committed anywhere, are listed by what the log alone knows`, async () => {
    await using it = await home()
    const stream = 'stream.7.0123abcd'
    const [one, two, joined] = [readerOf(stream, 'one.1'), readerOf(stream, 'two.4'), readerOf(stream, 'three.1')]
    {
      await using log = await started(it)
      await log.createTopic(stream, 2)
      assert.deepEqual(await log.readers(), [])
      await log.commit(one, 0, aCommit(0))
      await log.commit(two, 0, aCommit(0))
      await log.commit(two, 1, aCommit(0))
      await log.commit(TOPIC, 0, aCommit(0))
      await log.join(joined, 1, { ...aCommit(0), term: 0 })
      await log.join(two, 1, { ...aCommit(0), handedOut: { offset: 0, index: 7 }, term: 0 })
    }
    await using log = await it.open()
    assert.deepEqual(await log.committed(joined, 1), { ...aCommit(0), term: 0 })
    assert.deepEqual(await log.committed(two, 1), aCommit(0), 'it has said itself where it is')
    await log.deleteReader(joined)
    const topics = (await log.topics()).map(({ topic }) => topic)
    assert.deepEqual(topics.sort(), [TOPIC, stream])
    assert.deepEqual([...(await log.readers())].sort(), [TOPIC, one, two])
    await log.deleteReader(one)
    assert.deepEqual([...(await log.readers())].sort(), [TOPIC, two])
    await log.deleteTopic(stream)
    assert.deepEqual(await log.readers(), [TOPIC])
  })

  test(`${name}: whoever joins begins where it was said first, also when a process that is late says it again`, async () => {
    await using it = await home()
    const reader = readerOf(TOPIC, 'three.1')
    const from = (offset: number) => ({ ...aCommit(offset), term: 0 })
    {
      await using log = await started(it)
      await log.join(reader, 0, from(0))
      for (let i = 1; i <= 5; i++) await append(log, i)
    }
    {
      await using late = await it.open()
      await late.join(reader, 0, from(5))
    }
    await using log = await it.open()
    assert.deepEqual(await log.committed(reader, 0), from(0))
  })

  test(`${name}: finished messages all over the window are remembered, as many as the dispatcher allows`, async () => {
    await using it = await home()
    await using log = await started(it)
    for (let i = 1; i <= 9; i++) await append(log, i)
    const step = () => 1 + Math.floor(Math.random() * 5)
    const finished: FinishedRange[] = []
    for (let n = 0, offset = 3, index = 0; n < 4_000; n++) {
      if (index > 200) [offset, index] = [offset + step(), 0]
      const from = { offset, index: (index += step()) }
      finished.push({ from, to: { offset, index: (index += step()) } })
    }
    const commit = aCommit(3, { next: { offset: 3, index: 0 }, finished })
    await log.commit(TOPIC, 0, commit)
    assert.deepEqual(await log.committed(TOPIC, 0), commit)
  })

  test(`${name}: a trim frees what lies below it, and readers go on at the first record kept`, async () => {
    await using it = await home()
    await using log = await started(it)
    for (let i = 1; i <= 20; i++) await append(log, i)
    const { bytes } = await log.stats(TOPIC, 0)
    assert.ok(bytes > 20 * 80, `${bytes} bytes`)
    await log.trim(TOPIC, 0, 15)
    assert.deepEqual(offsetsOf(await readSome(log, 5)), [15, 16, 17, 18, 19])
    const stats = await log.stats(TOPIC, 0)
    assert.deepEqual({ ...stats, bytes: 0 }, { first: 15, next: 20, bytes: 0, finishedBytes: 0, committed: 0 })
    assert.ok(Math.abs(stats.bytes - bytes / 4) < bytes / 100, `${stats.bytes} of ${bytes} bytes`)
  })

  test(`${name}: what lies below the committed offset is weighed apart, as commits go forth and back, trims follow, and after reopening`, async () => {
    await using it = await home()
    const share = async (log: Log) => {
      const { bytes, finishedBytes } = await log.stats(TOPIC, 0)
      return `${Math.round((bytes * 40) / all)} with ${Math.round((finishedBytes * 40) / all)} finished`
    }
    let all = 0
    {
      await using log = await started(it)
      for (let i = 1; i <= 40; i++) await append(log, i)
      all = (await log.stats(TOPIC, 0)).bytes
      await readSome(log, 40) // its owner would
      assert.equal(await share(log), '40 with 0 finished')
      await log.commit(TOPIC, 0, aCommit(20, { term: 1 }))
      assert.equal(await share(log), '40 with 20 finished')
      await log.commit(TOPIC, 0, aCommit(40, { term: 2 }))
      assert.equal(await share(log), '40 with 40 finished')
      await log.commit(TOPIC, 0, aCommit(24, { term: 3 }))
      assert.equal(await share(log), '40 with 24 finished')
      await log.trim(TOPIC, 0, 10)
      assert.equal(await share(log), '30 with 14 finished')
    }
    await using log = await it.open()
    assert.equal(await share(log), '30 with 14 finished')
  })

  test(`${name}: it is known of any stretch of records what messages of each action take in it, also after a trim, reopening, and in a copy`, async () => {
    await using it = await home()
    const shares = async (log: Log, topic: string, from: number, before: number) => {
      const { bytes, insert, update, delete: deleted } = await log.weigh(topic, 0, from, before)
      return [insert, update, deleted].map((part) => Math.round((part * 10) / Math.max(1, bytes)))
    }
    {
      await using log = await started(it)
      for (let i = 0; i < 40; i++) {
        const action = i < 20 ? ACTION.insert : i % 2 === 0 ? ACTION.update : ACTION.delete
        const record = { topic: TOPIC, partition: 0, pack: pack(i + 1, i + 1, Buffer.alloc(100), action) }
        await log.append([record], { source: SOURCE, ...reached(i + 1) })
      }
      await readSome(log, 40)
      assert.deepEqual(await shares(log, TOPIC, 0, 20), [10, 0, 0])
      assert.deepEqual(await shares(log, TOPIC, 20, Infinity), [0, 5, 5])
      assert.deepEqual(await shares(log, TOPIC, 0, Infinity), [5, 3, 3])
      assert.deepEqual(await shares(log, TOPIC, 40, Infinity), [0, 0, 0])
      await log.createTopic('copy.1.ab', 1)
      const marker = encodeMarker({ history: 0, term: 1, routing: 1 }, at(31), 31)
      await log.copy({ from: TOPIC, to: 'copy.1.ab', partition: 0, offset: 10, until: at(31), end: marker }, new AbortController().signal)
      await log.trim(TOPIC, 0, 10)
    }
    await using log = await it.open()
    for (const topic of [TOPIC, 'copy.1.ab']) assert.deepEqual(await shares(log, topic, 0, 30), [5, 3, 3], topic)
  })

  test(`${name}: offsets go on after everything was trimmed and the log was reopened`, async () => {
    await using it = await home()
    {
      await using log = await started(it)
      for (let i = 1; i <= 3; i++) await append(log, i)
      await log.trim(TOPIC, 0, 99)
      assert.deepEqual(await log.stats(TOPIC, 0), { first: 3, next: 3, bytes: 0, finishedBytes: 0, committed: 0 })
    }
    await using log = await it.open()
    await log.beginRun(SOURCE)
    await append(log, 4)
    assert.deepEqual(offsetsOf(await readSome(log, 1)), [3])
  })

  test(`${name}: what one topic has of another, up to a position, is there as it was, each record with its offset, and so is what follows`, async () => {
    await using it = await home()
    const copy = 'copy.9.0123abcd'
    const reader = readerOf(copy, 'one.1')
    const part = (partition: number, offset: number, until: number) => ({
      ...{
        from: TOPIC,
        to: copy,
        partition,
        offset,
        until: at(until),
        end: encodeMarker({ history: 0, term: 0, routing: 0 }, at(until), 1e15),
      },
    })
    const never = new AbortController().signal
    {
      await using log = await started(it, 3)
      for (let i = 1; i <= 9; i++) await append(log, i)
      for (let i = 1; i <= 9; i++) await append(log, i, 1)
      await log.trim(TOPIC, 1, 9)
      await log.createTopic(copy, 3)
      assert.equal(await log.copy(part(0, 3, 8), never), 8)
      assert.equal(await log.copy(part(1, 9, 8), never), 10, 'of what is trimmed there is the end alone')
      assert.equal(await log.copy(part(2, 0, 8), never), 1, 'and of what never was')
      await assert.rejects(log.copy(part(0, 3, 8), never), 'it is done once')
      await log.trim(TOPIC, 0, 9)
      const records = await readSome(log, 5, 0, 0, copy)
      assert.deepEqual(offsetsOf(records), [3, 4, 5, 6, 7])
      assert.deepEqual(lsnsOf(records.slice(0, 4)), [4, 5, 6, 7])
      const { isMarker, first } = Pack.header(records[4]?.pack as Buffer)
      assert.deepEqual([isMarker, first], [true, at(8)])
      assert.equal(log.neededFrom(copy, 0, 5), 5)
      assert.deepEqual((await log.headerAt(copy, 0, 5))?.last, at(6))
      assert.equal(await log.headerAt(copy, 0, 2), undefined)
      await log.join(readerOf(copy, 'two.1'), 0, aCommit(4))
      await log.commit(reader, 0, aCommit(5))
    }
    await using log = await it.open()
    await log.beginRun(SOURCE)
    assert.deepEqual(await log.committed(reader, 0), aCommit(5))
    assert.deepEqual(await log.committed(readerOf(copy, 'two.1'), 0), aCommit(4))
    const { bytes, finishedBytes, ...stats } = await log.stats(reader, 0)
    assert.deepEqual(stats, { first: 3, next: 8, committed: 5 })
    assert.ok(finishedBytes > 0 && finishedBytes < bytes, `${finishedBytes} of ${bytes} bytes`)
    assert.equal((await log.stats(reader, 0, 0, 8)).bytes, 0)
    assert.equal(await log.offsetFor(copy, 0, { position: at(5) }), 5)
    assert.equal(await log.offsetFor(copy, 0, { timeMs: 99_000 }), 7)
    await append(log, 20, 0, copy)
    assert.deepEqual(offsetsOf(await readSome(log, 2, 7, 0, copy)), [7, 8])
    await log.trim(copy, 0, 6)
    assert.deepEqual(offsetsOf(await readSome(log, 3, 0, 0, copy)), [6, 7, 8])
    assert.deepEqual((await log.stats(reader, 0)).first, 6)
    await log.deleteTopic(copy)
    assert.deepEqual(await log.readers(), [])
    await log.createTopic(copy, 3)
    await assert.rejects(log.copy(part(0, 8, 8), AbortSignal.abort()))
  })

  test(`${name}: a record is found by commit time and by position`, async () => {
    await using it = await home()
    await using log = await started(it)
    for (let i = 1; i <= 9; i++) {
      await log.append([{ topic: TOPIC, partition: 0, pack: pack(i * 10, i * 1_000_000) }], { source: SOURCE, position: at(i * 10) })
    }
    assert.equal(await log.offsetFor(TOPIC, 0, { timeMs: 3000 }), 2)
    assert.equal(await log.offsetFor(TOPIC, 0, { timeMs: 3001 }), 3)
    assert.equal(await log.offsetFor(TOPIC, 0, { timeMs: 99_000 }), 9)
    assert.equal(await log.offsetFor(TOPIC, 0, { position: at(30) }), 3)
    assert.equal(await log.offsetFor(TOPIC, 0, { position: at(29) }), 2)
    assert.equal(await log.offsetFor(TOPIC, 0, { position: at(99) }), 9)
    assert.deepEqual((await log.headerAt(TOPIC, 0, 2))?.last, at(30))
    assert.equal(await log.headerAt(TOPIC, 0, 9), undefined)
  })

  test(`${name}: a reader ends when it is aborted, when its topic is deleted and when the log closes`, async () => {
    await using it = await home()
    const log = await started(it)
    await log.createTopic('other.1', 1)
    const abort = new AbortController()
    const drained = async (topic: string, signal: AbortSignal) => {
      const seen: number[] = []
      for await (const { offset } of log.read(topic, 0, 0, signal)) seen.push(offset)
      return seen
    }
    const never = new AbortController().signal
    const readers = [drained(TOPIC, abort.signal), drained('other.1', never), drained(TOPIC, never)]
    abort.abort()
    await readers[0]
    await log.deleteTopic('other.1')
    await log.deleteTopic('other.1')
    await readers[1]
    await assert.rejects(log.stats('other.1', 0), { code: 'LOG_TOPIC_UNKNOWN' })
    await log[Symbol.asyncDispose]()
    await readers[2]
  })

  test(`${name}: a topic may be made again as it is, and not with other partitions; a deleted one comes back empty`, async () => {
    await using it = await home()
    await using log = await started(it, 2)
    await append(log, 1)
    await log.commit(TOPIC, 0, aCommit(1))
    await log.createTopic(TOPIC, 2)
    await assert.rejects(log.createTopic(TOPIC, 3))
    assert.equal((await log.stats(TOPIC, 0)).next, 1)
    await log.deleteTopic(TOPIC)
    await log.createTopic(TOPIC, 2)
    assert.equal((await log.stats(TOPIC, 0)).next, 0)
    assert.equal(await log.committed(TOPIC, 0), undefined)
  })

  test(`${name}: the only process serves every partition, and none after it has unsubscribed`, async () => {
    await using it = await home()
    await using log = await started(it, 3)
    const served = new Set<number>()
    const all = Promise.withResolvers<void>()
    const subscription = await log.subscribe(TOPIC, {
      assigned: (partition) => {
        served.add(partition)
        if (served.size === 3) all.resolve()
      },
      revoked: (partition) => served.delete(partition),
    })
    await all.promise
    assert.ok(log.holds(TOPIC))
    for (let i = 1; i <= 2; i++) await append(log, i)
    await log.commit(TOPIC, 0, aCommit(1))
    assert.deepEqual(await log.committed(TOPIC, 0), aCommit(1))
    await subscription[Symbol.asyncDispose]()
    assert.equal(served.size, 0)
  })

  test(`${name}: the identity of a log stays, and another log has another`, async () => {
    await using it = await home()
    await using other = await home()
    const first = await started(it)
    const { identity } = first
    await first[Symbol.asyncDispose]()
    await using again = await it.open()
    await using different = await started(other)
    assert.equal(again.identity, identity)
    assert.notEqual(different.identity, identity)
  })
}

function bodyOf({ pack: bytes }: LogRecord): { length: number; buffer: Buffer } {
  const decoded = Pack.decode(bytes)
  const buffer = decoded.buffer.subarray(decoded.bodyStart(0), decoded.bodyEnd(0))
  return { length: buffer.length, buffer }
}
