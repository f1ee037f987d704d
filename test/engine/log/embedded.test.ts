import assert from 'node:assert/strict'
import { fork } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { mkdtemp, rm, stat } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { openEmbeddedLog, type EmbeddedLogOptions } from '../../../engine/log/embedded.ts'
import type { Commit, Log } from '../../../engine/log/log.ts'
import { ACTION, Pack, PackBuilder } from '../../../engine/log/pack.ts'
import type { Position } from '../../../engine/position.ts'

const at = (lsn: number, idx = 0): Position => ({ history: 0, lsn: BigInt(lsn), idx, part: 1 })

async function folder() {
  const path = await mkdtemp(join(tmpdir(), 'tailrace-log-'))
  return { path, [Symbol.asyncDispose]: () => rm(path, { recursive: true, force: true }) }
}

function pack(lsn: number, commitTimeUs = lsn, body: Buffer = Buffer.from(`message ${lsn}`)): Buffer {
  const builder = new PackBuilder({ history: 0, term: 1, generation: 1, routing: 1 })
  builder.begin(BigInt(lsn), lsn, commitTimeUs)
  builder.bodies.copy(body)
  builder.add(0, 1, ACTION.insert, 1, 0, lsn, 0, 0)
  return builder.encode()
}
const append = (log: Log, lsn: number, partition = 0) =>
  log.append([{ topic: 'sink.1', partition, pack: pack(lsn) }], { source: 'shop', position: at(lsn) })

async function readAll(log: Log, count: number, from = 0, partition = 0) {
  const abort = new AbortController()
  const offsets: number[] = []
  if (count === 0) return offsets
  for await (const { offset } of log.read('sink.1', partition, from, abort.signal)) {
    offsets.push(offset)
    if (offsets.length === count) abort.abort()
  }
  return offsets
}

async function opened(path: string, options: EmbeddedLogOptions = {}, partitions = 1): Promise<Log> {
  const log = await openEmbeddedLog(path, options)
  await log.createTopic('sink.1', partitions)
  await log.beginRun('shop')
  return log
}

test('what was appended is read in order, by a reader at the tail and by one from the start after reopening', async () => {
  await using dir = await folder()
  {
    await using log = await opened(dir.path)
    const reading = readAll(log, 50)
    for (let i = 1; i <= 50; i++) await append(log, i)
    assert.deepEqual(
      await reading,
      Array.from({ length: 50 }, (_, i) => i),
    )
  }
  await using log = await opened(dir.path)
  assert.deepEqual(
    await readAll(log, 40, 10),
    Array.from({ length: 40 }, (_, i) => i + 10),
  )
  assert.deepEqual(await log.progress('shop'), at(50))
  assert.deepEqual(await log.topics(), [{ topic: 'sink.1', partitions: 1 }])
})

test('an append over several partitions stands in all of them, and each partition has offsets of its own', async () => {
  await using dir = await folder()
  await using log = await opened(dir.path, {}, 3)
  const record = (partition: number) => ({ topic: 'sink.1', partition, pack: pack(1) })
  await log.append([record(0), record(2), record(0)], { source: 'shop', position: at(1) })
  const nexts = await Promise.all([0, 1, 2].map(async (p) => (await log.stats('sink.1', p)).next))
  assert.deepEqual(nexts, [2, 0, 1])
})

test('whatever a process saw settled is there after SIGKILL: records, progress and commits', async () => {
  await using dir = await folder()
  const child = fork(join(import.meta.dirname, 'append-until-killed.ts'), [dir.path], { stdio: ['ignore', 'ignore', 'inherit', 'ipc'] })
  let settled = 0
  child.on('message', (lsn: number) => {
    settled = lsn
    if (lsn === 300) child.kill('SIGKILL')
  })
  await once(child, 'exit')
  assert.ok(settled >= 300)
  await using log = await opened(dir.path)
  const { next } = await log.stats('sink.1', 0)
  assert.ok(next >= settled, `${next} records of ${settled} settled appends`)
  assert.deepEqual(await log.progress('shop'), at(next))
  assert.ok(((await log.committed('sink.1', 0))?.next.offset ?? 0) >= settled)
  assert.equal((await readAll(log, next)).length, next)
})

