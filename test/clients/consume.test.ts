/** What the client does about answers: those of the real API, and those that only a broken line or a proxy gives. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { consume, TailraceError, type Message } from '../../clients/typescript/consume.ts'
import { message, TOKEN } from '../api/scripted-engine.ts'
import { serve, waitingCount } from '../api/api-fixture.ts'
import { pass, until } from '../waiting.ts'
import { json, scripted, wire } from './scripted-service.ts'

/** Types as `tailrace types` writes them. */
type Goods = { id: number; title: string | null; stock: number | bigint }
type DeletedGoods = { id: number; title: null; stock: null }

test('a loop over messages acks them, gets typed rows, and what it has not begun goes back when it is left', async () => {
  await using s = await serve()
  const row = (id: string) => ({
    id,
    data: `{"record":{"id":1,"title":null,"stock":9007199254740993},"changes":null,"action":"insert","metadata":{}}`,
  })
  s.goods.push(row('a1'), row('a2'), row('a3'), row('a4'), row('a5'))
  let seen = 0
  for await (const one of consume<Goods, DeletedGoods>({ url: s.api.url, sink: 'goods', token: TOKEN })) {
    if (one.action === 'delete') assert.equal(one.record.title satisfies null, null)
    else assert.equal(one.record.stock satisfies number | bigint, 9007199254740993n, 'with all its digits')
    await one.ack()
    if (++seen === 3) break
  }
  assert.deepEqual(s.goods.acked, ['a1', 'a2', 'a3'])
  assert.deepEqual(s.goods.inFlight.size, 0, 'a4 and a5 went back')
  assert.equal(s.goods.ready.length, 2)
})

test('batches are acked whole by their token, and without what was settled one by one', async () => {
  const of = (...ids: string[]) => json({ data: ids.map((id) => wire(id)), ack_token: `token of ${ids.join()}` })
  await using s = await scripted([of('a', 'b'), of('c', 'd', 'e')])
  for await (const batch of consume(s.options).batches()) {
    const [first] = batch.messages
    if (first?.ack_id === 'c') await first.nack()
    await batch.ack()
    await batch.nack() // nothing is left of it
    if (first?.ack_id === 'c') break
  }
  assert.deepEqual([s.acked, s.nacked], [['token of a,b', 'd', 'e'], ['c']])
})

test('handlers run beside each other as far as it was asked for; their acks are gathered, and failures come again after a pause that grows', async () => {
  await using s = await serve()
  s.goods.push(...Array.from({ length: 60 }, (_, i) => message(`m${i}`)))
  const stop = new AbortController()
  const tries: number[] = []
  const errors: unknown[] = []
  let atWork = 0
  let most = 0
  await consume(
    { url: s.api.url, sink: 'goods', token: TOKEN, concurrency: 5, signal: stop.signal, onError: (error) => void errors.push(error) },
    async (one) => {
      most = Math.max(most, ++atWork)
      await pass(2, 'it works')
      atWork--
      if (one.ack_id === 'm7') tries.push(performance.now())
      if (one.ack_id === 'm7' && tries.length < 3) throw new Error('not yet')
      if (s.goods.acked.length >= 55 && tries.length === 3) stop.abort()
    },
  )
  assert.equal(most, 5)
  assert.deepEqual(new Set(s.goods.acked).size, 60)
  assert.equal(errors.length, 2)
  const [first = 0, second = 0, third = 0] = tries
  assert.ok(second - first > 450 && third - second > 900, `tried again after ${second - first} and ${third - second} ms`)
})

