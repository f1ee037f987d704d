/** Edits by function: in order, one task each, and never twice. */
import type { Batch } from '../../engine/dispatch/batch.ts'
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { ask, run } from '../services/meilisearch-client.ts'
import { Meilisearch, type Fault, type Request } from '../services/meilisearch.ts'
import { failureOf, open, wordsOf } from './meilisearch-bench.ts'
import { withMoreTime } from '../services/more-time.ts'
import { batchOf, NEVER, type Row } from './batch.ts'

/** A server with two counters that can be edited, and no request noted yet. */
async function counters(): Promise<Meilisearch> {
  const server = await Meilisearch.start()
  await ask(server, '/experimental-features', { method: 'PATCH', body: '{"editDocumentsByFunction":true}' })
  await run(server, '/indexes/items/settings', { method: 'PATCH', body: '{"filterableAttributes":["id"]}' })
  await run(server, '/indexes/items/documents?primaryKey=id', { body: '[{"id":"a","n":0},{"id":"b","n":0}]' })
  server.requests.length = 0
  return server
}
const ADD = { action: 'function', filter: "id = 'a'", function: 'doc.n += context.by', context: { by: 1 } }
/** Messages of so many rows, in the order given, that all mean the same edit. */
const edits = (route: Readonly<Record<string, unknown>>, ...groups: readonly string[]): Batch => ({
  ...batchOf(groups.map((group, i): Row => ({ key: [group], group: Number(group.slice(1)), lsn: BigInt(4096 + i) }))),
  route,
})
const count = (server: Meilisearch, id = 'a') => server.documents('items').get(id)?.['n']
const isEdit = ({ path }: Request) => path.endsWith('/edit')
const edited = ({ requests }: Meilisearch) => requests.filter(isEdit)
/** This happens to the next edit alone. */
function once(server: Meilisearch, fault: Fault): void {
  server.fault = (request) => {
    if (!isEdit(request)) return undefined
    server.fault = undefined
    return fault
  }
}

test('each message is an edit of its own, with filter, function and context', async () => {
  await using server = await counters()
  await using wire = open(server)
  assert.equal((await wire.send(edits(ADD, 'r1', 'r2', 'r1'), NEVER)).kind, 'delivered')
  assert.deepEqual([count(server), count(server, 'b')], [3, 0])
  const [first] = edited(server)
  assert.equal(first?.path, '/indexes/items/documents/edit')
  assert.deepEqual(JSON.parse(first?.body.toString() ?? ''), { filter: ADD.filter, function: ADD.function, context: ADD.context })
  assert.equal(new Set(edited(server).map(({ query }) => query.get('customMetadata'))).size, 3)
  const { context: _, ...plain } = ADD
  await wire.send({ ...batchOf([{ key: ['r9'], lsn: 9000n }]), route: { ...plain, function: 'doc = ()', index_name: 'items' } }, NEVER)
  assert.equal(count(server), undefined)
})

for (const fault of ['cutAfter', 'hang'] as const)
  test(`an edit whose answer was lost is found by its name, and done once: ${fault}`, () =>
    withMoreTime([200, 1_500], async (timeoutMs) => {
      await using server = await counters()
      await using wire = open(server, { timeout_seconds: timeoutMs / 1_000 })
      const load = edits(ADD, 'r1')
      once(server, fault)
      const at = performance.now()
      assert.equal(failureOf(await wire.send(load, NEVER)).blame, 'unavailable')
      let lookedAfterMs = 0
      server.fault = ({ query }) => {
        if (query.has('types')) lookedAfterMs = performance.now() - at
        return undefined
      }
      assert.equal((await wire.send(load, NEVER)).kind, 'delivered')
      assert.deepEqual([edited(server).length, count(server)], [1, 1])
      assert.ok(lookedAfterMs > timeoutMs - 5, `${lookedAfterMs} ms: it could still have been on its way`)
    }))

test('an edit that never arrived is sent again', () =>
  withMoreTime([200, 1_500], async (timeoutMs) => {
    await using server = await counters()
    await using wire = open(server, { timeout_seconds: timeoutMs / 1_000 })
    once(server, 'cut')
    const load = edits(ADD, 'r1')
    assert.equal(failureOf(await wire.send(load, NEVER)).blame, 'unavailable')
    assert.equal((await wire.send(load, NEVER)).kind, 'delivered')
    assert.equal(count(server), 1)
  }))

test('an edit that another process has sent before it died is not sent again, whether it is done or still open', async () => {
  await using server = await counters()
  const load = edits(ADD, 'r1')
  {
    await using wire = open(server)
    await wire.send(load, NEVER)
  }
  await using second = open(server)
  assert.equal((await second.send(load, NEVER)).kind, 'delivered')
  assert.equal(edited(server).length, 1)

  server.hold()
  const later = { ...batchOf([{ key: ['r1'], lsn: 9000n }]), route: ADD }
  const dying = open(server)
  const lost = dying.send(later, NEVER)
  await server.until(() => server.openTasks === 1)
  await dying.close()
  await lost
  await using third = open(server)
  const resumed = third.send(later, NEVER)
  await server.until(() => server.requests.filter(({ query }) => query.has('types')).length >= 3)
  server.release()
  assert.equal((await resumed).kind, 'delivered')
  assert.deepEqual([edited(server).length, count(server)], [2, 2])
})

