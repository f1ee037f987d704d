/**
 * A sink that sends to a real Elasticsearch through a front that misbehaves where the server can't be brought to: what is
 * sent again, what is parked, what the message shows; and that the index is right in the end.
 */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Egress } from '../../../engine/net/egress.ts'
import type { ElasticsearchDestination } from '../../../sinks/elasticsearch-settings.ts'
import type { Sink } from '../../../engine/state/resources.ts'
import { calmMs, CalmClock } from '../../services/calm-clock.ts'
import { HttpReceiver, type Received, type Reply } from '../../services/http-receiver.ts'
import { inItsWords } from '../../services/search-flavor.ts'
import { SearchIndex } from '../../services/elasticsearch-client.ts'
import type { TestDatabase } from '../../services/postgres.ts'
import { destination } from '../../sinks/elasticsearch-bench.ts'
import { inGroups } from './push-fixture.ts'
import { Fixture } from '../sink-fixture.ts'
import { queryOf, stateDatabase } from '../sink-state.ts'
import { until } from '../../waiting.ts'

type Operation = Readonly<{ id: string; lines: string }>
/** undefined: it goes through */
type Whim = (operations: readonly Operation[], through: () => Promise<Reply>) => Reply | undefined | Promise<Reply | undefined>

class Bench implements AsyncDisposable {
  readonly f: Fixture
  readonly index: SearchIndex
  readonly front: HttpReceiver
  readonly db: TestDatabase
  whim: Whim = () => undefined
  /** identifiers of each request */
  readonly sent: (readonly string[])[] = []

  private constructor(f: Fixture, index: SearchIndex, front: HttpReceiver, db: TestDatabase) {
    this.f = f
    this.index = index
    this.front = front
    this.db = db
    front.handler = (request) => this.#take(request)
  }

  static async open(
    settings: Partial<ElasticsearchDestination> = {},
    options: { index?: object; sink?: Partial<Sink>; whim?: Whim } = {},
  ): Promise<Bench> {
    const db = await stateDatabase()
    const index = await SearchIndex.create(options.index)
    const front = await HttpReceiver.start()
    const to = destination(front.url, { index_name: index.name, batch_size: 10, timeout_seconds: 5, ...settings })
    const f = await Fixture.open({ ...options.sink, destination: to }, { query: queryOf(db), start: false })
    const bench = new Bench(f, index, front, db)
    if (options.whim) bench.whim = options.whim
    await bench.start()
    return bench
  }

  async start(): Promise<void> {
    await this.f.start({
      push: {
        egress: new Egress({ mode: 'private' }),
        endpoint: () => undefined,
        warn: () => undefined,
        maxMessageBytes: 64 * 1024 * 1024,
      },
    })
  }

  /** Appends so many messages of as many groups and waits until they are delivered. */
  async deliver(count: number): Promise<void> {
    await this.f.append(inGroups(count, count))
    await this.f.counts.until(({ acks }) => acks >= count)
  }
  /** The id of the last message of each group that the index knows. */
  async ids(): Promise<readonly number[]> {
    const documents = await this.index.documents()
    return documents.map(({ source }) => (source['record'] as { id: number }).id).sort((a, b) => a - b)
  }
  /** How often each document was sent. */
  get times(): ReadonlyMap<string, number> {
    const times = new Map<string, number>()
    for (const id of this.sent.flat()) times.set(id, (times.get(id) ?? 0) + 1)
    return times
  }
  parked() {
    return this.db.query<{ attempts: number; error: string; attempt_log: { status: number; body: string }[] }>(
      `select attempts, error, attempt_log from tailrace.parked where state = 'open'`,
    )
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.f[Symbol.asyncDispose]()
    await this.front[Symbol.asyncDispose]()
    await this.index[Symbol.asyncDispose]()
    await this.db[Symbol.asyncDispose]()
  }

  async #take(request: Received): Promise<Reply> {
    const operations = operationsOf(request)
    this.sent.push(operations.map(({ id }) => id))
    return (await this.whim(operations, () => this.pass(request, operations))) ?? this.pass(request, operations)
  }

  /** Asks the real server. */
  async pass({ path, headers }: Pick<Received, 'path' | 'headers'>, operations: readonly Operation[]): Promise<Reply> {
    const response = await fetch(`${this.index.endpoint}${path}`, {
      method: 'POST',
      headers: { authorization: headers.authorization ?? '', 'content-type': headers['content-type'] ?? '' },
      body: operations.map(({ lines }) => lines).join(''),
    })
    return { status: response.status, headers: { 'content-type': 'application/json' }, body: await response.text() }
  }
}

