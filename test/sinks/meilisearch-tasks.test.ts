/** What the ends of tasks mean for messages: while many are open, and when they fail, are canceled, or are lost. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { meilisearch } from '../../sinks/meilisearch.ts'
import { calmMs } from '../services/calm-clock.ts'
import { HttpReceiver } from '../services/http-receiver.ts'
import { Meilisearch } from '../services/meilisearch.ts'
import { withMoreTime } from '../services/more-time.ts'
import { failureOf, ids, madeOf, open, wordsOf, writes } from './meilisearch-bench.ts'
import { keys, batchOf, NEVER } from './batch.ts'

const numbered = (count: number, from = 0) => madeOf(Array.from({ length: count }, (_, i) => ({ id: from + i })))
const polls = ({ requests }: Meilisearch) => requests.filter(({ path }) => path === '/tasks')
const post = (server: Meilisearch, body: string) =>
  fetch(`${server.url}/indexes/items/documents?primaryKey=id`, { method: 'POST', headers: { 'content-type': 'application/json' }, body })
const finish = async (server: Meilisearch, query: string, method: string) => {
  const response = await fetch(`${server.url}/tasks${query}`, { method })
  assert.equal(response.status, 200)
}

test('many loads are enqueued while none has ended, and one question asks for all of them', async () => {
  assert.ok(meilisearch.concurrency >= 10)
  await using server = await Meilisearch.start()
  await using wire = open(server)
  server.hold()
  const sends = Array.from({ length: meilisearch.concurrency }, (_, i) => wire.send(numbered(10, i * 10), NEVER))
  await server.until(() => server.openTasks === sends.length)
  await server.until(() => polls(server).some(({ query }) => query.get('uids')?.split(',').length === sends.length))
  assert.equal(wire.figures?.()['tasks'], sends.length)
  server.release(1)
  assert.deepEqual([...new Set((await Promise.all(sends)).map(({ kind }) => kind))], ['delivered'])
  assert.equal(server.documents('items').size, sends.length * 10)
  assert.equal(wire.figures?.()['tasks'], 0)
})

test('a task that takes long is asked for less and less, and is no silence', async () => {
  await withMoreTime([1_000, 4_000], async (batchMs) => {
    await using server = await Meilisearch.start({ pace: { batchMs, documentMs: 0 } })
    let heard = 0
    await using wire = open(server, {}, {}, { heard: () => void heard++ })
    assert.equal((await wire.send(numbered(1), NEVER)).kind, 'delivered')
    const asked = polls(server).length
    assert.ok(asked >= 5 && asked <= 40, `asked ${asked} times in ${batchMs} ms`)
    assert.equal(heard, asked)
  })
})

test('a task that ends at once is seen at once', async () => {
  await using server = await Meilisearch.start()
  await using wire = open(server)
  await wire.send(numbered(1), NEVER)
  const times: number[] = []
  for (let i = 0; i < 10; i++) times.push(await calmMs(() => wire.send(numbered(1, i), NEVER)))
  const median = times.toSorted((a, b) => a - b)[5] ?? Infinity
  assert.ok(median < 200, `${times}`)
})

test('an answer that is too long for so many tasks is asked for again of fewer, and refused for one', async () => {
  const asked: number[] = []
  const longest = { each: 80_000 }
  await using server = await HttpReceiver.start(({ method, path }) => {
    if (method === 'POST') return { status: 202, body: JSON.stringify({ taskUid: uid++ }) }
    const uids = new URL(path, 'http://x').searchParams.get('uids')?.split(',').map(Number) ?? []
    asked.push(uids.length)
    const results = uids.map(
      (id) => `{"uid":${id},"status":"succeeded","error":null,"details":[${'[],'.repeat(longest.each / 3)}[]],"canceledBy":null}`,
    )
    return { body: `{"results":[${results.join()}],"next":null}` }
  })
  let uid = 0
  await using wire = open(server)
  const sends = await Promise.all(Array.from({ length: 6 }, (_, i) => wire.send(numbered(1, i), NEVER)))
  assert.deepEqual([...new Set(sends.map(({ kind }) => kind))], ['delivered'])
  assert.ok(asked.includes(1) && Math.max(...asked) > 1, `${asked}`)
  longest.each = 300_000
  const { blame, answer } = failureOf(await wire.send(numbered(1), NEVER))
  assert.equal(blame, 'refused')
  assert.match(answer.message, /the answer is longer than 8\d+ bytes, for 1 tasks/)
})

test('a poison document of another client does no harm but a second try', async () => {
  await using server = await Meilisearch.start()
  await using wire = open(server)
  server.hold()
  const sends = [wire.send(numbered(5), NEVER), wire.send(numbered(5, 5), NEVER)]
  await server.until(() => server.openTasks === 2)
  await post(server, '[{"id":99,"n":1e400}]')
  server.release()
  for (const outcome of await Promise.all(sends)) assert.equal(outcome.kind, 'delivered')
  assert.equal(server.tasks.filter(({ error }) => error?.code === 'internal').length, 3)
  assert.equal(server.documents('items').size, 10)
  const [, , , fourth, fifth] = server.tasks
  assert.notEqual(fourth?.batchUid, fifth?.batchUid, 'each is alone the second time')
  assert.equal(server.tasks.length, 5, 'and whole')
})

test('a poison document of ours fails alone, and everything that was beside it is delivered', async () => {
  await using server = await Meilisearch.start()
  server.poison = (document) => document.get('id')?.value === 37
  await using wire = open(server)
  server.hold()
  const sends = Array.from({ length: 8 }, (_, i) => wire.send(numbered(10, i * 10), NEVER))
  await server.until(() => server.openTasks === 8)
  server.release()
  const outcomes = await Promise.all(sends)
  assert.deepEqual(
    outcomes.map(({ kind }) => kind),
    ['delivered', 'delivered', 'delivered', 'each', 'delivered', 'delivered', 'delivered', 'delivered'],
  )
  const [found] = outcomes.filter(({ kind }) => kind === 'each')
  assert.ok(found)
  const words = wordsOf(found)
  assert.deepEqual(
    words.flatMap((word, i) => (word ? [i] : [])),
    [7],
  )
  assert.deepEqual(words[7], ['message', 'Index `items`: internal: a document that the server chokes on.'])
  assert.equal(server.documents('items').size, 79)
  // the others went on after it
  assert.equal((await wire.send(numbered(10, 80), NEVER)).kind, 'delivered')
})

test('a poison message behind a good one of the same key fails, and the good one is there', async () => {
  await using server = await Meilisearch.start()
  server.poison = (document) => document.get('n')?.value === 3
  await using wire = open(server)
  const words = wordsOf(
    await wire.send(
      madeOf([
        { id: 1, n: 1 },
        { id: 2, n: 1 },
        { id: 1, n: 2 },
        { id: 1, n: 3 },
      ]),
      NEVER,
    ),
  )
  assert.deepEqual(
    words.map((word) => word?.[0]),
    [undefined, undefined, undefined, 'message'],
  )
  assert.deepEqual(
    [...server.documents('items').values()],
    [
      { id: 2, n: 1 },
      { id: 1, n: 2 },
    ],
  )
})

test('a server that fails everything as internal is not told of single messages', async () => {
  await using server = await Meilisearch.start()
  server.poison = () => true
  await using wire = open(server)
  assert.equal(failureOf(await wire.send(numbered(64), NEVER)).blame, 'rejected')
  assert.ok(writes(server).length <= 32, `${writes(server).length} requests`)
})

test('what was canceled is not delivered', async () => {
  await using server = await Meilisearch.start()
  await using wire = open(server)
  server.hold()
  const send = wire.send(numbered(2), NEVER)
  await server.until(() => server.openTasks === 1)
  await finish(server, '/cancel?uids=0', 'POST')
  const { blame, answer } = failureOf(await send)
  assert.deepEqual([blame, answer.message], ['unavailable', 'task 0 was canceled by task 1'])
  server.release()
  assert.equal((await wire.send(numbered(2), NEVER)).kind, 'delivered')
})

test('a task that an operator deleted unseen is not delivered, and its messages may come again', async () => {
  await using server = await Meilisearch.start()
  await using wire = open(server)
  server.hold()
  // nobody is told of the end
  server.fault = ({ method, path }) =>
    method === 'GET' && path === '/tasks' && server.tasks[0]?.status !== 'enqueued' ? { status: 503 } : undefined
  const send = wire.send(numbered(2), NEVER)
  await server.until(() => server.openTasks === 1)
  server.release()
  await server.until(() => server.tasks[0]?.status === 'succeeded')
  await finish(server, '?uids=0', 'DELETE')
  server.fault = undefined
  const { blame, answer } = failureOf(await send)
  assert.deepEqual([blame, answer.message], ['unavailable', 'task 0 was deleted before its end was seen'])
  assert.equal((await wire.send(numbered(2), NEVER)).kind, 'delivered')
})

test('a server that is killed and comes back soon ends what it had begun, and nothing is sent twice', async () => {
  await using server = await Meilisearch.start({ pace: { batchMs: 60_000, documentMs: 0 } })
  await using wire = open(server)
  const send = wire.send(numbered(3), NEVER)
  await server.until(() => server.tasks[0]?.status === 'processing')
  server.pace = { batchMs: 0, documentMs: 0 }
  await server.kill()
  await server.start()
  assert.equal((await send).kind, 'delivered')
  assert.equal(writes(server).length, 1)
})

test('a server that stays away fails what waits for it', async () => {
  await using server = await Meilisearch.start()
  await using wire = open(server)
  server.hold()
  const sends = [wire.send(numbered(3), NEVER), wire.send(numbered(3, 3), NEVER)]
  await server.until(() => server.openTasks === 2)
  await server.kill()
  for (const outcome of await Promise.all(sends)) assert.equal(failureOf(outcome).blame, 'unreachable')
  await server.start()
  assert.equal((await wire.send(numbered(3), NEVER)).kind, 'delivered')
})

test('a key that may not read tasks is told at once', async () => {
  await using server = await Meilisearch.start({
    masterKey: 'm-a-s-t-e-r',
    keys: [{ key: 'adds', actions: ['documents.add'], indexes: ['*'] }],
  })
  await using wire = open(server, { api_key: 'adds' })
  const { blame, answer } = failureOf(await wire.send(numbered(3), NEVER))
  assert.deepEqual([blame, answer.status], ['refused', 403])
})

test('questions that are too many are asked later', async () => {
  await using server = await Meilisearch.start()
  await using wire = open(server)
  server.fault = ({ path }) =>
    path === '/tasks' && polls(server).length < 2 ? { status: 429, headers: { 'retry-after': '0' } } : undefined
  assert.equal((await wire.send(numbered(3), NEVER)).kind, 'delivered')
})

test('an answer that is lost fails the load, and sending it again changes nothing', async () => {
  await withMoreTime([200, 1_500], async (timeoutMs) => {
    await using server = await Meilisearch.start()
    await using wire = open(server, { timeout_seconds: timeoutMs / 1_000 })
    for (const fault of ['cutAfter', 'hang'] as const) {
      server.fault = ({ method }) => (method === 'POST' ? fault : undefined)
      assert.equal(failureOf(await wire.send(batchOf(keys('1', '2')), NEVER)).blame, 'unavailable')
      server.fault = undefined
      assert.equal((await wire.send(batchOf(keys('1', '2')), NEVER)).kind, 'delivered')
    }
    assert.deepEqual(ids(server), ['1', '2'])
  })
})

test('a send that is called off while its task runs settles at once, and closing the wire does the same', async () => {
  await using server = await Meilisearch.start()
  const wire = open(server)
  server.hold()
  const off = new AbortController()
  const sends = [wire.send(numbered(1), off.signal), wire.send(numbered(1, 1), NEVER)]
  await server.until(() => wire.figures?.()['tasks'] === 2)
  off.abort()
  assert.equal((await sends[0])?.kind, 'aborted')
  await wire.close()
  assert.equal((await sends[1])?.kind, 'aborted')
})
