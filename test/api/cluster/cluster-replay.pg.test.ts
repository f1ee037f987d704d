/** A replay asked of one node stops what the others serve of the sink, and lets it go on. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { REWINDING, REWOUND } from '../../../engine/dispatch/replay/replay.ts'
import { EngineError } from '../../../engine/errors.ts'
import { ClusterFixture, inPartition } from './cluster-fixture.ts'
import { GOODS_ID } from '../scripted-engine.ts'

test('any node sets a sink back: the others stop what they serve of it, and go on, also when it is refused', async () => {
  await using cluster = await ClusterFixture.create()
  const [a, b] = [await cluster.node([0]), await cluster.node([3])]
  await cluster.met(a, b)
  const replay = () => a.call('/api/sinks/goods/replay', { body: { lsn: '0/1' } })
  assert.equal((await replay()).status, 200)
  assert.deepEqual([a.engine.held, b.engine.held], [['stopped 3'], [`hold ${GOODS_ID} by a-replay`, `release ${GOODS_ID} by a-replay`]])
  a.engine.replayed = new EngineError('REPLAY_OUT_OF_WINDOW', 'it begins later')
  assert.equal((await replay()).status, 422)
  assert.equal(b.engine.held.at(-1), `release ${GOODS_ID} by a-replay`)
})

test('an ack of what comes again by a replay has no effect where it was delivered, and is sent again where that goes on', async () => {
  await using cluster = await ClusterFixture.create()
  const node = await cluster.node([0])
  await cluster.own(REWOUND, 1)
  await cluster.own(REWINDING, 2)
  const ack = async (partition: number) => {
    const { status, body } = await node.call('/api/http_pull_consumers/goods/ack', { body: { ack_ids: [inPartition(partition, 0).id] } })
    return [status, (body as { code?: string }).code]
  }
  assert.deepEqual(await ack(1), [200, undefined])
  assert.deepEqual(await ack(2), [503, 'PARTITION_MOVING'])
})
