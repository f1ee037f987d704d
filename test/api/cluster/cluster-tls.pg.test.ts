/** Processes of a cluster that ask each other over TLS, with certificates of an authority of their own. */
import assert from 'node:assert/strict'
import { copyFile, writeFile } from 'node:fs/promises'
import { after, before, test } from 'node:test'
import { Certificate, openAuthority } from '../../../api/http/certificate.ts'
import { createLogger } from '../../../engine/logger.ts'
import { TestAuthority } from '../../services/certificates.ts'
import { until } from '../../waiting.ts'
import { GOODS_ID } from '../scripted-engine.ts'
import { ClusterFixture, inPartition } from './cluster-fixture.ts'

const logger = createLogger({ level: 'silent', format: 'json' })
let ours: TestAuthority
let foreign: TestAuthority
before(async () => {
  ;[ours, foreign] = await Promise.all([TestAuthority.create(), TestAuthority.create()])
})
after(async () => {
  for (const authority of [ours, foreign]) await authority[Symbol.asyncDispose]()
})

test('a process takes messages of others over TLS, and only where their certificate has their address and is of the cluster’s authority', async () => {
  await using cluster = await ClusterFixture.create()
  using good = new Certificate(await ours.issue(['IP:127.0.0.1']), logger)
  using elsewhere = new Certificate(await ours.issue(['DNS:elsewhere.example']), logger)
  using strange = new Certificate(await foreign.issue(['IP:127.0.0.1']), logger)
  using authority = openAuthority(ours.file, logger)
  const asking = await cluster.node([0], { certificate: good, authority })
  const answering = await cluster.node([1], { certificate: good, authority })
  const misnamed = await cluster.node([2], { certificate: elsewhere, authority })
  const unknown = await cluster.node([3], { certificate: strange, authority })
  const inClear = await cluster.node([4], { authority })
  await cluster.met(asking, answering, misnamed, unknown, inClear)
  const nodes = asking.registry.peers
  assert.ok(nodes.every(({ address }) => address.startsWith('https://127.0.0.1:') || address === inClear.api.url))

  const ids = [1, 2, 3, 4].map((partition) => inPartition(partition, 0).id)
  const owners = [answering, misnamed, unknown, inClear]
  for (const [i, { goods }] of owners.entries()) goods.inFlight.set(ids[i] ?? '', inPartition(i + 1, 0))
  const ack = async (partition: number) => asking.whole.sink(GOODS_ID)?.ack([ids[partition - 1] ?? ''])
  await ack(1)
  await assert.rejects(ack(2), { code: 'PEER_UNREACHABLE', message: /ERR_TLS_CERT_ALTNAME_INVALID/ })
  await assert.rejects(ack(3), { code: 'PEER_UNREACHABLE', message: /SELF_SIGNED|UNABLE_TO_VERIFY/ })
  await ack(4) // a cluster moves to TLS one process after the other: the address says how each is reached
  assert.deepEqual(
    owners.map(({ goods }) => goods.acked),
    [[ids[0]], [], [], [ids[3]]],
  )
})

test('another authority of the cluster counts from when its file has it, without a restart', async () => {
  await using cluster = await ClusterFixture.create()
  using strange = new Certificate(await foreign.issue(['IP:127.0.0.1']), logger)
  const file = `${ours.file}.renewed`
  await copyFile(ours.file, file)
  const log: string[] = []
  const told = createLogger({ level: 'error', format: 'json', destination: { write: (line: string) => void log.push(line) } })
  using authority = openAuthority(file, told, 10)
  const asking = await cluster.node([0], { authority })
  const answering = await cluster.node([1], { certificate: strange, authority })
  await cluster.met(asking, answering)
  const { id } = inPartition(1, 0)
  answering.goods.inFlight.set(id, inPartition(1, 0))
  const ack = async () => asking.whole.sink(GOODS_ID)?.ack([id])
  await assert.rejects(ack(), { code: 'PEER_UNREACHABLE' })
  await writeFile(file, 'half of a renewal')
  await until('it is told', () => log.some((line) => line.includes('can’t be used: that of before counts on')))
  await assert.rejects(ack(), { code: 'PEER_UNREACHABLE' }, 'that of before counts on')
  await writeFile(file, ours.pem + foreign.pem)
  await until('the certificates of both are taken', () => ack().then(() => true, () => false)) // prettier-ignore
  assert.deepEqual(answering.goods.acked, [id])
  await copyFile(ours.file, file)
  answering.goods.inFlight.set(id, inPartition(1, 0))
  await until('those of the other one are refused again, also over what was open', () => ack().then(() => false, () => true)) // prettier-ignore
})
