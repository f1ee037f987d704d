/** What of lmdb would lose data or fill the disk if the log trusted it: a write that settles before the disk has it, and
 *  read transactions that stay open. */
import assert from 'node:assert/strict'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { setImmediate as turn } from 'node:timers/promises'
import { open } from 'lmdb'
import { openEmbeddedLog } from '../../../engine/log/embedded.ts'
import { append, at, pack, SOURCE, TOPIC } from './conformance.ts'
import { until } from '../../waiting.ts'

async function folder() {
  const path = await mkdtemp(join(tmpdir(), 'tailrace-lmdb-'))
  return { path, [Symbol.asyncDispose]: () => rm(path, { recursive: true, force: true }) }
}

/** Writes whose flush is told when the test says so; `settled` settles when lmdb has taken all of them. */
class LateDisk {
  #gate = Promise.resolve()
  #writes: Promise<unknown>[] = []
  readonly options: Record<string, unknown>[] = []

  hold(): () => void {
    const { promise, resolve } = Promise.withResolvers<void>()
    this.#gate = promise
    this.#writes = []
    return resolve
  }

  async settled(): Promise<void> {
    await Promise.all(this.#writes)
    for (let i = 0; i < 20; i++) await turn()
  }

  get taken(): number {
    return this.#writes.length
  }

  readonly open = ((options: Parameters<typeof open>[0]) => {
    this.options.push(options as unknown as Record<string, unknown>)
    return this.#late(open(options))
  }) as typeof open

  #late<T extends object>(database: T): T {
    return new Proxy(database, {
      get: (target, name) => {
        const member: unknown = Reflect.get(target, name)
        if (typeof member !== 'function') return member
        if (name === 'openDB') return (...args: unknown[]) => this.#late(member.apply(target, args) as object)
        if (name === 'put' || name === 'remove') return (...args: unknown[]) => this.#write(member.apply(target, args))
        return member.bind(target)
      },
    })
  }

  #write(write: Promise<boolean> & { flushed?: Promise<unknown> }): Promise<boolean> {
    const gate = this.#gate
    this.#writes.push(Promise.all([write, write.flushed]))
    return Object.assign(
      write.then((done) => done),
      { flushed: Promise.all([write.flushed, gate]) },
    )
  }
}

test('an append, a commit and a new topic are not told before the disk has them, nor is an appended record read', async () => {
  await using dir = await folder()
  const disk = new LateDisk()
  await using log = await openEmbeddedLog(dir.path, { open: disk.open })
  await log.createTopic(TOPIC, 1)
  await log.beginRun(SOURCE)
  for (const options of disk.options) assert.equal(options['separateFlushed'], true, 'without it nothing tells of the flush')
  const ref = { offset: 0, index: 0 }
  const commit = { next: ref, accepted: at(1), finished: [], handedOut: ref, term: 1 }
  for (const write of ['append', 'commit', 'topic'] as const) {
    const flush = disk.hold()
    let isTold = false
    const done = { append: () => append(log, 1), commit: () => log.commit(TOPIC, 0, commit), topic: () => log.createTopic('sink.2', 1) }
    const told = done[write]().then(() => (isTold = true))
    await until(`${write} writes`, () => disk.taken > 0)
    await disk.settled()
    assert.equal(isTold, false, write)
    if (write === 'append') assert.equal((await log.stats(TOPIC, 0)).next, 0)
    flush()
    await told
  }
  assert.equal((await log.stats(TOPIC, 0)).next, 1)
})

test('no read transaction is open when a read has been answered', async () => {
  await using dir = await folder()
  {
    await using log = await openEmbeddedLog(dir.path)
    await log.createTopic(TOPIC, 1)
    await log.beginRun(SOURCE)
    const records = Array.from({ length: 5 }, (_, i) => ({ topic: TOPIC, partition: 0, pack: pack(i + 1) }))
    await log.append(records, { source: SOURCE, position: at(5) })
  }
  await using log = await openEmbeddedLog(dir.path) // nothing is in memory: every read is one of lmdb
  const transactions = ['log.mdb', 'commits.mdb'].map((file) => {
    const again = open({ path: join(dir.path, file), separateFlushed: true, overlappingSync: false, encoding: 'json', maxDbs: 4 })
    return () => (again as unknown as { readerList(): string }).readerList().split('\n').slice(1).join('\n')
  })
  const records = log.read(TOPIC, 0, 0, new AbortController().signal)[Symbol.asyncIterator]()
  const reads: Record<string, () => Promise<unknown>> = {
    read: () => records.next(),
    'offsetFor a time': () => log.offsetFor(TOPIC, 0, { timeMs: 0 }),
    'offsetFor a position': () => log.offsetFor(TOPIC, 0, { position: at(3) }),
    progress: () => log.progress(SOURCE),
    committed: () => log.committed(TOPIC, 0),
    topics: () => log.topics(),
  }
  for (const [name, read] of Object.entries(reads)) {
    await read()
    for (const open of transactions) assert.doesNotMatch(open(), /\d+ +[0-9a-f]+ +\d+/, `after ${name}:\n${open()}`)
  }
})
