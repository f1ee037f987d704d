/** The embedded log on a disk that does not keep up. */
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { openEmbeddedLog } from '../../../engine/log/embedded.ts'
import { ACTION, PackBuilder } from '../../../engine/log/pack.ts'

const MB = 1024 * 1024
const progress = { source: 'shop', position: { history: 0, lsn: 1n, idx: 0, part: 1 } } as const

function record(bytes: number) {
  const builder = new PackBuilder({ history: 0, term: 1, generation: 1, routing: 1 })
  builder.begin(1n, 1, 1)
  builder.bodies.copy(randomBytes(bytes))
  builder.add(0, 1, ACTION.insert, 1, 0, 1, 0, 0)
  return { topic: 'sink.1', partition: 0, pack: builder.encode() }
}

test('a write that the disk does not take in time is fatal: it is not acknowledged, and nothing follows it', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'tailrace-disk-'))
  try {
    {
      await using log = await openEmbeddedLog(folder, { reserveBytes: () => 0 })
      await log.createTopic('sink.1', 1)
    }
    const fatal: string[] = []
    // no disk takes 48 MB within a millisecond
    await using log = await openEmbeddedLog(folder, {
      ...{ reserveBytes: () => 0, flushTimeoutMs: 1 },
      onFatal: (error) => fatal.push(error.code),
    })
    await log.beginRun('shop')
    await assert.rejects(log.append([record(48 * MB)], progress), { code: 'LOG_FLUSH_FAILED' })
    assert.deepEqual(fatal, ['LOG_FLUSH_FAILED'])
    assert.equal((await log.stats('sink.1', 0)).next, 0)
    await assert.rejects(log.append([record(1)], progress), { code: 'LOG_APPEND_FAILED' })
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
})
