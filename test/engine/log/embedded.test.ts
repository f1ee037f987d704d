import assert from 'node:assert/strict'
import { fork } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { copyFile, mkdtemp, rm, stat } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { openEmbeddedLog, type EmbeddedLogOptions } from '../../../engine/log/embedded.ts'
import type { Commit, Log } from '../../../engine/log/log.ts'
import { Pack } from '../../../engine/log/pack.ts'
import { append, at, conforms, pack, readSome, type LogHome } from './conformance.ts'

async function folder() {
  const path = await mkdtemp(join(tmpdir(), 'tailrace-log-'))
  return { path, [Symbol.asyncDispose]: () => rm(path, { recursive: true, force: true }) }
}

async function opened(path: string, options: EmbeddedLogOptions = {}, partitions = 1): Promise<Log> {
  const log = await openEmbeddedLog(path, options)
  await log.createTopic('sink.1', partitions)
  await log.beginRun('shop')
  return log
}

conforms('embedded', async (): Promise<LogHome> => {
  const dir = await folder()
  let reserve = 0
  return {
    open: () => openEmbeddedLog(dir.path, { reserveBytes: () => reserve }),
    async failAppend(log, source) {
      reserve = Number.MAX_SAFE_INTEGER
      const big = { topic: 'sink.1', partition: 0, pack: pack(2, 2, randomBytes(65 * 1024 * 1024)) }
      await assert.rejects(log.append([big], { source, position: at(2) }), { code: 'LOG_DISK_FULL' })
      reserve = 0
    },
    [Symbol.asyncDispose]: () => dir[Symbol.asyncDispose](),
  }
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
  assert.deepEqual((await log.progress('shop'))?.position, at(next))
  assert.ok(((await log.committed('sink.1', 0))?.next.offset ?? 0) >= settled)
  assert.equal((await readSome(log, next)).length, next)
})

test('a commit beyond the end of an older copy of the log is forgotten: what is appended next is read', async () => {
  await using dir = await folder()
  const commit = (offset: number): Commit => ({
    ...{ next: { offset, index: 0 }, accepted: at(offset), finished: [], handedOut: { offset, index: 0 }, term: 1 },
  })
  const [file, copy] = [join(dir.path, 'log.mdb'), join(dir.path, 'copy.mdb')]
  {
    await using log = await opened(dir.path, {}, 2)
    await append(log, 1)
  }
  await copyFile(file, copy)
  {
    await using log = await opened(dir.path, {}, 2)
    await append(log, 2)
    await log.commit('sink.1', 0, commit(2))
    await log.commit('sink.1', 1, commit(0))
  }
  await copyFile(copy, file)
  await using log = await opened(dir.path, {}, 2)
  assert.equal(await log.committed('sink.1', 0), undefined)
  assert.deepEqual(await log.committed('sink.1', 1), commit(0))
})

test('commits and trims still work when the disk is too full to append', async () => {
  await using dir = await folder()
  let reserve = 0
  await using log = await opened(dir.path, { reserveBytes: () => reserve })
  for (let i = 1; i <= 5; i++) await append(log, i)
  reserve = Number.MAX_SAFE_INTEGER
  const commit: Commit = { next: { offset: 4, index: 0 }, accepted: at(4), finished: [], handedOut: { offset: 4, index: 0 }, term: 1 }
  await log.commit('sink.1', 0, commit)
  await log.trim('sink.1', 0, 4)
  assert.deepEqual(await log.committed('sink.1', 0), commit)
  assert.equal((await log.stats('sink.1', 0)).first, 4)
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
