/** Acks and nacks reach the owners, from any node; what one process believes of another is checked by a key. */
import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import { once } from 'node:events'
import { text } from 'node:stream/consumers'
import { connect, type AddressInfo } from 'node:net'
import { test } from 'node:test'
import { ackIdPrefix, sinkTag, tokenOf, TOKENS_JOIN } from '../../../engine/dispatch/ack-id.ts'
import { EngineError } from '../../../engine/errors.ts'
import { PEER_HEADER, PeerKey } from '../../../api/cluster/peer-key.ts'
import { ClusterFixture, inPartition, VAULT_KEY, type ClusterNode } from './cluster-fixture.ts'
import { waitingCount } from '../api-fixture.ts'
import { GOODS_ID, type Scripted } from '../scripted-engine.ts'
import { until } from '../../waiting.ts'

const settle = (node: ClusterNode, what: 'ack' | 'nack', messages: readonly Scripted[]) =>
  node.call(`/api/http_pull_consumers/goods/${what}`, { body: { ack_ids: messages.map(({ id }) => id) } })
const codeOf = ({ body }: { body: unknown }) => (body as { code?: string }).code
/** Messages of a partition that are with a client. */
function held(node: ClusterNode, partition: number, count: number): Scripted[] {
  const messages = Array.from({ length: count }, (_, i) => inPartition(partition, i))
  for (const message of messages) node.goods.inFlight.set(message.id, message)
  return messages
}

test('an ack is split by partition, and each part goes to its owner', async () => {
  await using cluster = await ClusterFixture.create()
  const [a, b, c] = [await cluster.node([0]), await cluster.node([1, 2]), await cluster.node([3])]
  await cluster.met(a, b, c)
  const all = [held(a, 0, 2), held(b, 1, 2), held(b, 2, 1), held(c, 3, 1)].flat()
  assert.deepEqual(await settle(a, 'ack', all), { status: 200, body: { success: true } })
  assert.deepEqual(
    [a, b, c].map(({ goods }) => goods.acked.length),
    [2, 3, 1],
  )
  assert.deepEqual(
    [a, b, c].map(({ goods }) => goods.inFlight.size),
    [0, 0, 0],
  )
})

test('a token of messages of several owners is split by partition, too', async () => {
  await using cluster = await ClusterFixture.create()
  const [a, b, c] = [await cluster.node([0]), await cluster.node([1, 2]), await cluster.node([3])]
  await cluster.met(a, b, c)
  const [one, two, three] = [1, 2, 3].map((partition) =>
    tokenOf(ackIdPrefix(sinkTag(GOODS_ID), 1, partition), { offsets: [5, 5], indexes: [0, 1] }),
  )
  for (const [{ goods }, id] of [
    [b, one],
    [b, two],
    [c, three],
  ] as const)
    goods.inFlight.set(id as string, inPartition(1, 0))
  const { status } = await a.call('/api/http_pull_consumers/goods/ack', { body: { ack_ids: [[one, two, three].join(TOKENS_JOIN)] } })
  assert.equal(status, 200)
  assert.deepEqual(
    [a, b, c].map(({ goods }) => goods.acked),
    [[], [one, two], [three]],
  )
})

test('a nack on another node makes the message deliverable at its owner', async () => {
  await using cluster = await ClusterFixture.create()
  const [a, b] = [await cluster.node([], { runs: false }), await cluster.node([1])]
  await cluster.met(a, b)
  assert.equal((await settle(a, 'nack', held(b, 1, 2))).status, 200)
  assert.equal(b.goods.ready.length, 2)
})

test('what is decided of parked messages reaches every owner, and is counted over all of them', async () => {
  await using cluster = await ClusterFixture.create()
  const [a, b, c] = [await cluster.node([], { runs: false }), await cluster.node([1]), await cluster.node([2])]
  await cluster.met(a, b, c)
  for (const node of [b, c])
    node.engine.editMessages = async (sinkId, { edit, choice }) => (
      node.engine.edits.push([sinkId, edit, choice]),
      { known: 0, served: 0, edited: 3 }
    )
  const answer = await a.call('/api/sinks/goods/messages/discard', { body: { state: 'failing' } })
  assert.deepEqual(answer, { status: 200, body: { success: true, messages: 6 } })
  for (const node of [a, b, c]) assert.deepEqual(node.engine.edits, [[GOODS_ID, 'discard', 'failing']])
})

