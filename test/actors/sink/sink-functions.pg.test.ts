/** Functions of a running pull sink: on a real log and a real state database, in a real sandbox. */
import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import type { Sink } from '../../../engine/state/resources.ts'
import type { SandboxKind } from '../../../engine/state/function-kinds.ts'
import type { StageFunction, StageFunctions, StageOptions } from '../../../transforms/stage.ts'
import { pool } from '../../transforms/function-fixture.ts'
import type { TestDatabase } from '../../services/postgres.ts'
import { acksOf, emptyState, Fixture, idsOf, stageOf } from '../sink-fixture.ts'
import { queryOf, stateDatabase } from '../sink-state.ts'
import { gather } from '../../waiting.ts'

const LONG_MS = 20_000
const shared = pool()
after(() => shared.stop())

const fn = (code: string, kind: SandboxKind = 'transform'): StageFunction => ({
  key: `${kind} ${code}`,
  name: 'mine',
  kind,
  code,
  usesMetadata: true,
})

/** A sink whose functions can be edited. */
class Functional {
  readonly f: Fixture
  #functions: StageFunctions

  private constructor(f: Fixture, functions: StageFunctions) {
    this.f = f
    this.#functions = functions
  }

  static async open(functions: StageFunctions, settings: Partial<Sink> = {}, db?: TestDatabase): Promise<Functional> {
    const f = await Fixture.open(settings, { query: db ? queryOf(db) : emptyState(), start: false })
    const opened = new Functional(f, functions)
    await opened.start()
    return opened
  }
  start(): Promise<void> {
    return this.f.start({ functions: (...given) => stageOf(this.#functions, shared)(...given) })
  }
  edit(functions: StageFunctions): void {
    this.#functions = functions
    this.f.update({})
  }
  async [Symbol.asyncDispose](): Promise<void> {
    await this.f[Symbol.asyncDispose]()
  }
}

type Made = { ack_id: string; data: unknown }
const made = async (f: Fixture, batchSize: number, waitMs = 0): Promise<Made[]> => (await f.receive(batchSize, waitMs)) as unknown as Made[]

test('what a transform returns stands under data in both shapes, with its ack_id, and is acknowledged as ever', async () => {
  await using s = await Functional.open({
    transform: fn('export default (a, r, c, m) => ({ n: r.id * 2, of: m.consumer.name, db: m.database.name })'),
  })
  await s.f.append([{ id: 1 }, { id: 2 }])
  const flat = await made(s.f, 1, LONG_MS)
  assert.deepEqual(flat, [{ ack_id: flat[0]?.ack_id, data: { n: 2, of: 'orders', db: 'shop' } }])
  const nested = JSON.parse(String((await s.f.receipt(1, LONG_MS, { shape: 'nested' })).body)) as { data: Made[] }
  assert.deepEqual(nested.data, [{ ack_id: nested.data[0]?.ack_id, data: { n: 4, of: 'orders', db: 'shop' } }])
  await s.f.pulled.ack([...flat, ...nested.data].map(({ ack_id }) => ack_id))
  assert.deepEqual(await s.f.receive(10), [])
})

test('the row that enriches a message is in its metadata, for the filter and for the client; without one it is null', async () => {
  await using db = await stateDatabase()
  const enricher: StageOptions['enricher'] = {
    enrich: async (messages) => {
      const ids = messages.map(({ view, place }) => Number(/"id":(\d+)/.exec(view.buffer.toString('utf8', view.bodyStart(place)))?.[1]))
      const failure = { code: 'ENRICHMENT_FAILED', name: 'names', kind: 'enrichment', text: 'no such column' } as const
      return {
        rows: ids.map((id) => (id === 3 ? undefined : Buffer.from(`{"id":${id},"name":"n${id}"}`))),
        failures: new Map(ids.flatMap((id, i) => (id === 4 ? [[i, failure] as const] : []))),
      }
    },
  }
  const filter = fn(`export default (a, r, c, m) => m.enrichment?.name !== 'n2'`, 'filter')
  await using f = await Fixture.open({}, { query: queryOf(db), start: false })
  await f.start({ functions: stageOf({ filter }, shared, { enricher }) })
  await f.append([1, 2, 3, 4].map((id) => ({ id })))
  const flat = (await f.gather(2)) as unknown as { metadata: { enrichment: unknown; database_name: string } }[]
  assert.deepEqual(
    flat.map(({ metadata }) => [metadata.enrichment, metadata.database_name]),
    [
      [{ id: 1, name: 'n1' }, 'shop'],
      [null, 'shop'],
    ],
  )
  assert.deepEqual(await f.receive(10), []) // 4 fails
  const health = () => f.sink.health().find(({ name }) => name === 'Message delivery')
  assert.equal(health()?.error?.message, 'enrichment "names": no such column')
  await f.append([{ id: 5 }])
  const { data } = JSON.parse(String((await f.receipt(1, LONG_MS, { shape: 'nested' })).body)) as { data: [{ data: (typeof flat)[0] }] }
  assert.deepEqual(data[0].data.metadata.enrichment, { id: 5, name: 'n5' })
})

test('any JSON value may be the result', async () => {
  await using s = await Functional.open({ transform: fn('export default (a, r) => [null, 7, "text", [1], false][r.id]') })
  await s.f.append([0, 1, 2, 3, 4].map((id) => ({ id })))
  const all = await gather<Made>('results', () => made(s.f, 10, LONG_MS), 5)
  assert.deepEqual(
    all.map(({ data }) => data),
    [null, 7, 'text', [1], false],
  )
})

test('what a filter drops never comes, wakes nobody, and stays finished without the filter', async () => {
  await using s = await Functional.open({ filter: fn('export default (a, r) => r.id % 10 === 0', 'filter') })
  const waiting = s.f.receive(1_000, LONG_MS)
  await s.f.append(Array.from({ length: 9 }, (_, i) => ({ id: i + 1 })))
  await s.f.append(Array.from({ length: 91 }, (_, i) => ({ id: i + 10 })))
  const got = await waiting
  assert.deepEqual(idsOf(got), [10, 20, 30, 40, 50, 60, 70, 80, 90, 100])
  await s.f.pulled.ack(acksOf(got))
  s.edit({})
  await s.f.sink.stop()
  await s.start()
  await s.f.append([{ id: 1_001 }])
  assert.deepEqual(idsOf(await s.f.receive(10, LONG_MS)), [1_001])
})

test('a message whose transform throws waits with its group, the others go on, and the mended function takes it', async () => {
  await using db = await stateDatabase()
  const bad = fn(
    'export default function transform(action, record) {\n  if (record.id === 2) throw new RangeError("not two")\n  return record.id\n}',
  )
  await using s = await Functional.open({ transform: bad }, {}, db)
  await s.f.append([{ id: 1 }, { id: 2, group: 'x' }, { id: 3, group: 'x' }, { id: 4 }])
  const got = await gather<Made>('the others', () => made(s.f, 10, LONG_MS), 2)
  assert.deepEqual(
    got.map(({ data }) => data),
    [1, 4],
  )
  await s.f.counts.until(({ parks }) => parks >= 1)
  const delivery = s.f.sink.health().find(({ name }) => name === 'Message delivery')
  assert.deepEqual(delivery, {
    name: 'Message delivery',
    status: 'error',
    error: { code: 'FUNCTION_FAILED', message: 'transform "mine": RangeError: not two (line 2, column 30)' },
  })
  const [row] = await db.query<{ error: string; attempts: number; attempt_log: { function: string; line: number }[] }>(
    `select error, attempts, attempt_log from tailrace.parked where state = 'open'`,
  )
  assert.equal(row?.error, 'transform "mine": RangeError: not two (line 2, column 30)')
  assert.deepEqual([row.attempts, row.attempt_log[0]?.function, row.attempt_log[0]?.line], [1, 'mine', 2])
  s.edit({ transform: fn('export default (a, r) => r.id') })
  const [mended] = await made(s.f, 10, LONG_MS)
  assert.equal(mended?.data, 2)
  await s.f.pulled.ack([mended.ack_id])
  assert.equal((await made(s.f, 10, LONG_MS))[0]?.data, 3)
  assert.equal(s.f.sink.health().find(({ name }) => name === 'Message delivery')?.status, 'healthy')
})

test('a message that fails as often as max_retry_count says is discarded with what the function said', async () => {
  await using db = await stateDatabase()
  await using s = await Functional.open({ transform: fn('export default (a, r) => r.no.such') }, { max_retry_count: 2 }, db)
  await s.f.append([{ id: 1, group: 'x' }])
  assert.deepEqual(await s.f.receive(10, 1_700), [])
  await s.f.counts.until(({ discards }) => discards === 1)
  const [row] = await db.query<{ error: string; attempts: number }>(`select error, attempts from tailrace.parked where state = 'discarded'`)
  assert.match(row?.error ?? '', /^transform "mine": TypeError: Cannot read properties of undefined/)
  assert.equal(row?.attempts, 2)
})

test('a filter that fails neither drops nor delivers, and says so', async () => {
  await using db = await stateDatabase()
  await using s = await Functional.open({ filter: fn('export default (a, r) => (r.id === 2 ? "true" : true)', 'filter') }, {}, db)
  await s.f.append([{ id: 1 }, { id: 3 }])
  assert.deepEqual(idsOf(await s.f.gather(2)), [1, 3])
  await s.f.append([{ id: 2 }])
  assert.deepEqual(await s.f.receive(10, 300), [])
  await s.f.counts.until(({ parks }) => parks >= 1)
  const filtering = s.f.sink.health().find(({ name }) => name === 'Message filtering')
  assert.equal(filtering?.status, 'error')
  assert.match(filtering?.error?.message ?? '', /returns true or false, this one returned a text/)
  s.edit({ filter: fn('export default (a, r) => r.id !== 2', 'filter') })
  await s.f.append([{ id: 4 }])
  assert.deepEqual(idsOf(await s.f.gather(1)), [4])
  assert.deepEqual(await s.f.receive(10, 1_500), [], 'the mended filter drops it')
  assert.equal((await db.query(`select from tailrace.parked where state = 'open'`)).length, 0)
})

test('an edit holds for what is processed after it, and nothing starts anew', async () => {
  await using s = await Functional.open({ transform: fn('export default (a, r) => ["old", r.id]') })
  await s.f.append([{ id: 1 }])
  assert.deepEqual((await made(s.f, 10, LONG_MS))[0]?.data, ['old', 1])
  const since = s.f.sink.status().since
  s.edit({ transform: fn('export default (a, r) => ["new", r.id]') })
  await s.f.append([{ id: 2 }])
  assert.deepEqual((await made(s.f, 10, LONG_MS))[0]?.data, ['new', 2])
  s.edit({})
  await s.f.append([{ id: 3 }])
  assert.deepEqual(idsOf(await s.f.receive(10, LONG_MS)), [3])
  assert.equal(s.f.sink.status().since, since)
})

test('what is with a function when the sink stops is with nobody: the next owner hands it out at once', async () => {
  await using s = await Functional.open({
    transform: fn('export default (a, r) => { const until = Date.now() + 900; while (Date.now() < until); return r.id }'),
  })
  await s.f.append([{ id: 1 }])
  const waiting = s.f.receive(10, LONG_MS)
  await s.f.counts.until(({ messages }) => messages === 1)
  await s.f.sink.stop()
  assert.deepEqual(await waiting, [])
  s.edit({})
  await s.start()
  assert.deepEqual(idsOf(await s.f.receive(10, LONG_MS)), [1])
})

test('receives that wait behind functions count for max_waiting', async () => {
  await using s = await Functional.open({ transform: fn('export default (a, r) => r.id') }, { max_waiting: 1 })
  const waiting = s.f.receive(10, LONG_MS)
  await assert.rejects(s.f.receive(10, 100), { code: 'TOO_MANY_WAITING' })
  await s.f.append([{ id: 1 }])
  assert.equal(((await waiting)[0] as unknown as Made).data, 1)
})
