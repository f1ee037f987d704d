import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Ajv2020 } from 'ajv/dist/2020.js'
import { EngineError } from '../../engine/errors.ts'
import { DATABASE, GOODS_ID, message, OTHER, RECORD, SHOP } from './scripted-engine.ts'
import type { StreamStatus } from '../../engine/status.ts'
import { serve } from './api-fixture.ts'

test('liveness, readiness and version answer anyone; readiness counts what does not stream, without a name', async () => {
  await using s = await serve()
  const ask = (path: string) => s.call(path, { token: null })
  assert.deepEqual((await ask('/health')).body, { ok: true, rev: '9.9.9' })
  assert.deepEqual((await ask('/api/info/version')).body, { version: '9.9.9' })
  assert.deepEqual((await ask('/info/version')).body, { version: '9.9.9' })
  assert.deepEqual([(await ask('/health/ready')).status, (await ask('/health/ready')).body], [200, { ok: true, waiting: [], disabled: 0 }])
  s.engine.readiness = {
    ready: false,
    waiting: ['shop', 'other'].map((name) => ({ kind: 'source', name, state: 'waiting', code: 'SOURCE_UNREACHABLE', reason: 'pg.internal:5432 refused' })), // prettier-ignore
    disabled: 3,
  }
  const notReady = await ask('/health/ready')
  assert.deepEqual(
    [notReady.status, notReady.body],
    [503, { ok: false, waiting: [{ kind: 'source', state: 'waiting', code: 'SOURCE_UNREACHABLE', count: 2 }], disabled: 3 }],
  )
  assert.equal((await ask('/health')).status, 200, 'a database that is down restarts no process')
})

test('the root says what this is, to anyone', async () => {
  await using s = await serve()
  const { status, body } = await s.call('/', { token: null, headers: { accept: 'text/html,*/*;q=0.8' } })
  const { name, openapi } = body as { name: string; openapi: string }
  assert.deepEqual([status, name], [200, 'Tailrace'])
  assert.equal((await s.call(openapi, { token: null })).status, 200)
})

test('info shows every stream and actor of the account with its state and last error, without secrets', async () => {
  await using s = await serve()
  const at = new Date('2025-02-03T04:05:06Z')
  s.engine.statuses = [
    { id: 'supervisor', kind: 'supervisor', state: 'running' },
    {
      id: 'source/1',
      kind: 'source',
      name: 'shop',
      accountId: SHOP.id,
      state: 'waiting',
      since: at,
      lastError: { error: new EngineError('STOPPING', 'to postgres://u:hunter2@h/d'), at },
      details: { attempt: 3 },
    },
    { id: 'source/2', kind: 'source', name: 'theirs', accountId: OTHER.id, state: 'streaming' },
  ]
  const stream: StreamStatus = {
    ...{ topic: 'stream.1.a', accountId: SHOP.id, databaseId: DATABASE.id, database: 'shop' },
    ...{ partitions: 1, selects: 'public.goods', bytes: 90.4 },
    readers: [
      {
        ...{
          sinkId: GOODS_ID,
          sink: 'goods',
          status: 'paused',
          generation: 2,
          state: 'reading',
          backlogBytes: 40,
          othersBytes: 3,
          heldBytes: 50,
        },
        partitions: [{ partition: 0, committed: 7, line: 5, backlogBytes: 40, othersBytes: 3, heldBytes: 50 }],
      },
    ],
  }
  s.engine.streamStatuses = [stream, { ...stream, accountId: OTHER.id, topic: 'theirs' }]
  assert.equal((await s.call('/info', { token: null })).status, 401)
  const { body } = await s.call('/info')
  assert.deepEqual(body, {
    version: '9.9.9',
    streams: [
      {
        ...{ topic: 'stream.1.a', database_id: DATABASE.id, database: 'shop', partitions: 1, selects: 'public.goods', bytes: 90 },
        readers: [
          {
            ...{
              sink_id: GOODS_ID,
              sink: 'goods',
              status: 'paused',
              generation: 2,
              state: 'reading',
              backlog_bytes: 40,
              others_bytes: 3,
              held_bytes: 50,
            },
            partitions: [{ partition: 0, committed: 7, line: 5, backlog_bytes: 40, others_bytes: 3, held_bytes: 50 }],
          },
        ],
      },
    ],
    nodes: [
      {
        id: 'id-1',
        name: 'node-1',
        address: null,
        version: '9.9.9',
        reachable: true,
        ready: true,
        sources: [],
        partitions: [],
        actors: [
          { id: 'supervisor', kind: 'supervisor', name: null, state: 'running', since: null, last_error: null, details: {} },
          {
            id: 'source/1',
            kind: 'source',
            name: 'shop',
            state: 'waiting',
            since: '2025-02-03T04:05:06.000Z',
            last_error: { code: 'STOPPING', message: 'to postgres://[redacted]@h/d', at: '2025-02-03T04:05:06.000Z' },
            details: { attempt: 3 },
          },
        ],
      },
    ],
  })
})