test('an ack is answered only when the owner has answered it', async () => {
  await using cluster = await ClusterFixture.create()
  const [a, b] = [await cluster.node([0]), await cluster.node([1])]
  await cluster.met(a, b)
  const durable = Promise.withResolvers<void>()
  const asked = Promise.withResolvers<void>()
  b.goods.ack = () => {
    asked.resolve()
    return durable.promise
  }
  let isAnswered = false
  const answer = settle(a, 'ack', [inPartition(1, 1)]).finally(() => (isAnswered = true))
  await asked.promise
  await a.call('/health')
  assert.equal(isAnswered, false)
  durable.resolve()
  assert.equal((await answer).status, 200)
})

test('an ack that the owner refuses is refused with its code, and the other owners have got theirs', async () => {
  await using cluster = await ClusterFixture.create()
  const [a, b] = [await cluster.node([0]), await cluster.node([1])]
  await cluster.met(a, b)
  const [own, other] = [held(a, 0, 1), held(b, 1, 1)]
  b.goods.fail = new EngineError('ACK_NOT_DURABLE', 'on purpose')
  const refused = await settle(a, 'ack', [...own, ...other])
  assert.deepEqual([refused.status, codeOf(refused)], [503, 'ACK_NOT_DURABLE'])
  assert.equal(a.goods.acked.length, 1)
})

test('after a move the ack finds the new owner, though this node has not heard of it', async () => {
  await using cluster = await ClusterFixture.create()
  const [a, b, c] = [await cluster.node([0]), await cluster.node([1]), await cluster.node([])]
  await cluster.met(a, b, c)
  await settle(a, 'ack', [inPartition(1, 0)]) // now it knows the owner
  await cluster.store.query('alter table tailrace.term disable trigger notice') // and hears of no other
  await cluster.own(c.registry.id, 1)
  b.goods.fail = new EngineError('STOPPING', 'partition 1 is not served at the moment')
  assert.equal((await settle(a, 'ack', held(c, 1, 3))).status, 200)
  assert.equal(c.goods.acked.length, 3)
})

test('a nack is sent again to another owner, and never twice to one: the message may be with another client by then', async () => {
  await using cluster = await ClusterFixture.create()
  const [a, b, c] = [await cluster.node([0]), await cluster.node([1, 2]), await cluster.node([])]
  await cluster.met(a, b, c)
  await settle(a, 'nack', [inPartition(1, 0)]) // now it knows the owners
  await cluster.store.query('alter table tailrace.term disable trigger notice') // and hears of no others
  await cluster.own(c.registry.id, 1)
  const [moved, stays] = [held(c, 1, 2), held(b, 2, 1)]
  const asked: string[][] = []
  b.goods.nack = async (ids) => {
    asked.push([...ids].sort())
    throw new EngineError('STOPPING', 'partition 1 is not served at the moment') // it has done the rest
  }
  const { status } = await settle(a, 'nack', [...moved, ...stays])
  assert.equal(status, 503)
  assert.deepEqual(asked, [[...moved, ...stays].map(({ id }) => id).sort()])
  assert.equal(c.goods.ready.length, 2)
})

test('each node hears whose owners have changed: it may still be given a partition that another has taken over', async () => {
  await using cluster = await ClusterFixture.create()
  const [a, b] = [await cluster.node([0]), await cluster.node([1])]
  await cluster.met(a, b)
  for (const { engine } of [a, b]) engine.toldOwners.length = 0
  await cluster.own(b.registry.id, 0)
  await until('both nodes are told', async () => [a, b].every(({ engine }) => engine.toldOwners.includes(GOODS_ID)))
})