function operationsOf({ body }: Received): readonly Operation[] {
  const operations: Operation[] = []
  const lines = body.toString().split('\n').slice(0, -1)
  for (let n = 0; n < lines.length; n++) {
    const action = JSON.parse(lines[n] ?? '') as { index?: { _id: string }; delete?: { _id: string } }
    const { _id: id } = action.index ?? action.delete ?? { _id: '' }
    operations.push({ id, lines: action.index ? `${lines[n]}\n${lines[++n]}\n` : `${lines[n]}\n` })
  }
  return operations
}
const HANG: Reply = 'hang'
const range = (count: number, from = 0) => Array.from({ length: count }, (_, i) => from + i)
const REJECTED = { type: 'es_rejected_execution_exception', reason: 'rejected execution of primary operation' }

test('items that the server has no room for are sent again, and those beside them are not', async () => {
  await using b = await Bench.open({ batch_size: 100 })
  const refused = new Set(['g3', 'g4', 'g50'])
  b.whim = async (operations) => {
    if (!operations.some(({ id }) => refused.has(id))) return undefined
    const taken = operations.filter(({ id }) => !refused.has(id))
    const reply = (await b.pass({ path: `/${b.index.name}/_bulk`, headers: { ...b.front.requests[0]?.headers } }, taken)) as {
      body: string
    }
    const items = (JSON.parse(reply.body) as { items?: object[] }).items ?? []
    for (const [n, { id }] of operations.entries())
      if (refused.has(id)) items.splice(n, 0, { index: { _index: b.index.name, _id: id, status: 429, error: REJECTED } })
    refused.delete(operations.find(({ id }) => refused.has(id))?.id ?? '')
    return { body: JSON.stringify({ took: 1, errors: true, items }) }
  }
  await b.deliver(100)
  assert.deepEqual(await b.ids(), range(100))
  const often = [...b.times].filter(([, count]) => count > 1).map(([id]) => id)
  assert.deepEqual(often.toSorted(), ['g3', 'g4', 'g50'])
  assert.equal(b.f.counts.parks, 0)
})

test('what the server refuses without looking at the document is not given up, whatever max_retry_count says', async () => {
  let isRefused = true
  await using b = await Bench.open({ batch_size: 10 }, { sink: { max_retry_count: 1 } })
  b.whim = (operations) => {
    if (!isRefused || !operations.some(({ id }) => id === 'g3')) return undefined
    const error = { type: 'security_exception', reason: 'not yours' }
    const items = operations.map(({ id }) => ({ index: id === 'g3' ? { _id: id, status: 403, error } : { _id: id, status: 201 } }))
    return { headers: { 'content-type': 'application/json' }, body: JSON.stringify({ took: 1, errors: true, items }) }
  }
  await b.f.append(inGroups(10, 10))
  await b.f.counts.until(({ parks }) => parks === 1)
  const [row] = await b.parked()
  assert.deepEqual([row?.attempts, row?.error], [1, 'index of document "g3": security_exception: not yours'])
  isRefused = false
  await b.f.counts.until(({ acks }) => acks >= 10)
  assert.ok((await b.ids()).includes(3))
})

test('a server that is full is sent less, and no message is blamed for it', async () => {
  await using b = await Bench.open({ batch_size: 10 })
  // ten of them are more than it indexes at once
  await b.f.append(inGroups(20, 20).map((message) => ({ ...message, pad: 180_000 })))
  await b.f.counts.until(({ acks }) => acks >= 20)
  assert.deepEqual(await b.ids(), range(20))
  assert.equal(b.f.counts.parks, 0)
})

test('a body that is too large goes in halves, and later ones are smaller', async () => {
  await using b = await Bench.open({ batch_size: 10 })
  await b.f.append(inGroups(20, 20).map((message) => ({ ...message, pad: 300_000 })))
  await b.f.counts.until(({ acks }) => acks >= 20)
  assert.deepEqual(await b.ids(), range(20))
  assert.equal(b.f.counts.parks, 0)
  assert.ok(b.sent.slice(-2).every((ids) => ids.length <= 5))
})

test('a server that can not serve for a while parks nothing, and gets everything soon after it is back', async () => {
  await using b = await Bench.open()
  await b.deliver(20)
  let refusals = 0
  using clock = new CalmClock()
  let back = clock.now()
  b.whim = () => {
    if (++refusals <= 8)
      return { status: 503, body: '{"error":{"type":"master_not_discovered_exception","reason":"no master"},"status":503}' }
    if (refusals === 9) back = clock.now()
    return undefined
  }
  await b.f.append(inGroups(50, 50, 50))
  await b.f.counts.until(({ acks }) => acks >= 70)
  const tookMs = clock.since(back)
  assert.ok(tookMs < 5_000, `${tookMs} ms`)
  assert.deepEqual(await b.ids(), range(50, 50))
  assert.equal(b.f.counts.parks, 0)
})

test('what was taken in and answered too late is sent again, and nothing older stands over anything newer', async () => {
  await using b = await Bench.open({ timeout_seconds: 1 })
  let lost = 0
  b.whim = async (_, through) => {
    if (++lost > 3) return undefined
    await through()
    return 'hang'
  }
  await b.f.append(inGroups(60, 20))
  await b.f.counts.until(({ acks }) => acks >= 60)
  assert.deepEqual(await b.ids(), range(20, 40))
  assert.equal(b.f.counts.parks, 0)
})

