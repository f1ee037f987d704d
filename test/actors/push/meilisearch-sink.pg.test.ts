/** A sink that sends to Meilisearch: order though tasks are done later, outages, and documents that nothing can be done with. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Egress } from '../../../engine/net/egress.ts'
import type { MeilisearchDestination } from '../../../sinks/meilisearch-settings.ts'
import type { Sink } from '../../../engine/state/resources.ts'
import { calmMs } from '../../services/calm-clock.ts'
import { Meilisearch, type MeilisearchOptions } from '../../services/meilisearch.ts'
import type { TestDatabase } from '../../services/postgres.ts'
import { inGroups } from './push-fixture.ts'
import { Fixture } from '../sink-fixture.ts'
import { queryOf, stateDatabase } from '../sink-state.ts'
import { until } from '../../waiting.ts'

class Bench implements AsyncDisposable {
  readonly f: Fixture
  readonly server: Meilisearch
  readonly db: TestDatabase
  readonly destination: MeilisearchDestination

  private constructor(f: Fixture, server: Meilisearch, db: TestDatabase, destination: MeilisearchDestination) {
    this.f = f
    this.server = server
    this.db = db
    this.destination = destination
  }

  /** @param settings index: none, and every message is refused before it is sent */
  static async open(
    settings: Partial<Sink> & { batch?: number; index?: string | null } = {},
    options: MeilisearchOptions = {},
  ): Promise<Bench> {
    const { batch = 10, index = 'items', ...sink } = settings
    const db = await stateDatabase()
    const server = await Meilisearch.start(options)
    const destination: MeilisearchDestination = {
      ...{ type: 'meilisearch', endpoint_url: server.url, index_name: index, primary_key: 'group', api_key: 'a-key' },
      ...{ batch_size: batch, timeout_seconds: 2 },
    }
    const bench = new Bench(await Fixture.open({ ...sink, destination }, { query: queryOf(db), start: false }), server, db, destination)
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

  /** The id of the last message of each group that the index knows. */
  get ids(): number[] {
    return [...this.server.documents('items').values()].map(({ record }) => (record as { id: number }).id).sort((a, b) => a - b)
  }
  async untilIds(ids: readonly number[]): Promise<void> {
    const wanted = ids.join()
    await this.server.until(() => this.server.openTasks === 0 && this.ids.join() === wanted)
  }
  parked(state: string) {
    return this.db.query<{ attempts: number; error: string }>(`select attempts, error from tailrace.parked where state = $1`, [state])
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.f[Symbol.asyncDispose]()
    await this.server[Symbol.asyncDispose]()
    await this.db[Symbol.asyncDispose]()
  }
}

const range = (count: number, from = 0) => Array.from({ length: count }, (_, i) => from + i)
const posts = ({ requests }: Meilisearch) => requests.filter(({ method }) => method === 'POST')

test('ten batches and more are on their way at once, and the last of each group is what stays', async () => {
  await using b = await Bench.open()
  b.server.hold()
  await b.f.append(inGroups(400, 200))
  await b.server.until(() => Number(b.f.sink.status().details?.['tasks']) >= 10)
  b.server.release()
  await b.untilIds(range(200, 200))
})

test('no group has two requests on their way', async () => {
  await using b = await Bench.open({}, { pace: { batchMs: 5, documentMs: 0 } })
  const seen = new Map<string, number>()
  let disorder = 0
  b.server.fault = ({ body, method }) => {
    if (method !== 'POST') return undefined
    for (const line of body.toString().trimEnd().split('\n')) {
      const { group, record } = JSON.parse(line) as { group: string; record: { id: number } }
      if ((seen.get(group) ?? -1) >= record.id) disorder++
      seen.set(group, record.id)
    }
    return undefined
  }
  await b.f.append(inGroups(600, 7))
  await b.untilIds(range(7, 593))
  assert.equal(disorder, 0)
})

test('a document that spoils its batches is parked alone, and delivered once the server takes it', async () => {
  await using b = await Bench.open()
  b.server.poison = (document) => document.get('group')?.value === 'g42'
  await b.f.append(inGroups(100, 100))
  await b.untilIds(range(100).filter((id) => id !== 42))
  await b.server.until(() => b.f.counts.parks === 1)
  const [row] = await b.parked('open')
  assert.deepEqual([row?.attempts, row?.error], [1, 'Index `items`: internal: a document that the server chokes on.'])
  b.server.poison = () => false
  await b.untilIds(range(100))
})

test('thousands that wait parked heal with few requests, as many messages in each as fit', async () => {
  await using b = await Bench.open({ batch: 100, index: null, max_memory_mb: 128 })
  await b.f.append(inGroups(2_000, 2_000))
  await b.f.counts.until(({ parks }) => parks === 2_000)
  assert.equal(posts(b.server).length, 0)
  b.server.hold() // what is due by itself before all are takes a few requests only
  b.f.update({ destination: { ...b.destination, index_name: 'items' } })
  await b.f.sink.edit('redeliver', 'failing')
  b.server.release()
  await b.untilIds(range(2_000))
  assert.ok(posts(b.server).length < 60, `${posts(b.server).length} requests`)
})

test('a server that is gone for a while costs nothing but time', async () => {
  await using b = await Bench.open()
  await b.f.append(inGroups(50, 50))
  await b.untilIds(range(50))
  await b.server.kill()
  await b.f.append(inGroups(50, 50, 50))
  await until('the destination is down', () => b.f.sink.status().details?.['destination'] === 'down')
  await b.server.start()
  const tookMs = await calmMs(() => b.untilIds(range(50, 50)))
  assert.ok(tookMs < 5_000, `${tookMs} ms`)
  assert.deepEqual([b.f.counts.parks, await b.parked('open')], [0, []])
})

test('a task that takes long is waited for: it is no silence for which others would be sent as probes', async () => {
  await using b = await Bench.open({ concurrency: 1 }, { pace: { batchMs: 3_200, documentMs: 0 } })
  await b.f.append(inGroups(20, 20))
  await b.server.until(() => b.server.tasks[0]?.status === 'processing')
  b.server.pace = { batchMs: 0, documentMs: 0 }
  await b.server.until(() => b.server.tasks[0]?.status === 'succeeded')
  assert.equal(posts(b.server).length, 1)
  await b.untilIds(range(20))
})

test('after a crash with tasks on their way the index comes to the same', async () => {
  await using b = await Bench.open()
  b.server.hold()
  await b.f.append(inGroups(300, 20))
  await b.server.until(() => b.server.openTasks >= 2)
  b.f.crash()
  await b.start()
  b.server.release()
  await b.untilIds(range(20, 280))
})
