/** Files of Sequin with destinations that this version can't send to, on the real service. */
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { parse, stringify } from 'yaml'
import { Service } from '../faults/service.ts'
import { createDatabase, createState, type TestDatabase } from '../services/postgres.ts'
import { SECRETS, UNSENT } from '../services/sequin-destinations.ts'
import { until } from '../waiting.ts'

const FUNCTIONS = [{ name: 'topics', type: 'routing', sink_type: 'kafka', code: 'export default (action, record) => ({ topic: `t${record.id}` })' }] // prettier-ignore
const SINKS = UNSENT.map((destination) => ({
  name: `to-${destination.type}`,
  database: 'source',
  source: { include_tables: ['public.goods'] },
  destination,
  ...(destination.type === 'kafka' && { routing: 'topics' }),
}))
const FILE = { functions: FUNCTIONS, sinks: SINKS }
const started = new AsyncDisposableStack()
let source: TestDatabase
let state: TestDatabase
let service: Service

before(async () => {
  source = started.use(await createDatabase('create table goods (id int primary key)'))
  state = started.use(await createState())
  // the file of the start has one already
  const [first] = SINKS
  assert.ok(first)
  const options = { source: source.connection, stateUrl: state.url, functions: FUNCTIONS, sinks: [{ name: 'other' }, first] }
  service = started.use(await Service.prepare(options))
  await service.startReady()
})
after(() => started.disposeAsync())

type Answer = Readonly<{ status: number; body: any }> // oxlint-disable-line typescript/no-explicit-any
const config = (verb: 'plan' | 'apply', file: unknown) =>
  service.post(`/api/config/${verb}`, { yaml: typeof file === 'string' ? file : stringify(file) }) as Promise<Answer>
const exported = async (query = '') => ((await service.get(`/api/config/export${query}`)) as Answer).body.yaml as string

test('a start takes such a file, and the sink is paused and says why', async () => {
  const { body: sink } = (await service.get('/api/sinks/to-kafka')) as Answer
  assert.equal(sink.status, 'paused')
  const health = await until('its health', async () => {
    const { body } = (await service.get('/api/sinks/to-kafka')) as Answer
    return body.health.status === 'error' ? body.health : undefined
  })
  assert.deepEqual(health.checks[0], {
    name: 'Sink configuration',
    status: 'error',
    error: { code: 'DESTINATION_UNSUPPORTED', message: 'destination.type is "kafka", which is not supported yet' },
  })
  assert.match(service.log(), /the sink \\"to-kafka\\" is paused: destination.type is \\"kafka\\", which is not supported yet/)
  const { body: other } = (await service.get('/api/sinks/other')) as Answer
  assert.equal(other.status, 'active')
})

test('the plan tells of each, also where clients of Sequin look', async () => {
  const { status, body } = await config('plan', FILE)
  assert.equal(status, 200, JSON.stringify(body))
  for (const { type } of UNSENT) {
    const told = `the sink "to-${type}" is paused: destination.type is "${type}", which is not supported yet`
    for (const list of [body.notices, body.actions.map((action: { description: string }) => action.description)])
      assert.ok(list.some((notice: string) => notice.includes(told)), told) // prettier-ignore
  }
})

test('what was applied is exported as it was given, and planned again it is empty; secrets stay and are not shown', async () => {
  const { status, body } = await config('apply', FILE)
  assert.equal(status, 200, JSON.stringify(body))
  const whole = await exported('?show-sensitive=true')
  const sinks = new Map((parse(whole).sinks as { name: string }[]).map((sink) => [sink.name, sink]))
  for (const sink of SINKS) assert.deepEqual(sinks.get(sink.name), { ...sink, status: 'paused' })
  const shown = await exported()
  const answers = JSON.stringify([shown, body, (await service.get('/api/sinks')).body])
  const [{ text }] = await state.query<{ text: string }>(`select string_agg(r::text, '') as text from tailrace.sink r`) as [{ text: string }] // prettier-ignore
  for (const secret of SECRETS) {
    assert.ok(whole.includes(secret), secret)
    assert.ok(!answers.includes(secret) && !text.includes(secret) && !service.log().includes(secret), secret)
  }
  for (const file of [shown, whole, FILE]) {
    const plan = await config('plan', file)
    assert.equal(plan.status, 200, JSON.stringify(plan.body))
    assert.deepEqual(plan.body.changes.filter(({ action }: { action: string }) => action !== 'delete'), []) // prettier-ignore
    assert.equal((await config('apply', file)).status, 200)
  }
  assert.equal(await exported('?show-sensitive=true'), whole)
})

test('over the API no such sink is made, and none is resumed', async () => {
  for (const destination of UNSENT) {
    const { status, body } = (await service.post('/api/sinks', { name: 'another', database: 'source', destination })) as Answer
    assert.equal(status, 422)
    assert.match(
      String(body.validation_errors.destination.type),
      new RegExp(
        `is "${destination.type}", which is not supported yet: the sink "another" can have sequin_stream, webhook, elasticsearch, m`,
      ),
    )
  }
  const { status, body } = (await service.patch('/api/sinks/to-nats', { status: 'active' })) as Answer
  assert.equal(status, 422)
  assert.deepEqual(body.validation_errors, { status: [`can't be active: destination.type is "nats", which is not supported yet`] })
  const tested = (await service.post('/api/sinks/to-nats/test_connection', {})) as Answer
  assert.deepEqual([tested.status, tested.body.reason], [422, 'destination.type is "nats", which is not supported yet'])
  const { status: edited, body: sink } = (await service.patch('/api/sinks/to-nats', {
    status: 'disabled',
    destination: { port: 4223 },
  })) as Answer
  assert.equal(edited, 200)
  assert.equal(sink.destination.port, 4223)
  assert.equal(sink.destination.password, 'nat***********1')
  assert.match(await exported('?show-sensitive=true'), /nats-password-1/)
})