test('calls are tried again: a cut line, a proxy’s page, 503 and 429 with the pause that they ask for', async () => {
  await using s = await scripted([
    'reset',
    { status: 502, body: '<html>' },
    { status: 429, headers: { 'retry-after': '1' }, body: '{"summary":"busy","code":"TOO_MANY_WAITING","remedy":"wait"}' },
    json({ data: [wire('a')] }),
  ])
  const one = await firstOf(consume(s.options))
  assert.equal(one?.ack_id, 'a')
  assert.deepEqual(s.retries.map(({ error }) => [error.code, error.status, error.remedy]), [
    ['SERVICE_UNREACHABLE', undefined, 'Check that the service runs, its address and the network.'],
    ['HTTP_502', 502, undefined],
    ['TOO_MANY_WAITING', 429, 'wait'],
  ]) // prettier-ignore
  const [first = 0, second = 0, third = 0] = s.retries.map(({ delayMs }) => delayMs)
  assert.ok(
    first >= 100 && first <= 150 && second >= 200 && second <= 300 && third >= 1_000 && third <= 1_500,
    `${first} ${second} ${third}`,
  )
})

async function firstOf<T extends Message>(messages: AsyncIterable<T>): Promise<T | undefined> {
  for await (const one of messages) return one
  return undefined
}

test('an ack is tried again until it is answered', async () => {
  let refusals = 2
  const settle = () => (refusals-- > 0 ? { status: 503, body: '{"summary":"moving","code":"PARTITION_MOVING"}' } : json({ success: true }))
  await using s = await scripted([json({ data: [wire('a')] })], { settle })
  for await (const one of consume(s.options)) {
    await one.ack()
    break
  }
  assert.deepEqual([s.acked, s.retries.map(({ error }) => error.code)], [['a'], ['PARTITION_MOVING', 'PARTITION_MOVING']])
})

test('what the service refuses for good ends the reading with its code and remedy', async () => {
  await using s = await serve()
  const refused = (code: string, status: number) => (error: unknown) =>
    error instanceof TailraceError && error.code === code && error.status === status && typeof error.remedy === 'string'
  const wrong = { url: s.api.url, sink: 'goods', token: 'wrong' }
  await assert.rejects(
    consume(wrong, () => {}),
    refused('TOKEN_INVALID', 401),
  )
  await assert.rejects(firstOf(consume(wrong)), refused('TOKEN_INVALID', 401))
  await assert.rejects(
    consume({ ...wrong, token: TOKEN, sink: 'nosuch' }, () => {}),
    refused('NOT_FOUND', 404),
  )
  for (const options of [{ sink: '' }, { token: '' }, { batchSize: 0 }, { batchSize: 1_001 }, { waitForMs: -1 }, { concurrency: 0 }])
    await assert.rejects(
      consume({ ...wrong, ...options }, () => {}),
      { code: 'ARGUMENT_INVALID' },
    )
})

test('an ack that is refused for good ends the handling', async () => {
  await using s = await scripted([json({ data: [wire('a')] })], {
    settle: () => ({ status: 401, body: '{"summary":"no","code":"TOKEN_INVALID"}' }),
  })
  await assert.rejects(
    consume(s.options, () => {}),
    { code: 'TOKEN_INVALID' },
  )
})

test('a signal ends a handling: what is at work ends and is acked, what was not begun goes back before that', async () => {
  await using s = await scripted([json({ data: [wire('a')] }), json({ data: ['b', 'c', 'd'].map((id) => wire(id)) })])
  const { promise: work, resolve: end } = Promise.withResolvers<void>()
  const begun: string[] = []
  const handling = consume({ ...s.options, batchSize: 3 }, async ({ ack_id }) => {
    begun.push(ack_id)
    if (ack_id === 'b') await work
  })
  await until('b is at work', () => begun.includes('b'))
  s.stop.abort()
  await until('the others went back', () => s.nacked.length === 2)
  end()
  await handling
  assert.deepEqual(
    [begun, s.acked, s.nacked],
    [
      ['a', 'b'],
      ['a', 'b'],
      ['c', 'd'],
    ],
  )
})

test('a receive that waits is ended by the signal, and its place is free', async () => {
  await using s = await serve()
  const stop = new AbortController()
  const handling = consume({ url: s.api.url, sink: 'goods', token: TOKEN, signal: stop.signal }, () => {})
  await waitingCount(s.goods, 1)
  stop.abort()
  await handling
  await waitingCount(s.goods, 0)
})

