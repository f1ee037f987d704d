/** A receive on any node gives what any node has: over real HTTP between nodes that own different partitions. */
import assert from 'node:assert/strict'
import { createServer } from 'node:net'
import { once } from 'node:events'
import type { AddressInfo } from 'node:net'
import { test } from 'node:test'
import { PeerClient } from '../../../api/cluster/peer-client.ts'
import { PeerKey } from '../../../api/cluster/peer-key.ts'
import type { Logger } from '../../../engine/logger.ts'
import { waitingCount } from '../api-fixture.ts'
import { GOODS_ID } from '../scripted-engine.ts'
import { calmMs } from '../../services/calm-clock.ts'
import { withMoreTime } from '../../services/more-time.ts'
import { CALM, NetProxy } from '../../faults/net-proxy.ts'
import { ClusterFixture, inPartition, VAULT_KEY } from './cluster-fixture.ts'
import { pass, until } from '../../waiting.ts'

const never = () => new Promise<never>(() => undefined)

test("a node's own partitions are served first; the others are asked only when those have nothing", async () => {
  await using cluster = await ClusterFixture.create()
  const [a, b] = [await cluster.node([0]), await cluster.node([1])]
  await cluster.met(a, b)
  const [own, other] = [inPartition(0, 1), inPartition(1, 1)]
  a.goods.push(own)
  b.goods.push(other)
  assert.deepEqual(await a.receive({ batch_size: 10 }), [own.id])
  assert.equal(b.goods.requests.length, 0)
  assert.deepEqual(await a.receive({ batch_size: 10 }), [other.id])
  assert.deepEqual(await a.receive({ batch_size: 10 }), [])
})

test('a node where the sink has no actor serves it from the others, in the shape and batch that was asked for', async () => {
  await using cluster = await ClusterFixture.create()
  const [a, b] = [await cluster.node([], { runs: false }), await cluster.node([1])]
  await cluster.met(a, b)
  b.goods.push(inPartition(1, 1), inPartition(1, 2), inPartition(1, 3))
  const received = async (parameters: object) => {
    const { body } = await a.call('/api/http_pull_consumers/goods/receive', { body: parameters })
    return (body as { data: { ack_id: string; data: { record: object } }[] }).data
  }
  const data = await received({ batch_size: 2, shape: 'nested' })
  assert.deepEqual(
    data.map(({ ack_id }) => ack_id),
    [inPartition(1, 1).id, inPartition(1, 2).id],
  )
  assert.deepEqual(data[0]?.data.record, { id: 7, title: 'Lamp' })
  assert.equal(b.goods.ready.length, 1)
  assert.equal(b.goods.requests.at(-1)?.ackToken, false)
  assert.deepEqual((await received({ max_batch_size: 1, ack_token: true }))[0]?.data.record, { id: 7, title: 'Lamp' })
  assert.equal(b.goods.requests.at(-1)?.ackToken, true)
})

test('a long poll waits on all nodes at once and is answered by the first that gets a message; the others stop waiting', async () => {
  await using cluster = await ClusterFixture.create()
  const [a, b, c] = [await cluster.node([0]), await cluster.node([1]), await cluster.node([2])]
  await cluster.met(a, b, c)
  const answer = a.receive({ wait_for: 30_000 })
  await Promise.all([a, b, c].map(({ goods }) => waitingCount(goods, 1)))
  const stopped = Promise.all([a, b].map(({ goods }) => waitingCount(goods, 0)))
  c.goods.push(inPartition(2, 1))
  assert.deepEqual(await answer, [inPartition(2, 1).id])
  assert.ok((await calmMs(() => stopped)) < 1_000, 'they are called off, not cut off when they do not answer')
  assert.equal(a.goods.givenBack + b.goods.givenBack + c.goods.givenBack, 0)
})

test('a client that goes away takes nothing anywhere: the waits end and what was on its way goes back', async () => {
  await using cluster = await ClusterFixture.create()
  const [a, b] = [await cluster.node([0]), await cluster.node([1])]
  await cluster.met(a, b)
  const client = new AbortController()
  const answer = a.receive({ wait_for: 30_000 }, client.signal)
  await Promise.all([a, b].map(({ goods }) => waitingCount(goods, 1)))
  const ended = Promise.all([a, b].map(({ goods }) => waitingCount(goods, 0)))
  client.abort()
  await assert.rejects(answer, { name: 'AbortError' })
  await ended
  b.goods.push(inPartition(1, 1))
  assert.deepEqual(await b.receive(), [inPartition(1, 1).id])
})