test('after a failed append nothing more is appended until a new run begins', async () => {
  await using dir = await folder()
  let reserve = 0
  await using log = await opened(dir.path, { reserveBytes: () => reserve })
  await append(log, 1)
  reserve = Number.MAX_SAFE_INTEGER
  const big = { topic: 'sink.1', partition: 0, pack: pack(2, 2, randomBytes(65 * 1024 * 1024)) }
  await assert.rejects(log.append([big], { source: 'shop', position: at(2) }), { code: 'LOG_DISK_FULL' })
  reserve = 0
  await assert.rejects(append(log, 3), { code: 'LOG_APPEND_FAILED' })
  assert.equal((await log.stats('sink.1', 0)).next, 1)
  await log.beginRun('shop')
  await append(log, 2)
  assert.deepEqual(await readAll(log, 2), [0, 1])
})

test('commits and trims still work when the disk is too full to append', async () => {
  await using dir = await folder()
  let reserve = 0
  await using log = await opened(dir.path, { reserveBytes: () => reserve })
  for (let i = 1; i <= 5; i++) await append(log, i)
  reserve = Number.MAX_SAFE_INTEGER
  const commit: Commit = { next: { offset: 4, index: 0 }, filter: at(4), finished: [], handedOut: { offset: 4, index: 0 }, term: 1 }
  await log.commit('sink.1', 0, commit)
  await log.trim('sink.1', 0, 4)
  assert.deepEqual(await log.committed('sink.1', 0), commit)
  assert.equal((await log.stats('sink.1', 0)).first, 4)
})

test('a trim frees what lies below it, and readers go on at the first record kept', async () => {
  await using dir = await folder()
  await using log = await opened(dir.path)
  for (let i = 1; i <= 20; i++) await append(log, i)
  await log.trim('sink.1', 0, 15)
  assert.deepEqual(await readAll(log, 5), [15, 16, 17, 18, 19])
  await log.trim('sink.1', 0, 99)
  const stats = await log.stats('sink.1', 0)
  assert.deepEqual(stats, { first: 20, next: 20, bytes: 0 })
  await append(log, 21)
  assert.deepEqual(await readAll(log, 1), [20])
})

test('offsets go on after everything was trimmed and the log was reopened', async () => {
  await using dir = await folder()
  {
    await using log = await opened(dir.path)
    for (let i = 1; i <= 3; i++) await append(log, i)
    await log.trim('sink.1', 0, 3)
  }
  await using log = await opened(dir.path)
  await append(log, 4)
  assert.deepEqual(await readAll(log, 1), [3])
})

test('a record is found by commit time and by position', async () => {
  await using dir = await folder()
  await using log = await opened(dir.path)
  for (let i = 1; i <= 9; i++) {
    await log.append([{ topic: 'sink.1', partition: 0, pack: pack(i * 10, i * 1_000_000) }], { source: 'shop', position: at(i * 10) })
  }
  assert.equal(await log.offsetFor('sink.1', 0, { timeMs: 3000 }), 2)
  assert.equal(await log.offsetFor('sink.1', 0, { timeMs: 3001 }), 3)
  assert.equal(await log.offsetFor('sink.1', 0, { timeMs: 99_000 }), 9)
  assert.equal(await log.offsetFor('sink.1', 0, { position: at(30) }), 3)
  assert.equal(await log.offsetFor('sink.1', 0, { position: at(29) }), 2)
})

