/** The embedded log on a disk that is late or full. */
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { mkdtemp, rm, statfs } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { openEmbeddedLog } from '../../../engine/log/embedded.ts'
import { FlushLimit } from '../../../engine/log/disk.ts'
import type { Commit } from '../../../engine/log/log.ts'
import { PackBuilder } from '../../../engine/log/pack-builder.ts'
import { ACTION } from '../../../engine/log/pack.ts'

const MB = 1024 * 1024
const position = { history: 0, lsn: 1n, idx: 0, part: 1 } as const
const progress = { source: 'shop', position }

function record(bytes: number) {
  const builder = new PackBuilder({ history: 0, term: 1, routing: 1 })
  builder.begin(1n, 1, 1)
  builder.bodies.copy(randomBytes(bytes))
  builder.add(0, 1, ACTION.insert, 1, 0, 1, 0, 0)
  return { topic: 'sink.1', partition: 0, pack: builder.encode() }
}

/** With the topic in it, closed. */
async function prepared() {
  const path = await mkdtemp(join(tmpdir(), 'tailrace-disk-'))
  const log = await openEmbeddedLog(path, { reserveBytes: () => 0 })
  await log.createTopic('sink.1', 1)
  await log[Symbol.asyncDispose]()
  return { path, [Symbol.asyncDispose]: () => rm(path, { recursive: true, force: true }) }
}

test('a write that the disk does not take in time is fatal: it is not acknowledged, and nothing follows it', async () => {
  await using folder = await prepared()
  const fatal: string[] = []
  // no disk takes 48 MB within a millisecond
  await using log = await openEmbeddedLog(folder.path, {
    ...{ reserveBytes: () => 0, flushTimeoutMs: 1 },
    onFatal: (error) => fatal.push(error.code),
  })
  await log.beginRun('shop')
  await assert.rejects(log.append([record(48 * MB)], progress), { code: 'LOG_FLUSH_FAILED' })
  assert.deepEqual(fatal, ['LOG_FLUSH_FAILED'])
  assert.equal((await log.stats('sink.1', 0)).next, 0)
  await assert.rejects(log.append([record(1)], progress), { code: 'LOG_APPEND_FAILED' })
})

test('a write that the disk refuses is fatal, once, although nobody waits for it', async () => {
  const fatal: string[] = []
  const disk = new FlushLimit({ timeoutMs: 1_000, onFatal: (error) => fatal.push(error.code) })
  // as lmdb tells it: of each write of the commit, with a promise that says why
  const refused = () => Promise.reject(Object.assign(new Error('Commit failed'), { commitError: Promise.reject(new Error('EFBIG')) }))
  disk.watch(refused())
  disk.watch(refused())
  disk.watch(Promise.resolve(true))
  await assert.rejects(disk.flushed(refused()), { code: 'LOG_FLUSH_FAILED' })
  assert.deepEqual(fatal, ['LOG_FLUSH_FAILED'])
})

test('while appends are refused because the disk is nearly full, a commit and a trim go through', async () => {
  await using folder = await prepared()
  let reserve = 0
  await using log = await openEmbeddedLog(folder.path, { reserveBytes: () => reserve })
  await log.beginRun('shop')
  await log.append([record(10)], progress)
  reserve = Number.MAX_SAFE_INTEGER
  await assert.rejects(log.append([record(65 * MB)], progress), { code: 'LOG_DISK_FULL' }) // so much that free space is looked at anew
  const next = { offset: 1, index: 0 }
  const commit: Commit = { next, accepted: position, finished: [], handedOut: next, term: 1 }
  await log.commit('sink.1', 0, commit)
  await log.trim('sink.1', 0, 1)
  assert.deepEqual(await log.committed('sink.1', 0), commit)
  assert.equal((await log.stats('sink.1', 0)).first, 1)
})

test('a copy that would make space short is refused, and what is appended goes on', async () => {
  await using folder = await prepared()
  const { bavail, bsize } = await statfs(folder.path)
  const free = bavail * bsize
  let reserve = 0
  await using log = await openEmbeddedLog(folder.path, { reserveBytes: () => reserve })
  await log.beginRun('shop')
  await log.append([record(10)], progress)
  const part = { from: 'sink.1', partition: 0, offset: 0, until: { ...position, lsn: 2n }, end: record(1).pack }
  await log.createTopic('copy.1', 1)
  reserve = free * 0.95
  await assert.rejects(log.copy({ ...part, to: 'copy.1' }, new AbortController().signal), { code: 'LOG_DISK_FULL' })
  await log.append([record(10)], progress)
  reserve = 0
  assert.equal(await log.copy({ ...part, to: 'copy.1' }, new AbortController().signal), 3)
})

test('space is short some time before appends are refused for want of it', async () => {
  await using folder = await prepared()
  const { bavail, bsize } = await statfs(folder.path)
  const free = bavail * bsize
  for (const [reserve, short] of [
    [0, false],
    [free * 0.5, false],
    [free * 0.95, true],
    [free * 2, true],
  ] as const) {
    await using log = await openEmbeddedLog(folder.path, { reserveBytes: () => reserve })
    assert.equal(await log.isShortOfSpace(), short, `a reserve of ${reserve / free} of what is free`)
    await log.beginRun('shop')
    if (reserve < free) await log.append([record(10)], progress)
    else await assert.rejects(log.append([record(10)], progress), { code: 'LOG_DISK_FULL' })
  }
})

test('readers that ask at the same time whether space is short get the answer of one look at the disk', async () => {
  await using folder = await prepared()
  let looks = 0
  const reserveBytes = () => {
    looks++
    return 0
  }
  await using log = await openEmbeddedLog(folder.path, { reserveBytes })
  const answers = await Promise.all(Array.from({ length: 50 }, () => log.isShortOfSpace()))
  assert.deepEqual(new Set(answers), new Set([false]))
  assert.equal(looks, 1)
})
