/** What a sink that has left a stream still has of it gets a topic of its own, so that it holds nobody's trimming. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Replays, type Holder } from '../../actors/sink/replays.ts'
import { StoredGenerations } from '../../engine/dispatch/generations.ts'
import { deleteOldTopics } from '../../engine/dispatch/old-topics.ts'
import { ParkedStore } from '../../engine/dispatch/parked/parked-store.ts'
import type { StreamCopiesOptions } from '../../engine/dispatch/stream-copies.ts'
import { StreamTrim } from '../../engine/dispatch/stream-trim.ts'
import { EngineError } from '../../engine/errors.ts'
import type { CopiedPart } from '../../engine/log/log.ts'
import { createLogger } from '../../engine/logger.ts'
import { disabledWithBacklog, hasTheRest } from './disabled-sink.ts'
import { ITEMS, serving, Shop, upTo, type Taken } from './shop.ts'
import { gather, until } from '../waiting.ts'

test('what a disabled sink has left of a stream gets a topic of its own, so that it is trimmed for the others; enabled again, it has all of it, in order', async () => {
  const disabled = await disabledWithBacklog()
  await using shop = disabled.shop
  const [stream] = await shop.topics()
  await shop.insert(101, 110)
  assert.deepEqual(await shop.take('on', 10), upTo(101, 110))
  const copy = await shop.copied('off')
  const bytes = (topic: string | undefined) => shop.node.engine.streams().find((each) => each.topic === topic)?.bytes
  await until('the stream is trimmed', async () => bytes(stream) === 0)
  assert.ok(Number(bytes(copy)) > 70_000, `${bytes(copy)} bytes in ${copy}`)
  const [reader] = shop.node.engine.streams().find(({ topic }) => topic === copy)?.readers ?? []
  assert.deepEqual([reader?.sink, reader?.state, reader?.heldBytes], ['off', 'leaving', 0])
  const end = (await shop.node.log.stats(copy, 0)).next
  await shop.restart()
  await shop.insert(111, 111)
  assert.deepEqual(await shop.take('on', 1), [111])
  assert.equal((await shop.node.log.stats(copy, 0)).next, end, 'a run of the source adds nothing to it')
  await hasTheRest(disabled)
  assert.deepEqual(await shop.take('on', 10), upTo(1_001, 1_010))
  await until('the copy is gone', async () => (await shop.node.log.topics()).length === 1)
})

test('a copy that is cut off at any step leaves what is left where it was, or has put it into effect: each message comes once, and no topic stays', async () => {
  const disabled = await disabledWithBacklog({ prepare: (each) => each.keepFromCopying() })
  await using shop = disabled.shop
  const { store, log } = shop.node
  const died = new Error('the process has just died')
  let cuts = 0
  let next = 100
  for (let isDone = false; !isDone; cuts++) {
    let steps = 0
    const ended = new AbortController()
    const step = () => {
      if (steps++ < cuts) return
      ended.abort()
      throw died
    }
    const cut =
      <P extends readonly unknown[], R>(work: (...params: P) => Promise<R>) =>
      async (...params: P): Promise<R> => {
        step()
        const result = await work(...params)
        step() // it has done it, and is not answered
        return result
      }
    await shop.copyOnce(
      {
        query: cut(store.query),
        transaction: (work) => cut(() => store.transaction((query) => work(cut(query))))(),
        log: Object.create(log, {
          createTopic: { value: cut((...params: Parameters<typeof log.createTopic>) => log.createTopic(...params)) },
          copy: { value: cut((...params: Parameters<typeof log.copy>) => log.copy(...params)) },
          committed: { value: cut((...params: Parameters<typeof log.committed>) => log.committed(...params)) },
          join: { value: cut((...params: Parameters<typeof log.join>) => log.join(...params)) },
          deleteTopic: { value: cut((...params: Parameters<typeof log.deleteTopic>) => log.deleteTopic(...params)) },
          deleteReader: { value: cut((...params: Parameters<typeof log.deleteReader>) => log.deleteReader(...params)) },
        }) as typeof log,
      },
      ended.signal,
    )
    const [off] = await shop.state.query<{ topic: string }>('select topic from tailrace.generation where sink_id = $1', [shop.id('off')])
    isDone = off?.topic.startsWith('copy.') === true
    if (!isDone) {
      await shop.insert(++next, next)
      assert.deepEqual(await shop.take('on', 1), [next], 'the other reader goes on')
    }
    await serving(shop.node, 'off')
  }
  assert.ok(cuts > 40, `it was cut off at ${cuts} steps`)
  assert.equal(await shop.copyOnce(), undefined, 'there is nothing left to do')
  await shop.restart()
  await hasTheRest(disabled)
  await until('no copy stays', async () => (await shop.node.log.topics()).length === 1)
})

test('a generation that does not come to its end is copied after a while, with what its window keeps; a replay that was planned before goes back in the copy', async () => {
  await using shop = await Shop.open([`name: on, ${ITEMS}`, `name: off, ${ITEMS}, replay_window: 1h`])
  await shop.keepFromCopying()
  const [stream] = await shop.topics()
  for (let id = 1; id <= 100; id++) await shop.insert(id, id)
  assert.equal((await shop.receive('off', 50)).length, 50)
  assert.equal((await shop.take('on', 100)).length, 100)
  const { engine, edits, store, log } = shop.node
  await edits.update('sink', shop.id('off'), { status: 'paused' })
  await edits.update('sink', shop.id('off'), { partitions: 2 })
  await shop.opened('off')
  await shop.insert(101, 110)
  assert.deepEqual(await shop.take('on', 10), upTo(101, 110))
  assert.equal(await shop.copyOnce(), undefined)
  assert.deepEqual(
    (await shop.topics()).filter((topic) => topic.startsWith('copy.')),
    [],
    'it has time',
  )

  const sweeping = async (part: CopiedPart, signal: AbortSignal) => {
    await deleteOldTopics(store.query, log, 1_000_000)
    return log.copy(part, signal)
  }
  /** Its transaction is done, and not answered. */
  const copied = async () => {
    const ended = new AbortController()
    const failure = await shop.copyOnce(
      {
        patienceMs: 0,
        log: Object.create(log, { copy: { value: sweeping } }) as typeof log,
        transaction: async (work) => {
          await store.transaction(work)
          ended.abort()
          throw new EngineError('STATE_UNAVAILABLE', 'the connection was cut')
        },
      },
      ended.signal,
    )
    assert.equal(failure, undefined)
    return (await shop.topics()).some((topic) => topic.startsWith('copy.'))
  }
  const trimmed = async () => {
    await new StreamTrim({ query: store.query, log, holder: 'the test' }).run()
    await shop.keepFromCopying()
    const { first, next } = await log.stats(stream as string, 0)
    return first === next
  }
  const moves = async () => {
    const ended = new AbortController()
    const unstopped: StreamCopiesOptions['whileStopped'] = (_sinkId, work) =>
      work({ generation: 1, terms: new Map(), commits: new Map() }).finally(() => ended.abort())
    await shop.copyOnce({ patienceMs: 0, whileStopped: unstopped }, ended.signal)
    return ended.signal.aborted
  }
  await until('a partition that does not stand still is met', moves)
  assert.ok((await shop.topics()).includes(stream as string))

  const holder: Holder = {
    id: shop.node.registry.id,
    hold: (by) => engine.holdSink(shop.id('off'), by),
    release: (by) => engine.releaseSink(shop.id('off'), by),
  }
  let isCopied = false
  /** of a process that has looked where the generation is read, and not yet there */
  const slow: typeof log.stats = async (...asked) => {
    if (!isCopied) await until('it is copied', copied)
    if (!isCopied) await until('the stream is trimmed', trimmed)
    isCopied = true
    return log.stats(...asked)
  }
  const off = shop.node.cache.sinks.find(({ name }) => name === 'off') ?? assert.fail()
  const behind = Object.create(log, { stats: { value: slow } }) as typeof log
  const replays = new Replays({ store, log: behind, logger: createLogger({ level: 'fatal', format: 'json' }) })
  const { messages } = await replays.replay(off, { lsn: 1n }, () => [holder])
  assert.ok(messages > 0, `about ${messages} come again`)
  const key = { sinkId: off.id, generation: 1, partition: 0 }
  const late = ParkedStore.takeOver(store.query, key, { grouping: true, holder: 'thawed', topic: stream as string })
  await assert.rejects(late, { code: 'GENERATION_WAITS' })
  const generations = new StoredGenerations({ sinkId: off.id, log, query: store.query, ackWaitMs: () => 0 })
  assert.equal(await generations.stateOf({ generation: 1, topic: stream as string }), 'drained', 'as it is known elsewhere')

  await edits.update('sink', off.id, { status: 'active' })
  const ids = (await shop.receive('off', 110)).map(({ record }) => record.id)
  assert.deepEqual(
    ids.slice(0, 100).toSorted((a, b) => a - b),
    upTo(1, 100),
  )
  assert.deepEqual(
    ids.slice(100).toSorted((a, b) => a - b),
    upTo(101, 110),
  )
  await until('it is noted what is kept', async () => {
    const rows = await shop.state.query('select from tailrace.replay_point where sink_id = $1 and generation = 2', [off.id])
    return rows.length >= 2
  })
  await engine.replay(off.id, { lsn: 1n })
  assert.equal((await shop.receive('off', 110)).length, 110, 'its window keeps the copy')
  await shop.nothingMore('off')
})

