/** `tailrace sinks replay`, also by its former word `sink`, as a user types it, against a served API. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { EngineError } from '../../engine/errors.ts'
import { serve } from '../api/api-fixture.ts'
import { GOODS_ID, TOKEN } from '../api/scripted-engine.ts'
import { tailrace } from './command.ts'

test('a replay is asked for by time, LSN or offset, and its answer is told in words', async () => {
  await using s = await serve()
  const there = ['--url', s.api.url, '--token', TOKEN]
  s.engine.replayed = { partitions: 2, messages: 15, from: { lsn: 0x20n, time: '2025-02-03T04:05:06.000000Z' } }
  const byTime = await tailrace('sinks', 'replay', 'goods', '--to', '2025-02-03T04:05:06Z', ...there)
  assert.deepEqual([byTime.code, byTime.err], [0, ''])
  assert.match(
    byTime.out,
    /"goods" is set back to 0\/20, committed at 2025-02-03T04:05:06\.000000Z: about 15 finished messages come again, in 2 partitions; what has been waiting comes as well/,
  )
  assert.equal((await tailrace('sink', 'replay', GOODS_ID, '--lsn', '0/20', ...there)).code, 0)
  s.engine.replayed = { partitions: 1, messages: 0, from: undefined }
  const byOffset = await tailrace('sink', 'replay', 'goods', '--offset', '7', '--partition', '0', '--generation', '3', ...there)
  assert.match(byOffset.out, /^Nothing has come to "goods" since/)
  assert.deepEqual(
    s.engine.replays.map(({ target }) => target),
    [{ fromUs: Date.UTC(2025, 1, 3, 4, 5, 6) * 1_000 }, { lsn: 0x20n }, { offset: 7, partition: 0, generation: 3 }],
  )
})

test('a refusal is told in its words, a wrong use with the right one', async () => {
  await using s = await serve()
  const there = ['--url', s.api.url, '--token', TOKEN]
  s.engine.replayed = new EngineError('REPLAY_OUT_OF_WINDOW', 'the replay window of sink "goods" begins at noon')
  const refused = await tailrace('sink', 'replay', 'goods', '--lsn', '0/1', ...there)
  assert.equal(refused.code, 1)
  assert.match(refused.err, /^tailrace sink: .*begins at noon/)
  for (const args of [
    ['replay', 'goods'],
    ['replay', '--lsn', '0/1'],
    ['reply', 'goods', '--lsn', '0/1'],
    ['replay', 'goods', '--lsn', '0/1', '--offset', '1'],
  ]) {
    const { code, err } = await tailrace('sink', ...args, ...there)
    assert.equal(code, 2)
    assert.match(err, /usage: tailrace sink replay NAME --to TIME/)
  }
  assert.match((await tailrace('sinks', 'replay', 'goods', '--offset', 'x', ...there)).err, /offset must be a whole number/)
  const other = await tailrace('sinks', 'pause', 'goods', '--lsn', '0/1', ...there)
  assert.deepEqual([other.code, other.err.split('\n')[0]], [2, '--lsn is of replay, not of pause'])
})