test('the same position in another history, and in another sink, is another edit', async () => {
  await using server = await counters()
  await using wire = open(server)
  await wire.send(edits(ADD, 'r1'), NEVER)
  await wire.send({ ...batchOf([{ key: ['r1'] }], 1), route: ADD }, NEVER)
  await using other = open(server, {}, { id: '22222222-2222-4222-8222-222222222222' })
  await other.send(edits(ADD, 'r1'), NEVER)
  assert.equal(count(server), 3)
})

test('an edit that failed or was canceled did nothing, and is sent again', async () => {
  await using server = await counters()
  await using wire = open(server)
  const load = edits({ ...ADD, filter: 'n = 0' }, 'r1')
  const { blame, answer } = failureOf(await wire.send(load, NEVER))
  assert.equal(blame, 'rejected')
  assert.match(answer.message, /^Index `items`: Attribute `n` is not filterable\./)
  await run(server, '/indexes/items/settings', { method: 'PATCH', body: '{"filterableAttributes":["id","n"]}' })
  server.hold()
  const canceled = wire.send(load, NEVER)
  await server.until(() => server.openTasks === 1)
  await fetch(`${server.url}/tasks/cancel?uids=${server.tasks.at(-1)?.uid}`, { method: 'POST' })
  assert.equal(failureOf(await canceled).blame, 'unavailable')
  server.release()
  await using fresh = open(server)
  assert.equal((await fresh.send(load, NEVER)).kind, 'delivered')
  assert.deepEqual([count(server), count(server, 'b')], [1, 1])
})

test('behind an edit that failed nothing of its group is sent, and other groups are', async () => {
  await using server = await counters()
  await using wire = open(server)
  server.fault = (request) =>
    isEdit(request) && edited(server).length === 1
      ? { status: 400, body: '{"message":"Script is incomplete (line 1, position 9)","code":"bad_script"}' }
      : undefined
  const load = edits(ADD, 'r1', 'r2', 'r2', 'r3')
  const words = wordsOf(await wire.send(load, NEVER))
  assert.deepEqual(
    words.map((word) => word?.[1]),
    [
      undefined,
      'status 400: Script is incomplete (line 1, position 9)',
      'status 400: Script is incomplete (line 1, position 9)',
      undefined,
    ],
  )
  assert.deepEqual([edited(server).length, count(server)], [3, 2])
})

test('when the server goes away in the middle, what is done is not done again', () =>
  withMoreTime([200, 1_500], async (timeoutMs) => {
    await using server = await counters()
    await using wire = open(server, { timeout_seconds: timeoutMs / 1_000 })
    server.fault = (request) => (isEdit(request) && edited(server).length >= 2 ? 'cut' : undefined)
    const load = edits(ADD, 'r1', 'r2', 'r3', 'r4')
    assert.equal(failureOf(await wire.send(load, NEVER)).blame, 'unavailable')
    assert.equal(edited(server).length, 3)
    server.fault = undefined
    assert.equal((await wire.send(load, NEVER)).kind, 'delivered')
    assert.equal(count(server), 4)
  }))

test('a server that is too old to keep names gets edits without, and a lost one then waits for a human', () =>
  withMoreTime([200, 1_500], async (timeoutMs) => {
    await using server = await counters()
    const warnings: string[] = []
    await using wire = open(server, { timeout_seconds: timeoutMs / 1_000 }, {}, { warn: (text) => void warnings.push(text) })
    const tooOld = { status: 400, body: '{"message":"Unknown parameter `customMetadata`","code":"bad_request"}' } as const
    server.fault = (request) => (isEdit(request) && request.query.has('customMetadata') ? tooOld : undefined)
    assert.equal((await wire.send(edits(ADD, 'r1', 'r2'), NEVER)).kind, 'delivered')
    assert.deepEqual([edited(server).length, count(server), warnings.length], [3, 2, 1])
    once(server, 'cutAfter')
    const lost = { ...batchOf([{ key: ['r3'], lsn: 9000n }]), route: ADD }
    assert.equal(failureOf(await wire.send(lost, NEVER)).blame, 'unavailable')
    for (let i = 0; i < 2; i++) {
      const { blame, answer } = failureOf(await wire.send(lost, NEVER))
      assert.deepEqual([blame, answer.code], ['message', 'MESSAGE_UNDELIVERABLE'])
    }
    await server.until(() => server.openTasks === 0)
    assert.equal(count(server), 3)
  }))

test('without the feature the server’s own words are passed on, and nothing is believed to be on its way', async () => {
  await using server = await counters()
  await ask(server, '/experimental-features', { method: 'PATCH', body: '{"editDocumentsByFunction":false}' })
  await using wire = open(server)
  const { blame, answer } = failureOf(await wire.send(edits(ADD, 'r1'), NEVER))
  assert.equal(blame, 'refused')
  assert.match(answer.message, /^status 400: Using the documents edit route requires enabling/)
  await ask(server, '/experimental-features', { method: 'PATCH', body: '{"editDocumentsByFunction":true}' })
  assert.equal((await wire.send(edits(ADD, 'r1'), NEVER)).kind, 'delivered')
})

test('a send that is called off in the middle tells what is done', async () => {
  await using server = await counters()
  await using wire = open(server)
  const off = new AbortController()
  server.hold()
  const send = wire.send(edits(ADD, 'r1', 'r2'), off.signal)
  await server.until(() => server.openTasks === 1)
  server.release(1)
  await server.until(() => server.openTasks === 1 && edited(server).length === 2)
  off.abort()
  assert.deepEqual(
    wordsOf(await send).map((word) => word?.[0]),
    [undefined, 'unavailable'],
  )
})