test('the file grows no further than the largest backlog: space freed by trims is used again', async () => {
  await using dir = await folder()
  await using log = await opened(dir.path)
  const MB = 1024 * 1024
  let lsn = 1
  const fill = async (megabytes: number) => {
    for (let i = 0; i < megabytes * 4; i++, lsn++) {
      await log.append([{ topic: 'sink.1', partition: 0, pack: pack(lsn, lsn, randomBytes(MB / 4)) }], {
        source: 'shop',
        position: at(lsn),
      })
    }
  }
  await fill(40)
  for (let round = 0; round < 20; round++) {
    await log.trim('sink.1', 0, (await log.stats('sink.1', 0)).next - 120)
    await fill(10)
  }
  assert.ok((await log.stats('sink.1', 0)).bytes < 41 * MB)
  const { size } = await stat(join(dir.path, 'log.mdb'))
  assert.ok(size < 40 * MB * 1.1 + 8 * MB, `${(size / MB).toFixed(1)} MB`)
})

test('a reader ends when it is aborted, when its topic is deleted and when the log closes', async () => {
  await using dir = await folder()
  const log = await opened(dir.path)
  await log.createTopic('other.1', 1)
  const abort = new AbortController()
  const drained = async (topic: string, signal: AbortSignal) => {
    const seen: number[] = []
    for await (const { offset } of log.read(topic, 0, 0, signal)) seen.push(offset)
    return seen
  }
  const never = new AbortController().signal
  const readers = [drained('sink.1', abort.signal), drained('other.1', never), drained('sink.1', never)]
  abort.abort()
  await readers[0]
  await log.deleteTopic('other.1')
  await readers[1]
  await assert.rejects(log.stats('other.1', 0), { code: 'LOG_TOPIC_UNKNOWN' })
  await log[Symbol.asyncDispose]()
  await readers[2]
})

test('a trim while records are being appended takes none of them back', async () => {
  await using dir = await folder()
  for (let lsn = 1; lsn <= 90; lsn += 3) {
    const log = await opened(dir.path)
    assert.equal((await log.stats('sink.1', 0)).next, lsn - 1, 'all that was appended before')
    await append(log, lsn)
    await append(log, lsn + 1)
    const appending = append(log, lsn + 2)
    for (let turn = 0; turn < lsn % 9; turn++) await new Promise((resolve) => setImmediate(resolve))
    await Promise.all([appending, log.trim('sink.1', 0, lsn)])
    const { bytes } = await log.stats('sink.1', 0)
    await log[Symbol.asyncDispose]()
    await using again = await opened(dir.path)
    assert.equal((await again.stats('sink.1', 0)).bytes, bytes)
  }
})

test('topics that are made at the same time keep their records apart, and so does one made after a deletion', async () => {
  await using dir = await folder()
  await using log = await opened(dir.path)
  await Promise.all([log.createTopic('a.1', 1), log.createTopic('b.1', 1)])
  const records = ['a.1', 'b.1'].map((topic, i) => ({ topic, partition: 0, pack: pack(i + 1, i + 1) }))
  await log.append(records, { source: 'shop', position: at(2) })
  const first = async (topic: string) => {
    for await (const record of log.read(topic, 0, 0, new AbortController().signal)) return Pack.header(record.pack).first.lsn
  }
  assert.deepEqual([await first('a.1'), await first('b.1')], [1n, 2n])
  await log.deleteTopic('b.1')
  await log.createTopic('c.1', 1)
  await log.append([{ topic: 'c.1', partition: 0, pack: pack(3, 3) }], { source: 'shop', position: at(3) })
  assert.deepEqual([await first('a.1'), await first('c.1')], [1n, 3n])
})

test('the identity of a log stays, and another log has another', async () => {
  await using dir = await folder()
  await using other = await folder()
  const first = await opened(dir.path)
  const { identity } = first
  await first[Symbol.asyncDispose]()
  await using again = await opened(dir.path)
  await using different = await opened(other.path)
  assert.equal(again.identity, identity)
  assert.notEqual(different.identity, identity)
})
