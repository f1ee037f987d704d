/** What a user sees of the nodes, and how an edit on one of them reaches the others. */
import assert from 'node:assert/strict'
import { createServer } from 'node:net'
import { once } from 'node:events'
import type { AddressInfo } from 'node:net'
import { test } from 'node:test'
import { calmMs, CalmClock } from '../../services/calm-clock.ts'
import { until } from '../../waiting.ts'
import { ClusterFixture, type ClusterNode } from './cluster-fixture.ts'
import { DATABASE, OTHER, SHOP } from '../scripted-engine.ts'

type Node = { id: string; name: string; address: string; version: string; reachable: boolean; ready: boolean | null } & Record<
  'sources' | 'partitions' | 'actors',
  Record<string, unknown>[]
>
const nodesOf = ({ body }: { body: unknown }) => (body as { nodes: Node[] }).nodes
/** The nodes as one of them lists them once all have answered it in time, which they need not on a busy machine. */
const reachableNodes = (asked: ClusterNode) =>
  until('all nodes have answered', async () => {
    const nodes = nodesOf(await asked.call('/info'))
    return nodes.every(({ reachable }) => reachable) && nodes
  })

test('info lists every live node with what it holds; what belongs to another account stays out', async () => {
  await using cluster = await ClusterFixture.create()
  const [a, b] = [await cluster.node([0]), await cluster.node([1])]
  b.engine.statuses = [
    { id: 'source/s1', kind: 'source', name: 'shop', accountId: SHOP.id, state: 'streaming' },
    { id: 'source/s2', kind: 'source', name: 'depot', accountId: SHOP.id, state: 'standby', details: { heldBy: 'node-0' } },
    { id: 'source/s3', kind: 'source', name: 'secret', accountId: OTHER.id, state: 'streaming' },
    {
      ...{ id: 'sink/k1', kind: 'sink', name: 'goods', accountId: SHOP.id, state: 'active' },
      partitions: [
        { partition: 1, state: 'running' },
        { partition: 2, state: 'takingOver' },
      ],
    },
  ]
  b.engine.readiness = { ready: false, waiting: [], disabled: 0 }
  await cluster.met(a, b)
  const nodes = await reachableNodes(a)
  assert.deepEqual(
    nodes.map(({ id, name, address, version, reachable, ready }) => ({ id, name, address, version, reachable, ready })),
    [
      { id: a.registry.id, name: 'node-0', address: a.api.url, version: '9.9.9', reachable: true, ready: true },
      { id: b.registry.id, name: 'node-1', address: b.api.url, version: '9.9.9', reachable: true, ready: false },
    ],
  )
  assert.deepEqual(nodes[1]?.sources, [{ id: 's1', name: 'shop' }])
  assert.deepEqual(nodes[1]?.partitions, [{ sink_id: 'k1', sink: 'goods', partition: 1 }])
  assert.deepEqual(
    nodes[1]?.actors.map(({ id }) => id),
    ['source/s1', 'source/s2', 'sink/k1'],
  )
  assert.deepEqual(await reachableNodes(b), nodes, 'any node says the same')
})

test('the last messages of a table are those that any node has read, each once and with its digits', async () => {
  await using cluster = await ClusterFixture.create()
  const [a, b] = [await cluster.node([0]), await cluster.node([1])]
  const dead = await cluster.node([2], { address: 'http://127.0.0.1:1' })
  await cluster.met(a, b, dead)
  const read = (from: number, to: number) =>
    Array.from({ length: to - from }, (_, i) => ({ at: String(from + i).padStart(3, '0'), text: `{"id":9007199254740993${from + i}}` }))
  a.engine.recents = read(0, 6)
  b.engine.recents = read(4, 13)
  const asked = { databaseId: DATABASE.id, table: 'public.goods' }
  for (const node of [a, b]) assert.deepEqual(await node.whole.recent(asked), read(3, 13))
})

test('a node that does not answer is listed as out of reach within about a second', async () => {
  await using cluster = await ClusterFixture.create()
  const hanging = createServer(() => undefined).listen(0, '127.0.0.1')
  await once(hanging, 'listening')
  const address = `http://127.0.0.1:${(hanging.address() as AddressInfo).port}`
  const [a, b] = [await cluster.node([0]), await cluster.node([1], { address })]
  await cluster.met(a, b)
  using clock = new CalmClock()
  const started = clock.now()
  const [own, silent] = nodesOf(await a.call('/info'))
  const tookMs = clock.since(started)
  assert.ok(tookMs < 2_000, `${tookMs} ms`)
  assert.deepEqual([own?.reachable, silent?.reachable, silent?.name, silent?.ready, silent?.actors], [true, false, 'node-1', null, []])
  hanging.close()
})

