/** Edits of a sink against a real state and source. */
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { Engine } from '../../actors/engine.ts'
import { newSink } from '../../actors/resources/sink-form.ts'
import { openEmbeddedLog } from '../../engine/log/embedded.ts'
import { createLogger } from '../../engine/logger.ts'
import { Metrics } from '../../engine/metrics.ts'
import { Egress } from '../../engine/net/egress.ts'
import { ResourceCache } from '../../engine/state/resource-cache.ts'
import { ResourceStore, type InputOf } from '../../engine/state/resource-store.ts'
import { ResourceEdits } from '../../actors/resources/resource-edits.ts'
import { Vault } from '../../engine/state/secrets.ts'
import type { Query } from '../../engine/postgres/query.ts'
import { TokenMemory } from '../../engine/state/token-memory.ts'
import { openStore, type Store } from '../../engine/state/store.ts'
import { createDatabase, createState } from '../services/postgres.ts'
import { FunctionPool } from '../../transforms/sandbox/pool.ts'
import { STORED_DESTINATIONS } from '../../sinks/destination-types.ts'

/** A sink "orders" of everything, and as many more as are asked for, in an engine whose actors do not run. */
async function stage({ more = 0 } = {}) {
  const stack = new AsyncDisposableStack()
  const source = stack.use(await createDatabase('create table goods (id int primary key, size int); create schema sales'))
  const state = stack.use(await createState())
  const asked: string[] = []
  const store = countedStore(stack.use(await openStore(state.connection, 3, () => {})), asked)
  const folder = await mkdtemp(join(tmpdir(), 'tailrace-engine-'))
  stack.defer(() => rm(folder, { recursive: true, force: true }))
  const log = stack.use(await openEmbeddedLog(folder, { reserveBytes: () => 0 }))
  const resources = new ResourceStore(new Vault(randomBytes(32)), { destinations: STORED_DESTINATIONS })
  await store.transaction(async (query) => {
    const account = await resources.saveAccount(query, 'main')
    const named = { name: 'shop', poolSize: 1, annotations: {}, slotName: 's', publicationName: 'p' }
    await resources.save(query, 'database', { account, input: { ...named, connection: source.connection } })
    for (const name of ['orders', ...Array.from({ length: more }, (_, i) => `orders-${i}`)])
      await resources.save(query, 'sink', { account, input: newSink({ name, database: 'shop', destination: { type: 'stream' } }) })
  })
  const cache = new ResourceCache(await resources.load(store.query))
  const metrics = new Metrics({ version: '0', processMetrics: false })
  const logger = createLogger({ level: 'error', format: 'json' })
  const engine = new Engine({
    store,
    resources,
    cache,
    log,
    metrics,
    logger,
    functions: new FunctionPool({ threads: 1, memoryMb: 512 }), // starts nothing unless a sink has functions
    egress: new Egress({ mode: 'private' }),
    tokens: new TokenMemory({ query: store.query, onError: () => undefined }),
    nodes: { id: 'this', live: new Map(), nameOf: async () => undefined },
  })
  const edits = new ResourceEdits({ store, resources, cache, takeIn: (stored) => engine.reload(stored) })
  const edit = (changes: Partial<InputOf<'sink'>>) => edits.update('sink', cache.sinks[0]?.id ?? '', changes)
  return { source, cache, edit, asked, [Symbol.asyncDispose]: () => stack.disposeAsync() }
}

/** @param asked gets what passes: the first words of each statement, and how many rows answered it */
function countedStore(store: Store, asked: string[]): Store {
  const counted =
    (query: Query): Query =>
    async (sql, params) => {
      const answer = await query(sql, params)
      asked.push(
        `${sql
          .trim()
          .split(/[\s(,]+/, 3)
          .join(' ')}: ${answer.rows.length}`,
      )
      return answer
    }
  return {
    query: counted(store.query),
    transaction: async (work, lock) => {
      asked.push(`begin, lock ${lock?.table}`)
      const result = await store.transaction((query) => work(counted(query)), lock)
      asked.push('commit')
      return result
    },
    [Symbol.asyncDispose]: () => store[Symbol.asyncDispose](),
  }
}

test('an edit asks the state database for what it needs once, and for nothing of the sinks that it leaves as they are', async () => {
  await using s = await stage({ more: 20 })
  const askedBy = async (changes: Parameters<typeof s.edit>[0]) => {
    s.asked.length = 0
    await s.edit(changes)
    return [...s.asked]
  }
  await askedBy({ ack_wait_ms: 1_000 })
  // what is stored is known at the end; until the commit no other key of the vault comes
  const edit = [
    ...['begin, lock account', 'with entry as: 1', 'select print from: 1', 'insert into sink: 1'],
    ...['insert into audit_log: 0', 'commit'],
  ]
  assert.deepEqual(await askedBy({ ack_wait_ms: 2_000 }), edit)
  assert.deepEqual(await askedBy({ status: 'paused', annotations: { team: 'a' } }), edit)
  assert.deepEqual(
    (await askedBy({ actions: ['insert'] })).toSorted(),
    [
      ...edit,
      ...['begin, lock source_database', 'with entry as: 1', 'commit'],
      ...['select g.sink_id g.generation: 0', 'select exists select: 1', 'select v.version v.sinks: 1', 'with version as: 0'],
    ].toSorted(),
  )
})

test('an edit that names what the source does not have is refused with a reason for each field, and changes nothing', async () => {
  await using s = await stage()
  const before = s.cache.sinks
  const wrong = s.edit({
    source: { include_tables: ['public.goods', 'goodz'], exclude_schemas: ['sale'] },
    tables: [
      { name: 'public.goods', group_column_names: ['id', 'colour'] },
      { name: 'sales.nothing', group_column_names: ['id'] },
    ],
  })
  await assert.rejects(wrong, {
    code: 'VALIDATION_FAILED',
    context: {
      'source.include_tables': 'names the table public.goodz, which the source database does not have',
      'source.exclude_schemas': 'names the schema sale, which the source database does not have',
      tables:
        'names the column colour, which public.goods does not have and names the table sales.nothing, which the source database does not have',
    },
  })
  assert.deepEqual(s.cache.sinks, before)
})

test('names that the sink had already may be sent back after they have gone, and other edits go on', async () => {
  await using s = await stage()
  const named = { source: { include_tables: ['goods'] }, tables: [{ name: 'goods', group_column_names: ['size'] }] }
  await s.edit(named)
  await s.source.query('drop table goods')
  await s.edit({ ...named, batch_size: 3 })
  const [sink] = s.cache.sinks
  assert.deepEqual([sink?.batch_size, sink?.source], [3, named.source])
})

test('a source that is away can not be asked: the edit is taken', async () => {
  await using s = await stage()
  await s.source[Symbol.asyncDispose]()
  const sink = await s.edit({ source: { include_tables: ['sales.later'] } })
  assert.deepEqual(sink.source, { include_tables: ['sales.later'] })
})

test('a sink takes only functions that exist, and of the type that the field is for', async () => {
  await using s = await stage()
  await assert.rejects(s.edit({ transform: 'nothing' }), {
    code: 'VALIDATION_FAILED',
    message: /names the function "nothing", which does not exist/,
  })
  assert.equal(s.cache.sinks[0]?.transform ?? null, null)
})
