/**
 * Programs with clients that generators made of the OpenAPI document, as the service serves it, against the service. TypeScript always, Python and Go
 * with --long: to make and compile theirs takes 10 s of CPU time, and minutes the first time.
 */
import assert from 'node:assert/strict'
import { mkdtempDisposable, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { Service, SLOT, TOKEN } from '../../faults/service.ts'
import { createDatabase, createState, type TestDatabase } from '../../services/postgres.ts'
import { HttpReceiver } from '../../services/http-receiver.ts'
import { GENERATORS, run, type Generator } from './generators.ts'

const LONG = ['python', 'go']
const started = new AsyncDisposableStack()
let source: TestDatabase
let service: Service
let receiver: HttpReceiver

before(async () => {
  source = started.use(
    await createDatabase(`create table goods (id int primary key, name text); insert into goods values (1, 'pen'), (2, 'ink'), (3, null)`),
  )
  const state = started.use(await createState())
  receiver = started.use(await HttpReceiver.start())
  service = started.use(await Service.prepare({ source: source.connection, stateUrl: state.url, sinks: [{ name: 'other' }] }))
  await service.startReady()
})
after(() => started.disposeAsync())

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
    const seen = (await outcome(generator, tools)) as { pages: { listed: string[] } }
    seen.pages.listed.sort()
    const [slot, sink] = [`${language}_slot`, `${language}-pull`]
    assert.deepEqual(seen, {
      database: { name: `${language}-shop`, slots: [`${SLOT}_${slot}`], reached: true },
      tables: [{ name: 'goods', primary_key: ['id'] }],
      pages: { listed: ['other', sink, `${language}-web`].toSorted(), pages: 3 },
      got: { name: sink, destination: 'sequin_stream', source: ['public.goods'] },
      edited: { batch_size: 45, annotations: { team: language } },
      states: ['paused', 'active'],
      records: [
        { id: 1, name: 'pen' },
        { id: 2, name: 'ink' },
        { id: 3, name: null },
      ],
      acked: true,
      backfill: { table: 'public.goods', rows: 3, completed: true },
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
  })
}

/** Makes a client of the document that the service serves. @returns what the scenario saw with it */
async function outcome(generator: Generator, tools: string): Promise<unknown> {
  await using made = await mkdtempDisposable(join(tmpdir(), `tailrace-client-${generator.language}-`))
  const document = join(made.path, 'openapi.json')
  await writeFile(document, await (await fetch(`${service.origin}/api/openapi.json`)).text())
  const command = await generator.build({ tools, document, folder: made.path })
  const { ssl: _, ...database } = source.connection
  const given = { url: service.origin, token: TOKEN, database, receiver: `${receiver.url}/in`, prefix: generator.language, slot: SLOT }
  return JSON.parse(await run(command, { cwd: made.path, env: { GIVEN: JSON.stringify(given) } }))
}