test('while the owner is gone and nobody has taken over, an ack says to retry; afterwards it succeeds', async () => {
  await using cluster = await ClusterFixture.create()
  const [a, b, c] = [await cluster.node([0]), await cluster.node([1]), await cluster.node([])]
  await cluster.met(a, b, c)
  const messages = held(c, 1, 1)
  await b.kill()
  const unreachable = await settle(a, 'ack', messages)
  assert.deepEqual([unreachable.status, codeOf(unreachable)], [503, 'PEER_UNREACHABLE'])
  await b.registry.leave()
  await cluster.met(a)
  const moving = await settle(a, 'ack', messages)
  assert.deepEqual([moving.status, codeOf(moving)], [503, 'PARTITION_MOVING'])
  await cluster.own(c.registry.id, 1)
  assert.equal((await settle(a, 'ack', messages)).status, 200)
  assert.equal(c.goods.acked.length, 1)
})

test('ids of an ended generation go to whoever has these messages now, and those that nobody has are done', async () => {
  await using cluster = await ClusterFixture.create()
  const [a, b, c] = [await cluster.node([]), await cluster.node([1]), await cluster.node([2])]
  await cluster.met(a, b, c)
  const [stays, moves, done] = [held(b, 1, 1), [0, 1].map((offset) => inPartition(0, offset)), [inPartition(0, 2)]]
  await cluster.handOver(0, [
    { offset: 0, to: [2, 1], owner: b.registry.id },
    { offset: 1, to: [2, 2], owner: c.registry.id },
  ])
  for (const [i, node] of [b, c].entries()) node.goods.inFlight.set(moves[i]?.id ?? '', moves[i] as Scripted)
  assert.equal((await settle(a, 'ack', [...stays, ...moves, ...done])).status, 200)
  assert.deepEqual(b.goods.acked.toSorted(), [stays[0]?.id, moves[0]?.id].toSorted())
  assert.deepEqual(c.goods.acked, [moves[1]?.id])
})

test('ids of another sink, of a partition that nobody ever owned, and nonsense are ignored as on one node', async () => {
  await using cluster = await ClusterFixture.create()
  const [a, b] = [await cluster.node([0]), await cluster.node([1])]
  await cluster.met(a, b)
  const foreign = ['zzz.1.0.0.0', inPartition(700, 1).id, 'nonsense', `${inPartition(1, 1).id.split('.')[0]}..1.0.0`].map((id) => ({
    id,
    data: '',
  }))
  assert.equal((await settle(a, 'ack', [...held(b, 1, 1), ...foreign])).status, 200)
  assert.equal(b.goods.acked.length, 1)
})

test('internal paths answer 401 without the signature of the cluster, and are in no document', async () => {
  await using cluster = await ClusterFixture.create()
  const [a] = [await cluster.node([0])]
  const path = `/internal/peer/sinks/${GOODS_ID}/ack`
  const [good, wrong] = [new PeerKey(VAULT_KEY), new PeerKey(Buffer.alloc(32, 8))]
  const ask = async (header: string | undefined, body = '[]') => {
    const answer = await fetch(a.api.url + path, { method: 'POST', body, headers: header === undefined ? {} : { [PEER_HEADER]: header } })
    return [answer.status, codeOf({ body: await answer.json() })]
  }
  const request = { method: 'POST', path, to: a.registry.id }
  const refused = [401, 'PEER_UNAUTHORIZED']
  assert.deepEqual(await ask(undefined), refused)
  assert.deepEqual(await ask('Bearer x'), refused)
  assert.deepEqual(await ask(wrong.sign(request, '[]').header), refused)
  assert.deepEqual(await ask(good.sign(request, '[]').header, '["other body"]'), refused)
  assert.deepEqual(await ask(good.sign({ ...request, path: '/internal/peer/report' }, '[]').header), refused)
  assert.deepEqual(await ask(good.sign(request, '[]', Date.now() - 6 * 60_000).header), refused, 'too old')
  assert.deepEqual(await ask(good.sign({ ...request, to: 'another-node' }, '[]').header), [503, 'PEER_UNREACHABLE'])
  const { header } = good.sign(request, '[]')
  assert.deepEqual((await ask(header))[0], 200)
  assert.deepEqual(await ask(header), refused, 'a second time')
  const document = JSON.stringify((await a.call('/api/openapi.json')).body)
  assert.doesNotMatch(document, /internal/)
  assert.doesNotMatch(a.log.join(''), new RegExp(VAULT_KEY.toString('base64').slice(0, 20)))
})

