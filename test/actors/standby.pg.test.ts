/** Several processes and one source: one streams, the others stand by, and take over when it ends, however it ends. */
import assert from 'node:assert/strict'
import { fork, type ChildProcess } from 'node:child_process'
import { on, once } from 'node:events'
import { join } from 'node:path'
import { test } from 'node:test'
import { calmMs } from '../services/calm-clock.ts'
import { createDatabase, createState, type TestDatabase } from '../services/postgres.ts'
import { applyYaml, databaseEntry, startNode, type EngineNode } from './engine-node.ts'
import { gather, until } from '../waiting.ts'

const TAKEOVER_MS = 5_000

const config = (source: TestDatabase) => `
account: { name: shop }
databases: [${databaseEntry(source)}]
sinks:
  - { name: goods, database: shop, source: {}, destination: { type: sequin_stream } }
`

async function stage() {
  const stack = new AsyncDisposableStack()
  const state = stack.use(await createState())
  const source = stack.use(await createDatabase('create table goods (id int primary key)'))
  await applyYaml(state.connection, config(source))
  return { state, source, stack, [Symbol.asyncDispose]: () => stack.disposeAsync() }
}

/** Another process with the source, streaming. */
async function owner(state: TestDatabase): Promise<ChildProcess & AsyncDisposable> {
  const child = fork(join(import.meta.dirname, 'run-node.ts'), [JSON.stringify(state.connection)], {
    stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
  })
  await says(child, 'streaming')
  const end = async () => {
    if (child.exitCode !== null || child.signalCode !== null) return
    const exited = once(child, 'exit')
    child.kill('SIGKILL')
    await exited
  }
  return Object.assign(child, { [Symbol.asyncDispose]: end })
}

/** Settles when it says so; several messages may come at once. */
async function says(child: ChildProcess, state: string): Promise<void> {
  for await (const [message] of on(child, 'message')) if ((message as { state?: string }).state === state) return
}

const sourceOf = ({ engine }: EngineNode) => engine.actors().find(({ kind }) => kind === 'source')
const stateOf = (node: EngineNode, state: string) => until(`source ${state}`, async () => sourceOf(node)?.state === state)

/** What is written from now on comes out of this node. */
async function delivers(node: EngineNode, source: TestDatabase, id: number): Promise<void> {
  await source.query('insert into goods values ($1)', [id])
  const sink = await until('the sink runs', async () => node.engine.sink(node.cache.sinks[0]?.id ?? ''))
  const next = async () => {
    const { body, count } = await sink.receive({ batchSize: 100, waitMs: 30_000, shape: 'flat', signal: new AbortController().signal })
    assert.ok(count > 0, 'nothing came in 30 s')
    return [body]
  }
  await gather<Buffer>(`row ${id}`, next, (bodies) => bodies.some((body) => body.includes(`"record":{"id":${id}}`)))
}

test('a standby is ready, and says in status, log and metrics which node has the source', async () => {
  await using s = await stage()
  await using first = await startNode({ name: 'first', state: s.state.connection })
  await stateOf(first, 'streaming')
  await using second = await startNode({ name: 'second', state: s.state.connection })
  await second.logged(({ message }) => message === 'standby: the source is held by node first')
  assert.equal(sourceOf(second)?.state, 'standby')
  await until('the owner has its name', async () => sourceOf(second)?.details?.['heldBy'] === 'first')
  await until('ready', async () => second.engine.ready().ready)
  const ids = first.cache.databases.map(({ id }) => id)
  await until('the owner knows the slot', async () => (await first.engine.databaseSights(ids))[ids[0] ?? '']?.slot)
  assert.deepEqual(await second.engine.databaseSights(ids), {}, 'the owner says how the database is')
  const [of1, of2] = [await first.metrics.text(), await second.metrics.text()]
  assert.match(of1, /^tailrace_source_owner\{.*\} 1$/m)
  assert.match(of1, /^sequin_entity_health\{entity_type="replication_slot".*status="ok"\} 1$/m)
  assert.match(of2, /^tailrace_source_owner\{.*\} 0$/m)
  assert.doesNotMatch(of2, /replication_slot"/, 'the owner says how the slot is')
  assert.match(of1, /^tailrace_partition_owner\{.*partition="0",node="first"\} 1$/m)
})

test('after SIGKILL of the owner a standby streams within five seconds', async () => {
  await using s = await stage()
  await using child = await owner(s.state)
  await using standby = await startNode({ name: 'standby', state: s.state.connection })
  await stateOf(standby, 'standby')
  await s.source.query('insert into goods values (1)') // goes to the owner
  const tookMs = await calmMs(() => {
    child.kill('SIGKILL')
    return delivers(standby, s.source, 2)
  })
  assert.ok(tookMs < TAKEOVER_MS, `${tookMs} ms`)
  assert.equal(sourceOf(standby)?.state, 'streaming')
})

test('after a clean stop of the owner a standby streams at once', async () => {
  await using s = await stage()
  await using child = await owner(s.state)
  await using standby = await startNode({ name: 'standby', state: s.state.connection })
  await stateOf(standby, 'standby')
  const exited = once(child, 'exit')
  child.kill('SIGTERM')
  await exited
  const tookMs = await calmMs(() => stateOf(standby, 'streaming'))
  assert.ok(tookMs < 1_500, `${tookMs} ms`)
})

test('a frozen owner loses the source within five seconds, and stands by when it thaws', async () => {
  await using s = await stage()
  await using child = await owner(s.state)
  await using standby = await startNode({ name: 'standby', state: s.state.connection })
  await stateOf(standby, 'standby')
  const tookMs = await calmMs(() => {
    child.kill('SIGSTOP')
    return delivers(standby, s.source, 1)
  })
  assert.ok(tookMs < TAKEOVER_MS, `${tookMs} ms`)
  const thawed = says(child, 'standby')
  child.kill('SIGCONT')
  await thawed
  await delivers(standby, s.source, 2)
})

test('a source that nobody live holds is not ready on the standby either', async () => {
  await using s = await stage()
  await using first = await startNode({ name: 'first', state: s.state.connection })
  await stateOf(first, 'streaming')
  await using second = await startNode({ name: 'second', state: s.state.connection })
  await stateOf(second, 'standby')
  await until('ready', async () => second.engine.ready().ready)
  await s.state.query(`update tailrace.term set holder = 'a program that nobody knows' where kind = 'source'`)
  const waiting = await until('not ready', async () => second.engine.ready().waiting[0])
  assert.deepEqual([waiting.kind, waiting.name, waiting.state], ['database', 'shop', 'standby'])
})
