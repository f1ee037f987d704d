/** The clients against the running service: programs that are stopped and killed, and a service that is killed, lose nothing and keep the order. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Random } from '../faults/random.ts'
import { Service } from '../faults/service.ts'
import { createDatabase, createState, type TestDatabase } from '../services/postgres.ts'
import { pass, until } from '../waiting.ts'
import { withoutPython } from './python.ts'
import { PROGRAMS, ReaderProgram, type Handled } from './reader-program.ts'

const ROWS = 100
const VERSIONS = 8
const ALL = ROWS * VERSIONS
/** A message that was neither settled nor given back would come too late for the test. */
const FAR_MS = 600_000

for (const [language, program] of Object.entries(PROGRAMS)) {
  const options = { skip: language === 'Python' && withoutPython }
  test(
    `${language}: programs that are stopped by a signal handle each message once, and what they had not begun comes at once`,
    options,
    async () => {
      await using run = await start({ ack_wait_ms: FAR_MS })
      const { service, handled, writing } = run
      for (let stops = 0; handled.length < ALL; stops++) {
        await using reader = new ReaderProgram(program, service, { sink: 'rows', concurrency: 8, workMs: 20, handled })
        const before = handled.length
        await until('messages are handled', () => handled.length >= Math.min(before + 250, ALL))
        const { code, said } = await reader.end('SIGTERM')
        assert.deepEqual([code, said], [0, ''])
        assert.ok(stops < 50)
      }
      await writing
      assert.deepEqual(versionsOf(handled), inOrder(), 'each version of each row once, in order')
    },
  )

  test(`${language}: nothing is lost or out of order when the program and the service are killed again and again`, options, async () => {
    await using run = await start({ ack_wait_ms: 1_000 })
    const { service, handled, writing } = run
    const random = new Random(7)
    const seen = () => new Set(handled.map(({ id, v }) => id * 1_000 + v)).size
    for (let kills = 0; kills < 4; kills++) {
      const reader = new ReaderProgram(program, service, { sink: 'rows', concurrency: 8, workMs: 20, handled })
      const before = seen()
      await until('messages are handled', () => seen() >= Math.min(before + 100, ALL))
      if (kills % 2 === 0) await pass(random.int(0, 200), 'anywhere in its work')
      else {
        await service.kill()
        await service.startReady()
        const since = seen()
        await until('it goes on with the service that was killed', () => seen() > Math.min(since, ALL - 1))
      }
      await reader.end('SIGKILL')
    }
    await using reader = new ReaderProgram(program, service, { sink: 'rows', concurrency: 8, workMs: 20, handled })
    await writing
    await until(
      () => `all messages: ${seen()} of ${ALL}`,
      () => seen() === ALL,
    )
    assert.deepEqual((await reader.end('SIGTERM')).code, 0)
    for (const [id, versions] of Object.entries(versionsOf(handled))) {
      assert.deepEqual(
        versions,
        versions.toSorted((a, b) => a - b),
        `row ${id}`,
      ) // again is fine, back is not
      assert.deepEqual(new Set(versions), new Set(inOrder()[id]), `row ${id}`)
    }
  })
}

const inOrder = () => Object.fromEntries(Array.from({ length: ROWS }, (_, i) => [i, Array.from({ length: VERSIONS }, (_, v) => v)]))

/** The versions of each row in the order of their handling. */
function versionsOf(handled: readonly Handled[]): Record<string, number[]> {
  const versions: Record<string, number[]> = {}
  for (const { id, v } of handled) (versions[id] ??= []).push(v)
  return versions
}

/** A service with a sink whose rows are written meanwhile. */
async function start(sink: Readonly<{ ack_wait_ms: number }>) {
  await using stack = new AsyncDisposableStack()
  const source = stack.use(await createDatabase('create table row (id int primary key, v int)'))
  const state = stack.use(await createState())
  const sinks = [{ name: 'rows', tables: ['public.row'], ...sink }]
  const service = stack.use(await Service.prepare({ source: source.connection, stateUrl: state.url, sinks }))
  await service.startReady()
  const writing = write(source)
  const owned = stack.move()
  return { service, handled: [] as Handled[], writing, [Symbol.asyncDispose]: () => owned.disposeAsync() }
}

async function write(source: TestDatabase): Promise<void> {
  const client = await source.connect()
  await client.query(`insert into row select id, 0 from generate_series(0, ${ROWS - 1}) id`)
  for (let v = 1; v < VERSIONS; v++) {
    await client.query('update row set v = v + 1')
    await pass(300, 'the program reads meanwhile')
  }
}