test('of 1000 documents one that fits no mapping is parked with the server’s words, and delivered when it fits', async () => {
  const mappings = { properties: { record: { properties: { pad: { type: 'integer' } } } } }
  await using b = await Bench.open({ batch_size: 1000 }, { index: { mappings } })
  await b.f.append(inGroups(1000, 1000).map((message) => (message.id === 500 ? { ...message, pad: 3 } : message)))
  await b.f.counts.until(({ acks, parks }) => acks >= 999 && parks === 1)
  assert.deepEqual(
    await b.ids(),
    range(1000).filter((id) => id !== 500),
  )
  const [row] = await b.parked()
  assert.equal(row?.attempts, 1)
  assert.match(
    row?.error ?? '',
    inItsWords(
      /^index of document "g500": document_parsing_exception: .*failed to parse field \[record\.pad\] of type \[integer\]/,
      /^index of document "g500": mapper_parsing_exception: failed to parse field \[record\.pad\] of type \[integer\]/,
    ),
  )
  assert.deepEqual([row?.attempt_log[0]?.status, row?.attempt_log[0]?.body.includes('number_format_exception')], [400, true])
  assert.ok(b.times.get('g499') === 1)
  const mended = { record: { properties: { pad: { type: 'integer', ignore_malformed: true } } } }
  await b.index.ask('PUT', '/_mapping', { properties: mended })
  await b.f.counts.until(({ acks }) => acks >= 1000)
  assert.equal((await b.ids()).length, 1000)
})

test('thousands that wait parked heal in a few seconds once the mapping does, and one that is still wrong delays none of them', async () => {
  const mappings = { properties: { record: { properties: { pad: { type: 'integer' } } } } }
  await using b = await Bench.open({ batch_size: 100 }, { index: { mappings }, sink: { max_memory_mb: 128 } })
  await b.f.append(inGroups(3_000, 1_500).map((message) => (message.id < 1_500 ? { ...message, pad: 3 } : message)))
  await b.f.counts.until(({ parks }) => parks === 1_500)
  assert.deepEqual(await b.ids(), [])
  b.whim = (operations) => {
    if (!operations.some(({ id }) => id === 'g7')) return undefined
    return {
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({
        errors: true,
        items: operations.map(({ id }) => ({
          index:
            id === 'g7'
              ? { _id: id, status: 400, error: { type: 'strict_dynamic_mapping_exception', reason: 'no' } }
              : { _id: id, status: 201 },
        })),
      }),
    }
  }
  const mended = { record: { properties: { pad: { type: 'integer', ignore_malformed: true } } } }
  await b.index.ask('PUT', '/_mapping', { properties: mended })
  const { length } = b.sent
  const tookMs = await calmMs(async () => {
    assert.equal((await b.f.sink.edit('redeliver', 'failing')).edited > 0, true)
    await b.f.counts.until(({ acks }) => acks >= 2_998)
  })
  assert.ok(tookMs < 5_000, `${tookMs} ms`)
  assert.ok(b.sent.length - length < 100, `${b.sent.length - length} requests`)
})

test('an index that is missing, or whose shard is nowhere, stops nothing but time; health has the reason', async () => {
  await using b = await Bench.open({ timeout_seconds: 1 })
  await b.index.drop()
  await b.f.append(inGroups(20, 20))
  await until('the destination is down', () => b.f.sink.status().details?.['destination'] === 'down')
  assert.match(JSON.stringify(b.f.sink.health()), /index_not_found_exception: no such index/)
  const nowhere = { 'index.routing.allocation.require._name': 'nobody' }
  await b.index.ask('PUT', '?wait_for_active_shards=0&timeout=0s', { settings: { number_of_shards: 1, number_of_replicas: 0, ...nowhere } })
  await until('health tells of the silence', () => /no answer within/.test(JSON.stringify(b.f.sink.health())))
  await b.index.ask('PUT', '/_settings', { 'index.routing.allocation.require._name': null })
  await b.f.counts.until(({ acks }) => acks >= 20)
  assert.deepEqual(await b.ids(), range(20))
  assert.equal(b.f.counts.parks, 0)
})

test('after a crash with requests on their way the index comes to the same', async () => {
  await using b = await Bench.open({ timeout_seconds: 1 })
  let through = 0
  b.whim = async (_, pass) => {
    await pass()
    through++
    return HANG
  }
  await b.f.append(inGroups(100, 20))
  await b.front.until((requests) => requests.length >= 2)
  const { sink } = b.f
  b.f.crash()
  await sink.stop()
  await until('what it sent has come, before what follows', () => through >= b.sent.length)
  b.whim = () => undefined
  await b.start()
  await b.f.counts.until(({ acks }) => acks >= 100)
  assert.deepEqual(await b.ids(), range(20, 80))
})
