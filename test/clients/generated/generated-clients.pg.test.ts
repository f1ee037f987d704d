/**
 * Programs with clients that generators made of the OpenAPI document, as the service serves it, against a service with a deployment of every kind of
 * resource. TypeScript always, Python and Go with --long: to make and compile theirs takes 10 s of CPU time, and minutes the first time.
 */
import assert from 'node:assert/strict'
import { mkdtempDisposable, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { Service, SLOT, TOKEN } from '../../faults/service.ts'
import { createDatabase, createState } from '../../services/postgres.ts'
import { HttpReceiver } from '../../services/http-receiver.ts'
import { gather, until } from '../../waiting.ts'
import { DDL, deploymentFile, type Sources } from './deployment.ts'
import { GENERATORS, run, type Generator } from './generators.ts'

const LONG = ['python', 'go']
const started = new AsyncDisposableStack()
let sources: Sources
let service: Service
let receiver: HttpReceiver
let file: string

type Answer = Readonly<{ status: number; body: any }> // oxlint-disable-line typescript/no-explicit-any
const config = (verb: 'plan' | 'apply', yaml: string) => service.post(`/api/config/${verb}`, { yaml }) as Promise<Answer>
const exported = async () => ((await service.get('/api/config/export?show-sensitive=true')) as Answer).body.yaml as string

before(async () => {
  const [shop, crm, warehouse] = await Promise.all([createDatabase(DDL.shop), createDatabase(DDL.crm), createDatabase(DDL.warehouse)])
  for (const one of [shop, crm, warehouse]) started.use(one)
  sources = { shop, crm, warehouse }
  const state = started.use(await createState())
  receiver = started.use(await HttpReceiver.start())
  file = deploymentFile(sources, { slot: SLOT, receiver: receiver.url, token: TOKEN })
  service = started.use(await Service.prepare({ source: shop.connection, stateUrl: state.url, sinks: [] }))
  const path = join(service.folder, 'deployment.yaml')
  await writeFile(path, file)
  service.setVariables({ CONFIG_FILE_PATH: path })
  await service.startReady()
  service.forgetConfigFile()
})
after(() => started.disposeAsync())

test('a deployment of every kind is taken from its file, and works; exported and planned, nothing of it changes', async () => {
  const { body } = (await service.get('/api/sinks')) as Answer
  assert.ok(body.data.length >= 20, `${body.data.length} sinks`)
  const paused = body.data.filter(({ status }: { status: string }) => status === 'paused').map(({ name }: { name: string }) => name)
  assert.equal(paused.length, 15) // 13 types that are not there yet, and the two that the file has paused
  for (const yaml of [file, await exported()]) {
    const planned = await config('plan', yaml)
    assert.deepEqual([planned.status, planned.body.changes], [200, []], JSON.stringify(planned.body).slice(0, 2000))
  }

  await sources.shop.query(`insert into goods values (4, 'nib', 7)`)
  const ids = (those: readonly { ack_id: string }[]) => those.map(({ ack_id }) => ack_id)
  const got = await gather('the rows of goods', async () => {
    const { body } = (await service.post('/api/http_pull_consumers/goods/receive', { batch_size: 10, wait_for: 4000 })) as Answer
    if (body.data.length > 0) await service.post('/api/http_pull_consumers/goods/ack', { ack_ids: ids(body.data) })
    return body.data as { ack_id: string; data: { id: number } }[]
  }, (those) => new Set(those.map(({ data }) => data.id)).size === 4) // prettier-ignore
  assert.deepEqual(
    got.map(({ data }) => data).toSorted((a, b) => a.id - b.id),
    [{ id: 1, name: 'pen', kind: 'VIP' }, { id: 2, name: 'ink', kind: 'new' }, { id: 3, name: null }, { id: 4, name: 'nib', kind: 'VIP' }], // prettier-ignore
  )
  const kept = () => sources.warehouse.query(`select record->>'name' as name from history.goods`)
  assert.deepEqual(await until('the history of goods', async () => (await kept()).length > 0 && kept()), [{ name: 'nib' }])
  await until('what the partner gets', () => receiver.requests.length === 2)
  assert.deepEqual(receiver.requests.map(({ method, path }) => `${method} ${path}`).toSorted(), [
    'PUT /partner/goods/2',
    'PUT /partner/goods/4',
  ])
})

for (const generator of GENERATORS) {
  const { language } = generator
  const isLeftOut = LONG.includes(language) && !process.env.TAILRACE_TEST_LONG
  const skip = isLeftOut && 'made with --long'
  test(`a program with the generated client for ${language} manages a source and its sinks, and reads`, { skip }, async (t) => {
    const tools = await generator.install().catch((error: Error) => error)
    if (tools instanceof Error) {
      const missing = `NO GENERATOR FOR ${language.toUpperCase()}: ${tools.message}`
      process.stderr.write(`\n${missing}\n\n`)
      return t.skip(missing.split('\n')[0])
    }
    receiver.requests.length = 0
    const former = await exported()
    const names = ((await service.get('/api/sinks')) as Answer).body.data.map(({ name }: { name: string }) => name)
    const seen = (await outcome(generator, tools)) as { pages: { listed: string[] } }
    seen.pages.listed.sort()
    const [slot, sink] = [`${language}_slot`, `${language}-pull`]
    assert.deepEqual(seen, {
      database: { name: `${language}-shop`, slots: [`${SLOT}_${slot}`], reached: true },
      tables: [
        { name: 'customers', primary_key: ['id'] },
        { name: 'goods', primary_key: ['id'] },
      ],
      pages: { listed: [...names, sink, `${language}-web`].toSorted(), pages: names.length + 2 },
      got: { name: sink, destination: 'sequin_stream', source: ['public.customers'] },
      edited: { batch_size: 45, annotations: { team: language } },
      states: ['paused', 'active'],
      records: [
        { id: 7, kind: 'VIP' },
        { id: 8, kind: 'new' },
      ],
      acked: true,
      backfill: { table: 'public.customers', rows: 2, completed: true },
      planned: 0,
      other: [{ resource_type: 'sink', action: 'update', name: sink }],
      refused: [
        { status: 422, code: 'VALIDATION_FAILED', fields: ['batch_size'] },
        { status: 401, code: 'TOKEN_INVALID', fields: [] },
        { status: 404, code: 'NOT_FOUND', fields: [] },
      ],
      deleted: [true, true, true, true],
    })
    assert.ok(receiver.requests.every(({ headers }) => headers['x-shop'] === language))
    assert.equal(await exported(), former, 'what it made, it took away')
  })
}

test('killed and started again without the file, the service exports the same deployment, byte by byte', async () => {
  const former = await exported()
  await service.kill()
  await service.startReady()
  assert.equal(await exported(), former)
  const planned = await config('plan', file)
  assert.deepEqual([planned.status, planned.body.changes], [200, []])
})

/** Makes a client of the document that the service serves. @returns what the scenario saw with it */
async function outcome(generator: Generator, tools: string): Promise<unknown> {
  await using made = await mkdtempDisposable(join(tmpdir(), `tailrace-client-${generator.language}-`))
  const document = join(made.path, 'openapi.json')
  await writeFile(document, await (await fetch(`${service.origin}/api/openapi.json`)).text())
  const command = await generator.build({ tools, document, folder: made.path })
  const { ssl: _, ...database } = sources.shop.connection
  const given = { url: service.origin, token: TOKEN, database, receiver: `${receiver.url}/in`, prefix: generator.language, slot: SLOT }
  return JSON.parse(await run(command, { cwd: made.path, env: { GIVEN: JSON.stringify(given) } }))
}
