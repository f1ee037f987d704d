/** What a request for a replay may say, and what it is answered. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { replayTarget } from '../../../api/sinks/replay-form.ts'
import { EngineError } from '../../../engine/errors.ts'
import { serve } from '../api-fixture.ts'
import { GOODS_ID, OTHER_TOKEN } from '../scripted-engine.ts'

const PATH = '/api/sinks/goods/replay'

test('a replay says a time, a position or an offset, and is answered where it begins', async () => {
  await using s = await serve()
  s.engine.replayed = { partitions: 4, messages: 1_234, from: { lsn: 0x16_b374_d848n, time: '2025-02-03T04:05:06.789012Z' } }
  const { status, body } = await s.call(PATH, { body: { lsn: '16/B374D848' } })
  assert.equal(status, 200)
  const from = { lsn: '16/B374D848', commit_lsn: 0x16_b374_d848, time: '2025-02-03T04:05:06.789012Z' }
  assert.deepEqual(body, { partitions: 4, messages: 1_234, from })
  for (const asked of [
    { lsn: from.commit_lsn },
    { lsn: String(from.commit_lsn) },
    { time: from.time },
    { time: '2025-02-03T05:05:06.789012+01:00' },
    { offset: 7 },
    { offset: 7, partition: 0, generation: 2 },
  ])
    assert.equal((await s.call(`/api/sinks/${GOODS_ID}/replay`, { body: asked })).status, 200)
  const lsn = 0x16_b374_d848n
  const fromUs = Date.UTC(2025, 1, 3, 4, 5, 6, 789) * 1_000 + 12
  assert.deepEqual(
    s.engine.replays.map(({ target }) => target),
    [{ lsn }, { lsn }, { lsn }, { fromUs }, { fromUs }, { offset: 7, partition: 0 }, { offset: 7, partition: 0, generation: 2 }],
  )
  s.engine.replayed = { partitions: 1, messages: 0, from: undefined }
  assert.deepEqual((await s.call(PATH, { body: { offset: 9 } })).body, { partitions: 1, messages: 0, from: null })
})

test('what is no place is refused with the field and the reason, and nothing is replayed', async () => {
  await using s = await serve()
  for (const [body, field, reason] of [
    [{}, 'time', /one of time, lsn and offset/],
    [{ time: null }, 'time', /one of time, lsn and offset/],
    [{ time: '2025-02-03T04:05:06Z', lsn: '0/1' }, 'lsn', /beside time/],
    [{ time: '2025-02-03T04:05:06' }, 'time', /with its zone/],
    [{ time: '2025-02-31' }, 'time', /with its zone/],
    [{ time: '2025-13-03T04:05:06Z' }, 'time', /with its zone/],
    [{ time: 1738555506 }, 'time', /with its zone/],
    [{ time: '2525-02-03T04:05:06Z' }, 'time', /future/],
    [{ lsn: '16-B374D848' }, 'lsn', /16\/B374D848/],
    [{ lsn: -1 }, 'lsn', /whole number/],
    [{ lsn: 1.5 }, 'lsn', /whole number/],
    [{ lsn: '99999999999999999999' }, 'lsn', /must be an LSN such as/],
    [{ offset: '7' }, 'offset', /whole number/],
    [{ offset: 7, partition: -1 }, 'partition', /whole number/],
    [{ offset: 7, generation: 0 }, 'generation', /from 1/],
    [{ lsn: '0/1', partition: 0 }, 'partition', /offset only/],
    [{ tme: 'x' }, 'tme', /not a field/],
  ] as const) {
    const { status, body: answer } = await s.call(PATH, { body })
    const errors = (answer as { validation_errors: Record<string, string[]> }).validation_errors
    assert.equal(status, 422, JSON.stringify(body))
    assert.match(errors[field]?.[0] ?? '', reason, JSON.stringify(body))
  }
  assert.equal((await s.call(PATH, { raw: '[]', method: 'POST' })).status, 400)
  assert.deepEqual(s.engine.replays, [])
})

test('where a sink has several partitions an offset needs its own', () => {
  const several = { partitions: 3 } as Parameters<typeof replayTarget>[1]
  assert.throws(() => replayTarget({ offset: 1 }, several), { code: 'VALIDATION_FAILED' })
  assert.deepEqual(replayTarget({ offset: 1, partition: 2 }, several), { offset: 1, partition: 2 })
})

test('what the engine refuses keeps its status and its words; another account has no such sink', async () => {
  await using s = await serve()
  for (const [code, status] of [
    ['REPLAY_OUT_OF_WINDOW', 422],
    ['REPLAY_RUNNING', 409],
    ['SINK_NOT_RUNNING', 503],
    ['PARTITION_MOVING', 503],
  ] as const) {
    s.engine.replayed = new EngineError(code, 'the replay window begins at noon', { time: 'noon' })
    const answer = await s.call(PATH, { body: { offset: 1 } })
    assert.equal(answer.status, status)
    if (status < 500) assert.match((answer.body as { summary: string }).summary, /begins at noon/)
  }
  assert.equal((await s.call(PATH, { body: { offset: 1 }, token: OTHER_TOKEN })).status, 404)
  assert.equal((await s.call(PATH, { body: { offset: 1 }, token: null })).status, 401)
})