test('when two nodes hand out for one receive, one of them answers it and the other gets its messages back at once', async () => {
  await using cluster = await ClusterFixture.create()
  const [a, b, c] = [await cluster.node([], { runs: false }), await cluster.node([1]), await cluster.node([2])]
  await cluster.met(a, b, c)
  for (let round = 0; round < 20; round++) {
    const answer = a.receive({ wait_for: 30_000, batch_size: 5 })
    await Promise.all([b, c].map(({ goods }) => waitingCount(goods, 1)))
    b.goods.push(inPartition(1, round))
    c.goods.push(inPartition(2, round))
    const got = await answer
    assert.equal(got.length, 1)
    const isOfB = got[0] === inPartition(1, round).id
    const [winner, loser] = isOfB ? [b, c] : [c, b]
    await until('it is given back, before its visibility time has passed', () => loser.goods.ready.length === 1)
    assert.equal(loser.goods.inFlight.size, 0)
    loser.goods.ready.length = 0
    assert.deepEqual([...winner.goods.inFlight.keys()], got)
    await a.call('/api/http_pull_consumers/goods/ack', { body: { ack_ids: got } })
  }
})

test('a node that takes partitions over joins the waits that are open already', async () => {
  await using cluster = await ClusterFixture.create()
  const [a, b] = [await cluster.node([0, 1]), await cluster.node([])]
  await cluster.met(a, b)
  const answer = a.receive({ wait_for: 30_000 })
  await waitingCount(a.goods, 1)
  assert.equal(b.goods.waiting, 0)
  const joined = waitingCount(b.goods, 1)
  await cluster.own(b.registry.id, 1)
  assert.ok((await calmMs(() => joined)) < 2_500, 'a notice brings it, before the look that comes every five seconds')
  b.goods.push(inPartition(1, 1))
  assert.deepEqual(await answer, [inPartition(1, 1).id])
})

test('a dead node and one that hangs hold no receive up', async () => {
  await using cluster = await ClusterFixture.create()
  const hanging = createServer(never).listen(0, '127.0.0.1') // takes connections and says nothing
  await once(hanging, 'listening')
  const address = `http://127.0.0.1:${(hanging.address() as AddressInfo).port}`
  const [a, b] = [await cluster.node([0]), await cluster.node([1])]
  const [dead, silent] = [await cluster.node([2]), await cluster.node([3], { address })]
  await cluster.met(a, b, dead, silent)
  await dead.kill()
  b.goods.push(inPartition(1, 1))
  const tookMs = await calmMs(async () => assert.deepEqual(await a.receive({ batch_size: 10 }), [inPartition(1, 1).id]))
  assert.ok(tookMs < 500, `${tookMs} ms`)
  const nothingMs = await calmMs(async () => assert.deepEqual(await a.receive(), []))
  assert.ok(nothingMs < 2_000, 'what there is to wait for a silent node is bounded')
  const answer = a.receive({ wait_for: 30_000 })
  await waitingCount(b.goods, 1)
  b.goods.push(inPartition(1, 2))
  assert.deepEqual(await answer, [inPartition(1, 2).id])
  hanging.close()
})

test('messages that were long on their way from their owner are not handed to a client, nor given back under another one', async () => {
  await using cluster = await ClusterFixture.create()
  await using line = await NetProxy.start({ host: '127.0.0.1', port: 1 })
  const fields = { ack_wait_ms: 3_000 }
  const a = await cluster.node([0], { fields })
  const b = await cluster.node([1], { fields, address: `http://127.0.0.1:${line.port}` })
  line.target = { host: '127.0.0.1', port: Number(new URL(b.api.url).port) }
  await cluster.met(a, b)
  b.goods.push(inPartition(1, 1), inPartition(1, 2))
  assert.deepEqual(await a.receive(), [inPartition(1, 1).id], 'a wait of no time')
  line.weather = { ...CALM, delayMs: 900 } // each way
  assert.deepEqual(await a.receive({ wait_for: 2_000 }), [], 'half of the visibility time is over')
  assert.deepEqual([...b.goods.inFlight.keys()], [inPartition(1, 1).id, inPartition(1, 2).id], 'it comes again when that has passed')
  assert.deepEqual([b.goods.nacked, b.goods.givenBack], [[], 0])
  line.weather = CALM
  const answer = a.receive({ wait_for: 30_000 })
  await waitingCount(b.goods, 1)
  await pass(1_600, 'a wait that long is no time on the way')
  b.goods.push(inPartition(1, 3))
  assert.deepEqual(await answer, [inPartition(1, 3).id])
})