type Operation = {
  operationId: string
  parameters: { name: string }[]
  requestBody?: { content: Record<string, { schema: object }> }
  responses: Record<string, { content: Record<string, { schema: object }> }>
}

const ENDPOINT = { kind: 'external', url: 'http://x/', headers: {}, encryptedHeaders: { authorization: 'Bearer abcdefgh' } } as const
/** what a path names, where it isn't a sink */
const NAMED: Readonly<Record<string, string>> = { postgres_databases: DATABASE.id, http_endpoints: 'hooks' }
/** bodies that an operation needs */
const SENT: Readonly<Record<string, object>> = {
  createSink: { name: 'new', database: DATABASE.name, destination: { type: 'webhook', http_endpoint: 'hooks' } },
  createHttpEndpoint: { name: 'new', url: 'https://example.com' },
  replaySink: { lsn: '0/1' },
  redeliverMessages: { state: 'failing' },
  acknowledgeMessages: { ids: [RECORD.id] },
  discardMessages: { state: 'open' },
}

test('the OpenAPI document describes what is served: answers fit its schemas', async () => {
  await using s = await serve()
  s.goods.push(message('a1'), message('a2'), message('a3'))
  s.engine.databases = [DATABASE]
  await s.engine.createEndpoint(SHOP, { ...ENDPOINT, name: 'hooks' })
  s.engine.gaps.set(DATABASE.id, 'a gap')
  s.engine.records.set(GOODS_ID, [RECORD])
  const { body } = await s.call('/api/openapi.json', { token: null })
  const { openapi, paths, components } = body as {
    openapi: string
    paths: Record<string, Record<string, Operation>>
    components: { schemas: { Error: object } }
  }
  assert.equal(openapi, '3.1.0')
  const ajv = new Ajv2020({ strict: false, formats: { uuid: true, 'date-time': true } })
  const fits = (schema: object, value: unknown) => ajv.validate({ ...schema, components }, value) // what it refers to is of the document
  const ids = Object.values(paths).flatMap((methods) => Object.values(methods).map((operation) => operation.operationId))
  assert.equal(new Set(ids).size, ids.length, 'operation ids are unique')
  for (const [path, methods] of Object.entries(paths)) {
    if (path.startsWith('/api/change_retentions') || path.endsWith('/verify')) continue // the scripted engine has none, and no tables to read
    for (const [method, operation] of Object.entries(methods)) {
      const kind = Object.keys(NAMED).find((part) => path.includes(part)) ?? ''
      const place = path.replace('{id_or_name}', method === 'delete' ? 'gone' : (NAMED[kind] ?? GOODS_ID)).replace('{message}', RECORD.id)
      s.engine.add({ id: '88888888-8888-4888-8888-888888888888', name: 'gone' })
      await s.engine.createEndpoint(SHOP, { ...ENDPOINT, name: 'gone' })
      const sent = operation.requestBody && (path.endsWith('ack') ? { ack_ids: ['a1'] } : (SENT[operation.operationId] ?? {}))
      const answer = await s.call(place, { method: method.toUpperCase(), ...(sent && { body: sent }) })
      const schema = operation.responses['200']?.content['application/json']?.schema ?? assert.fail(path)
      assert.equal(answer.status, 200, `${method} ${path}`)
      assert.ok(fits(schema, answer.body), `${method} ${path}: ${ajv.errorsText()}`)
      if (operation.requestBody && sent) assert.ok(fits(operation.requestBody.content['application/json']?.schema ?? {}, sent))
    }
  }
  s.engine.readiness = { ready: false, waiting: [{ kind: 'source', name: 'shop', state: 'waiting' }], disabled: 0 }
  const negative = paths['/health/ready']?.['get']?.responses['503']?.content['application/json']?.schema ?? assert.fail('no 503')
  assert.ok(fits(negative, (await s.call('/health/ready')).body), ajv.errorsText())
  for (const [path, options] of [
    ['/api/sinks/none', {}],
    ['/api/sinks', { token: null }],
    ['/api/sinks/goods', { method: 'PATCH', body: { status: 1 } }],
    ['/api/http_pull_consumers/goods/ack', { raw: '{' }],
  ] as const) {
    const answer = await s.call(path, options)
    assert.ok(fits(components.schemas.Error, answer.body), answer.text)
  }
})