test('a message whose time is over before it was begun is let go, for another client may have it', async () => {
  await using s = await scripted([json({ data: [wire('a')] }), json({ data: [wire('b'), wire('c')] })], { ackWaitMs: 300 })
  const begun: string[] = []
  await consume({ ...s.options, batchSize: 2 }, async ({ ack_id, expiresAt }) => {
    begun.push(ack_id)
    if (ack_id === 'b') await pass(expiresAt - Date.now() + 50, 'it works for too long')
    if (ack_id === 'b') s.stop.abort()
  })
  assert.deepEqual([begun, s.acked, s.nacked], [['a', 'b'], ['a', 'b'], []])
})

test('a message that comes again while it is worked on is worked on once', async () => {
  await using s = await scripted([json({ data: [wire('a')] }), json({ data: [wire('a')] }), json({ data: [wire('b')] })])
  const begun: string[] = []
  const { promise: another, resolve: went } = Promise.withResolvers<void>()
  await consume({ ...s.options, concurrency: 2 }, async ({ ack_id }) => {
    begun.push(ack_id)
    if (ack_id === 'a') return another
    went()
    s.stop.abort()
  })
  assert.deepEqual(
    [begun, s.acked.toSorted()],
    [
      ['a', 'b'],
      ['a', 'b'],
    ],
  )
})

test('what a transform returned stands in data', async () => {
  await using s = await scripted([json({ data: [{ ack_id: 'a', data: { price: 7 } }] })])
  for await (const one of consume<Goods, DeletedGoods, { price: number }>(s.options)) {
    assert.equal(one.data.price, 7)
    break
  }
})

test('a handler runs in the trace of who wrote the row, where the program has OpenTelemetry', async () => {
  const key = Symbol.for('opentelemetry.js.api.1')
  const global = globalThis as unknown as Record<symbol, unknown>
  let active = 'own'
  const context = {
    active: () => active,
    with: <T>(inner: string, work: () => T): T => {
      const before = active
      active = inner
      try {
        return work()
      } finally {
        active = before
      }
    },
  }
  const extract = (outer: string, carrier: object, getter: { get(from: object, key: string): unknown; keys(from: object): string[] }) =>
    `${outer}>${String(getter.get(carrier, 'traceparent'))} of ${getter.keys(carrier).join()}`
  global[key] = { context, propagation: { inject: () => undefined, extract } }
  try {
    const annotated = { ...wire('a'), metadata: { transaction_annotations: { user: 'u-9', traceparent: '00-x' } } }
    await using s = await scripted([json({ data: [annotated, { ...wire('b'), metadata: { transaction_annotations: null } }] })])
    const seen: string[] = []
    await consume(s.options, () => {
      if (seen.push(active) === 2) s.stop.abort()
    })
    assert.deepEqual([...seen].sort(), ['own', 'own>00-x of user,traceparent'])
    assert.deepEqual([...s.acked].sort(), ['a', 'b'])
  } finally {
    delete global[key]
  }
})

test('calls carry the trace of their program where it has OpenTelemetry', async () => {
  const key = Symbol.for('opentelemetry.js.api.1')
  const global = globalThis as unknown as Record<symbol, unknown>
  const inject = (context: unknown, carrier: object, setter: { set(carrier: object, key: string, value: string): void }) =>
    setter.set(carrier, 'traceparent', `00-${String(context)}-01`)
  global[key] = { context: { active: () => 'here' }, propagation: { inject } }
  try {
    await using s = await scripted([json({ data: [wire('a')] })])
    for await (const one of consume(s.options)) {
      await one.ack()
      break
    }
    assert.deepEqual(new Set(s.receiver.requests.map(({ headers }) => headers['traceparent'])), new Set(['00-here-01']))
  } finally {
    delete global[key]
  }
})