test('messages of another node that a client has not taken in time are not given back: they may be with another client', async () => {
  await using cluster = await ClusterFixture.create()
  const [a, b] = [await cluster.node([0]), await cluster.node([1])]
  await cluster.met(a, b)
  await using peers = new PeerClient(new PeerKey(VAULT_KEY), { warn: () => undefined } as unknown as Logger)
  const given: (readonly string[])[] = []
  const taken = async (staleMs: number) => {
    b.goods.push(inPartition(1, 1))
    const node = a.registry.live.get(b.registry.id) ?? assert.fail()
    const request = { batchSize: 1, waitMs: 0, shape: 'flat', signal: new AbortController().signal } as const
    return peers.receive(node, { ...request, sinkId: GOODS_ID, staleMs, giveBack: (ids) => given.push(ids) })
  }
  ;(await taken(60_000)).giveBack()
  assert.deepEqual(given, [[inPartition(1, 1).id]])
  await withMoreTime([500, 2_000, 8_000], async (staleMs) => {
    const late = await taken(staleMs)
    assert.equal(late.count, 1, 'it was not long on its way')
    await pass(staleMs, 'the client reads nothing for so long')
    late.giveBack()
    assert.equal(given.length, 1)
  })
})

test('a wait for which nothing comes ends in its time', async () => {
  await using cluster = await ClusterFixture.create()
  const [a, b] = [await cluster.node([0]), await cluster.node([1])]
  await cluster.met(a, b)
  const started = performance.now()
  const tookMs = await calmMs(async () => assert.deepEqual(await a.receive({ wait_for: 400 }), []))
  assert.ok(performance.now() - started >= 395 && tookMs < 1_500, `${tookMs} ms`)
})

test('clients are counted where they come in: the waits of other nodes take nobody a place', async () => {
  await using cluster = await ClusterFixture.create()
  const fields = { max_waiting: 2 }
  const [a, b] = [await cluster.node([0], { fields }), await cluster.node([1], { fields })]
  await cluster.met(a, b)
  const client = new AbortController()
  const waits = [a, a, b, b].map((node) => node.receive({ wait_for: 30_000 }, client.signal).catch(() => 'gone'))
  await Promise.all([a, b].map(({ goods }) => waitingCount(goods, 4)))
  await assert.rejects(a.receive({ wait_for: 30_000 }), { status: 429, code: 'TOO_MANY_WAITING' })
  assert.ok(b.goods.requests.filter(({ waitMs }) => waitMs > 0).every(({ isCounted }) => isCounted))
  client.abort()
  assert.deepEqual(await Promise.all(waits), ['gone', 'gone', 'gone', 'gone'])
})

test('a stop of the node ends its waits on the others, and answers its clients', async () => {
  await using cluster = await ClusterFixture.create()
  const [a, b] = [await cluster.node([0]), await cluster.node([1])]
  await cluster.met(a, b)
  const answer = a.receive({ wait_for: 30_000 })
  await waitingCount(b.goods, 1)
  const ended = waitingCount(b.goods, 0)
  const stopped = a.api.stop()
  assert.deepEqual(await answer, [])
  await ended
  await stopped
})

test('while the state database is out of reach, what a node has itself is served, and others by who owned it last', async () => {
  await using cluster = await ClusterFixture.create()
  const [a, b] = [await cluster.node([0]), await cluster.node([1])]
  await cluster.met(a, b)
  b.goods.push(inPartition(1, 1), inPartition(1, 2))
  assert.deepEqual(await a.receive(), [inPartition(1, 1).id])
  await cluster.store.query('alter table tailrace.term rename to term_away')
  a.goods.push(inPartition(0, 1))
  assert.deepEqual(await a.receive(), [inPartition(0, 1).id])
  assert.deepEqual(await a.receive(), [inPartition(1, 2).id])
})
