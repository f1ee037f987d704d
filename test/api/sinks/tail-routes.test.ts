/** The route by which people look at what comes to a sink, over a scripted engine. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { OTHER_TOKEN } from '../scripted-engine.ts'
import { serve } from '../api-fixture.ts'
import { until } from '../../waiting.ts'

const TAIL = '/api/sinks/goods/messages/tail'

test('a look answers the messages as they are, byte for byte, and passes on what it was asked', async () => {
  await using s = await serve()
  const of =
    '"position":"1","table":"public.goods","action":"insert","commit_lsn":"1","commit_idx":0,"commit_timestamp":"2025-02-03T04:05:06Z"'
  const messages = [`{${of},"message":{"n":12345678901234567890}}`, `{${of},"message":null}`]
  s.engine.tailed = {
    messages,
    skipped: 3,
    dropped: 1,
    trimmed: 0,
    next: 'W11d',
  }
  const answer = await s.call(`${TAIL}?after=W10&limit=7&wait_for=2s`)
  assert.equal(answer.status, 200)
  assert.equal(answer.text, `{"data":[${messages.join()}],"skipped":3,"dropped":1,"trimmed":0,"next":"W11d"}`)
  const [{ signal: _, ...asked } = assert.fail()] = s.engine.tails
  assert.deepEqual(asked, { after: 'W10', limit: 7, waitMs: 2_000 })
})

test('what is asked wrongly is refused, and another account sees nothing', async () => {
  await using s = await serve()
  for (const query of ['limit=0', 'limit=1001', 'limit=x', 'wait_for=6m', 'wait_for=x'])
    assert.equal((await s.call(`${TAIL}?${query}`)).status, 400, query)
  assert.equal((await s.call('/api/sinks/nosuch/messages/tail')).status, 404)
  assert.equal((await s.call(TAIL, { token: OTHER_TOKEN })).status, 404)
  assert.equal((await s.call(TAIL, { token: null })).status, 401)
})

test('a look that waits ends when its client goes, and when the service stops', async () => {
  await using s = await serve()
  const signals: AbortSignal[] = []
  s.engine.tail = (_sinkId, { signal }) => {
    signals.push(signal)
    return new Promise((resolve) => signal.addEventListener('abort', () => resolve(s.engine.tailed)))
  }
  const client = new AbortController()
  const gone = s.call(TAIL, { signal: client.signal }).catch(() => 'gone')
  await until('it waits', () => signals.length === 1)
  client.abort()
  assert.equal(await gone, 'gone')
  await until('it has ended', () => signals[0]?.aborted)
  const waits = s.call(TAIL)
  await until('the next one waits', () => signals.length === 2)
  await s.api.stop()
  assert.equal((await waits).status, 200)
})