test('a partition that has come to its end before a copy is at its end there, and what follows the generation is delivered', async () => {
  await using shop = await Shop.open([`name: on, ${ITEMS}, partitions: 2`, `name: off, ${ITEMS}, partitions: 2`])
  await shop.keepFromCopying()
  await shop.insert(1, 40)
  assert.equal((await shop.take('on', 40)).length, 40)
  const taken = await gather<Taken>('all, none of them acknowledged', () => shop.receive('off', 1), 40)
  const [done, left] = ['0', '1'].map((partition) => taken.filter((each) => each.ack_id.split('.')[2] === partition))
  assert.ok(done?.length && left?.length)
  await shop.ack('off', done)
  await shop.node.edits.update('sink', shop.id('off'), { status: 'disabled' })
  await shop.insert(41, 60)
  assert.equal((await shop.take('on', 20)).length, 20)
  await until('a partition needs nothing any more', async () => {
    const rows = await shop.state.query('select from tailrace.reader_line where sink_id = $1 and line > 1e15', [shop.id('off')])
    return rows.length > 0
  })
  await until('it is copied', async () => {
    assert.equal(await shop.copyOnce(), undefined)
    return (await shop.topics()).some((topic) => topic.startsWith('copy.'))
  })
  await serving(shop.node, 'off')
  await until('what is left has been read again', async () => {
    const off = shop.node.engine.actors().find(({ kind, name }) => kind === 'sink' && name === 'off')
    return off?.partitions?.some(({ unfinished }) => unfinished === left.length)
  })
  await shop.sink('off').nack(left.map((each) => each.ack_id))
  await shop.node.edits.update('sink', shop.id('off'), { status: 'active' })
  await shop.opened('off')
  await shop.insert(61, 70)
  const ids = await shop.take('off', left.length + 10)
  assert.deepEqual(ids, [...left.map(({ record }) => record.id).toSorted((a, b) => a - b), ...upTo(61, 70)])
})

test('a log that is put back to before a copy is known by it, and by an acceptance the sink goes on without', async () => {
  const { shop } = await disabledWithBacklog()
  await using _ = shop
  const copy = await shop.copied('off')
  await serving(shop.node, 'off')
  await shop.restart(() => shop.node.log.deleteTopic(copy), ['on'])
  const id = shop.id('off')
  const told = async () => {
    const checks = (await shop.node.engine.sinkHealth([id]))[id]?.checks ?? []
    return checks.some(({ error }) => error?.code === 'LOG_WENT_BACK')
  }
  await until('it is told', told)
  await until('its source has stopped', async () =>
    shop.node.engine.acceptGap(shop.node.cache.databases[0]?.id as string).then(
      () => true,
      () => undefined,
    ),
  )
  await shop.node.edits.update('sink', id, { status: 'active' })
  await shop.opened('off')
  await shop.insert(201, 210)
  const hot = (await shop.receive('off', 10)).map(({ record }) => record.id)
  assert.ok(hot.length > 0)
})