test('a node that stops is off the list at once, one that dies after five seconds without a sign', async () => {
  await using cluster = await ClusterFixture.create()
  const [a, b] = [await cluster.node([0]), await cluster.node([1])]
  await cluster.met(a, b)
  const gone = Promise.withResolvers<void>()
  a.registry.watch(() => a.registry.peers.length === 0 && gone.resolve())
  await b.registry.leave()
  await gone.promise // a notice, not a heartbeat, brings it
  await cluster.store.query(
    `insert into tailrace.node (id, name, address, version, seen_at) values (gen_random_uuid(), 'fresh', 'http://x:1', '1', clock_timestamp() - interval '1 s'),
       (gen_random_uuid(), 'dead', 'http://x:2', '1', clock_timestamp() - interval '5.1 s')`,
  )
  await a.registry.look()
  assert.deepEqual(
    a.registry.peers.map(({ name }) => name),
    ['fresh'],
  )
})

test('an edit is answered when every node has read it anew', async () => {
  await using cluster = await ClusterFixture.create()
  const [a, b, c] = [await cluster.node([0]), await cluster.node([1]), await cluster.node([2])]
  await cluster.met(a, b, c)
  const taken = Promise.withResolvers<void>()
  const asked = Promise.withResolvers<void>()
  b.engine.reload = async () => {
    asked.resolve()
    await taken.promise
  }
  let isAnswered = false
  const answer = a.call('/api/sinks/goods', { method: 'PATCH', body: { status: 'paused' } }).finally(() => (isAnswered = true))
  await asked.promise
  await a.call('/health')
  assert.equal(isAnswered, false)
  taken.resolve()
  assert.equal((await answer).status, 200)
  assert.equal(c.engine.reloads, 1)
  assert.equal(a.engine.updates.length, 1)
})

test('an edit of API tokens is answered when every node has read them anew', async () => {
  await using cluster = await ClusterFixture.create()
  const [a, b, c] = [await cluster.node([0]), await cluster.node([1]), await cluster.node([2])]
  await cluster.met(a, b, c)
  await a.loadTokens()
  assert.deepEqual(
    [a, b, c].map(({ engine }) => engine.tokenLoads),
    [1, 1, 1],
  )
})

test('an edit does not wait for a node that hangs longer than two seconds', async () => {
  await using cluster = await ClusterFixture.create()
  const [a, b] = [await cluster.node([0]), await cluster.node([1])]
  await cluster.met(a, b)
  b.engine.reload = () => new Promise<never>(() => undefined)
  const started = performance.now()
  const tookMs = await calmMs(async () =>
    assert.equal((await a.call('/api/sinks/goods', { method: 'PATCH', body: { status: 'paused' } })).status, 200),
  )
  assert.ok(performance.now() - started > 1_900 && tookMs < 4_000, `${tookMs} ms`)
  assert.ok(a.log.some((line) => line.includes('PEER_UNREACHABLE')))
})

test('a gap is accepted on whichever node stands before it, and the others try again', async () => {
  await using cluster = await ClusterFixture.create()
  const [a, b, c] = [await cluster.node([0]), await cluster.node([1]), await cluster.node([2])]
  await cluster.met(a, b, c)
  for (const { engine } of [a, b, c]) engine.databases = [DATABASE]
  b.engine.gaps.set(DATABASE.id, 'the slot stands above')
  const path = `/api/postgres_databases/${DATABASE.name}/accept_gap`
  assert.deepEqual(await a.call(path, { body: {} }), { status: 200, body: { success: true, accepted: 'the slot stands above' } })
  assert.deepEqual(
    [a, b, c].map(({ engine }) => engine.retried),
    [[DATABASE.id], [DATABASE.id], [DATABASE.id]],
  )
  const nothing = await a.call(path, { body: {} })
  assert.deepEqual([nothing.status, (nothing.body as { code: string }).code], [409, 'NO_GAP'])
})

test('a source that is to try again does so on whichever node it stopped, and the one that streams answers', async () => {
  await using cluster = await ClusterFixture.create()
  const [a, b] = [await cluster.node([0]), await cluster.node([1])]
  await cluster.met(a, b)
  for (const { engine } of [a, b]) engine.databases = [DATABASE]
  const path = `/api/postgres_databases/${DATABASE.name}/retry`
  a.engine.outcome = { state: 'standby' }
  b.engine.outcome = { state: 'failed', code: 'SLOT_LOST', reason: 'gone' }
  assert.deepEqual(((await a.call(path, { body: {} })).body as { code: string }).code, 'SLOT_LOST')
  b.engine.outcome = { state: 'streaming' }
  const { body } = await a.call(path, { body: {} })
  assert.deepEqual(body, { success: true, state: 'streaming', code: null, reason: null, remedy: null })
  assert.deepEqual(b.engine.retried, [DATABASE.id, DATABASE.id])
})
