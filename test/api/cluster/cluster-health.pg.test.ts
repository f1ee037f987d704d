/** How a sink is, asked of any node: what all nodes say of their parts of it, put together. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { wholeHealth } from '../../../api/cluster/cluster-health.ts'
import type { CheckStatus, Health } from '../../../engine/status.ts'
import { ClusterFixture } from './cluster-fixture.ts'

const part = (node: string, status: CheckStatus): { node: string; health: Health } => ({
  node,
  health: { name: 'Consumer health', status: 'healthy', checks: [{ name: 'Message delivery', status }] },
})

test('of each check the worst answer counts, and delivery anywhere is delivery', () => {
  const status = (...parts: CheckStatus[]) => wholeHealth(parts.map((one, at) => part(`node ${at}`, one)))?.status
  assert.equal(status('healthy', 'error', 'warning'), 'error')
  assert.equal(status('healthy', 'initializing'), 'initializing')
  assert.equal(status('stale', 'paused'), 'warning')
  assert.equal(wholeHealth([part('a', 'waiting'), part('b', 'healthy')])?.checks[0]?.status, 'healthy')
  assert.equal(wholeHealth([{ node: 'a', health: undefined }]), undefined)
})

test('a node shows what is wrong with a sink on another one, and which; one that does not answer is a warning', async () => {
  await using cluster = await ClusterFixture.create()
  const [a, b] = [await cluster.node([0]), await cluster.node([1])]
  await cluster.met(a, b)
  const health = async () => {
    const { body } = await a.call('/api/sinks/goods')
    return (body as { health: Health }).health
  }
  assert.equal((await health()).status, 'healthy')
  b.goods.status = 'error'
  const broken = await health()
  assert.equal(broken.status, 'error')
  assert.deepEqual(broken.checks, [
    { name: 'Sink configuration', status: 'error', error: { code: 'LOG_UNREACHABLE', message: 'no broker', node: b.registry.name } },
  ])
  const { body } = await a.call('/api/sinks')
  assert.equal((body as { data: { health: Health }[] }).data[0]?.health.status, 'error')
  await b.kill()
  const silent = await health()
  assert.deepEqual([silent.status, silent.checks.at(-1)?.name], ['warning', 'Nodes'])
})