test('a node of another key is neither believed nor obeyed', async () => {
  await using cluster = await ClusterFixture.create()
  const [a, stranger] = [await cluster.node([0]), await cluster.node([1], { vaultKey: Buffer.alloc(32, 9) })]
  await cluster.met(a, stranger)
  const refused = await settle(a, 'ack', held(stranger, 1, 1))
  assert.deepEqual([refused.status, codeOf(refused)], [503, 'PEER_REFUSED'])
  assert.equal(stranger.goods.acked.length, 0)
  assert.ok(a.log.some((line) => line.includes('PEER_REFUSED') && line.includes('node-1')))
})

test('connections and requests of other nodes are none of strangers, of whom a node takes few', async () => {
  await using cluster = await ClusterFixture.create()
  const [a, b] = [await cluster.node([0]), await cluster.node([1], { limits: { strangers: 1, strangeRequests: 1 } })]
  await cluster.met(a, b)
  const client = new AbortController()
  const wait = a.receive({ wait_for: 30_000 }, client.signal).catch(() => 'gone')
  await waitingCount(b.goods, 1)
  assert.equal((await settle(a, 'ack', held(b, 1, 1))).status, 200)
  client.abort()
  assert.equal(await wait, 'gone')
  const socket = connect({ port: Number(new URL(b.api.url).port), host: '127.0.0.1' })
  socket.end('POST /internal/peer/report HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n'.repeat(2))
  assert.doesNotMatch(await text(socket).catch(() => ''), /HTTP[^]*HTTP/, 'who signs nothing is one')
})

test('an answer that somebody on the way has changed is not believed, and neither is one whose counts are others', async () => {
  await using cluster = await ClusterFixture.create()
  let change = { body: (body: string) => body, headers: {} }
  let there = ''
  await using between = createServer(async (request, response) => {
    const body = await text(request)
    const { [PEER_HEADER]: signature } = request.headers
    const answer = await fetch(`${there}${request.url}`, { method: 'POST', headers: { [PEER_HEADER]: String(signature) }, body })
    const headers = { ...Object.fromEntries(answer.headers), ...change.headers }
    const changed = change.body(await answer.text())
    response.writeHead(answer.status, { ...headers, 'content-length': Buffer.byteLength(changed) }).end(changed)
  }).listen(0, '127.0.0.1')
  await once(between, 'listening')
  const address = `http://127.0.0.1:${(between.address() as AddressInfo).port}`
  const [a, b] = [await cluster.node([0]), await cluster.node([1], { address })]
  there = b.api.url
  await cluster.met(a, b)
  assert.equal((await settle(a, 'ack', held(b, 1, 1))).status, 200)
  change = { body: (body) => body.replace('}', ' }'), headers: {} }
  const altered = await settle(a, 'ack', held(b, 1, 2))
  assert.deepEqual([altered.status, codeOf(altered)], [503, 'PEER_REFUSED'])
  for (const header of ['x-tailrace-count', 'x-tailrace-waited-ms']) {
    change = { body: (body) => body, headers: { [header]: '7' } }
    const counted = await settle(a, 'ack', held(b, 1, 3))
    assert.deepEqual([counted.status, codeOf(counted)], [503, 'PEER_REFUSED'], header)
  }
})

test('whatever listens where a node used to be can not answer an ack in its place', async () => {
  await using cluster = await ClusterFixture.create()
  await using yes = createServer((_request, response) => response.end('{"success":true}')).listen(0, '127.0.0.1')
  await once(yes, 'listening')
  const address = `http://127.0.0.1:${(yes.address() as AddressInfo).port}`
  const [a, b] = [await cluster.node([0]), await cluster.node([1], { address })]
  await cluster.met(a, b)
  const refused = await settle(a, 'ack', [inPartition(1, 1)])
  assert.deepEqual([refused.status, codeOf(refused)], [503, 'PEER_REFUSED'])
})
