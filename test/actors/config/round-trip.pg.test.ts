/** Whatever is applied is exported so that it plans nothing, with its secrets shown or whole; and it can be applied elsewhere. */
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { test } from 'node:test'
import { stringify } from 'yaml'
import { applyConfig } from '../../../actors/config/config-apply.ts'
import { readDocument } from '../../../actors/config/config-document.ts'
import { exportedResources, exportYaml } from '../../../actors/config/config-export.ts'
import { ownLists, ResourceStore } from '../../../engine/state/resource-store.ts'
import type { Account } from '../../../engine/state/resources.ts'
import { Vault } from '../../../engine/state/secrets.ts'
import { openStore } from '../../../engine/state/store.ts'
import { STORED_DESTINATIONS } from '../../../sinks/destination-types.ts'
import fc from '../../services/fast-check.ts'
import { createDatabase, createState, type TestDatabase } from '../../services/postgres.ts'
import { UNSENT } from '../../services/sequin-destinations.ts'

/** Builds nothing: a path or Elixir needs none. */
const refused = async () => assert.fail('nothing is to be built')
const NO_SANDBOX = { check: refused, test: refused, forget: () => undefined }

const text = fc.oneof(
  fc.string({ minLength: 1, maxLength: 20 }),
  fc.constantFrom(
    '${HOME}',
    '$${A:-b}',
    'a: b',
    '- x',
    '#',
    "'",
    '"',
    'null',
    'true',
    '1',
    ' a',
    'a\nb\n',
    '***',
    'sec******t',
    '~',
    'é😀',
  ),
)
const name = fc.stringMatching(/^[a-zA-Z0-9_.-]{1,12}$/)
const json = fc.jsonValue({ maxDepth: 2 })
const secret = fc.string({ unit: fc.constantFrom(...'abcXYZ0189-_$'), minLength: 1, maxLength: 40 })
const optional = <T>(arbitrary: fc.Arbitrary<T>) => fc.option(arbitrary, { nil: undefined, freq: 2 })
const header = fc.dictionary(fc.stringMatching(/^x-[a-z]{1,8}$/), fc.stringMatching(/^[!-~]{1,20}$/), { maxKeys: 3 })

const destination = fc.oneof(
  fc.constant({ type: 'sequin_stream' }),
  fc.record(
    {
      type: fc.constant('webhook'),
      http_endpoint: fc.constant('hook'),
      http_endpoint_path: fc.constantFrom('/a', '/a?b=c'),
      batch: fc.boolean(),
    },
    { requiredKeys: ['type', 'http_endpoint'] },
  ),
  fc.record(
    {
      type: fc.constant('elasticsearch'),
      endpoint_url: fc.constant('http://127.0.0.1:9200'),
      index_name: fc.constantFrom('goods', 'other'),
      auth_type: fc.constantFrom('api_key', 'bearer'),
      auth_value: secret,
      batch_size: fc.integer({ min: 1, max: 10_000 }),
    },
    { requiredKeys: ['type', 'endpoint_url', 'index_name', 'auth_type', 'auth_value'] },
  ),
  fc.record({
    type: fc.constant('meilisearch'),
    endpoint_url: fc.constant('http://127.0.0.1:7700'),
    index_name: fc.constant('goods'),
    api_key: secret,
  }),
  fc.constantFrom(...UNSENT),
)
const sink = fc
  .record(
    {
      name,
      database: fc.constant('shop'),
      status: fc.constantFrom('active', 'paused', 'disabled'),
      source: fc.oneof(
        fc.constant({}),
        fc.constant(null),
        fc.constant({ include_tables: ['goods'] }),
        fc.constant({ include_schemas: ['public'] }),
        fc.constant({ exclude_tables: ['public.goods'] }),
      ),
      actions: fc.uniqueArray(fc.constantFrom('insert', 'update', 'delete'), { minLength: 1 }),
      destination,
      transform: fc.constantFrom('none', null, 'key', 'old'),
      batch_size: fc.integer({ min: 1, max: 1000 }),
      max_retry_count: fc.option(fc.integer({ min: 1, max: 100 })),
      timestamp_format: fc.constantFrom('iso8601', 'unix_microsecond'),
      load_shedding_policy: fc.constantFrom('pause_on_full', 'discard_on_full'),
      annotations: fc.dictionary(fc.stringMatching(/^[a-z]{1,5}$/), json, { maxKeys: 3 }),
      message_grouping: fc.constantFrom(true, 'true', 'false', false),
      partitions: fc.integer({ min: 1, max: 4 }),
      replay_window: fc.constantFrom('1h', '2h', 0, 3_600_000),
      max_ack_pending: fc.integer({ min: 4, max: 20_000 }),
    },
    { requiredKeys: ['name', 'database', 'destination'] },
  )
  .filter(({ destination: to, batch_size = 1 }) => !('batch' in to) || to.batch !== false || batch_size === 1)
const retention = fc.record(
  {
    name,
    source_database: fc.constant('shop'),
    source_table_schema: fc.constant('public'),
    source_table_name: fc.constant('goods'),
    destination_database: fc.constant('shop'),
    destination_table_schema: fc.constant('history'),
    destination_table_name: text.filter((one) => one.length <= 63),
    actions: fc.uniqueArray(fc.constantFrom('insert', 'update', 'delete'), { minLength: 1 }),
    filters: fc.array(fc.record({ column_name: fc.constant('id'), operator: fc.constantFrom('=', '!=', '>'), comparison_value: fc.oneof(text, fc.integer(), fc.boolean()) }), { maxLength: 2 }),
    retention: fc.constantFrom('30d', 5000, null),
  },
  { requiredKeys: ['name', 'source_database', 'source_table_schema', 'source_table_name', 'destination_database', 'destination_table_schema', 'destination_table_name'] },
) // prettier-ignore
const named = <T extends Readonly<{ name: string }>>(arbitrary: fc.Arbitrary<T>, maxLength: number) =>
  fc.uniqueArray(arbitrary, { selector: (one) => one.name, maxLength })
const documents = fc.record({
  pool: optional(fc.integer({ min: 1, max: 20 })),
  annotations: optional(fc.dictionary(fc.stringMatching(/^[a-z]{1,5}$/), json, { maxKeys: 3 })),
  headers: header,
  encrypted: header,
  description: fc.option(text, { nil: null }),
  sinks: named(sink, 6),
  retentions: named(retention, 2),
})

test('export and plan: whatever was applied is exported so that it plans nothing', async () => {
  await using source = await createDatabase('create table goods (id int primary key)')
  await using state = await createState()
  await using store = await openStore(state.connection, 3, () => {})
  const resources = new ResourceStore(new Vault(randomBytes(32)), { destinations: STORED_DESTINATIONS })
  const signal = new AbortController().signal
  const options = { store, resources, signal, pool: NO_SANDBOX }
  const slot = `s_${source.name}`
  const account: Account = await store.transaction((query) => resources.saveAccount(query, 'shop'))
  const read = async (yaml: string, env?: Record<string, string>) => {
    const { functions: _, ...own } = ownLists(await resources.load(store.query), account.id)
    const { document, problems } = readDocument(yaml, { file: 'x', env, stored: { account, ...own } })
    assert.ok(document, JSON.stringify([problems, yaml]))
    return document
  }
  const run = async (given: typeof documents extends fc.Arbitrary<infer T> ? T : never) => {
    const { pool, annotations, headers, encrypted, description, sinks, retentions } = given
    const file = {
      databases: [{ ...databaseOf(source, slot), pool_size: pool, annotations }],
      http_endpoints: [{ name: 'hook', url: 'http://127.0.0.1:9/in', headers, encrypted_headers: encrypted }],
      functions: [
        { name: 'key', type: 'path', path: 'record.id', description },
        { name: 'old', type: 'transform', code: 'def transform(action, record, changes, metadata) do\n  record\nend\n' },
      ],
      sinks,
      change_retentions: retentions,
    }
    await applyConfig(await read(stringify(file)), { ...options, account })
    const exported = exportedResources(await resources.load(store.query), account.id, resources.defaults)
    for (const showSensitive of [true, false]) {
      const yaml = exportYaml(exported, { showSensitive })
      for (const env of [undefined, { HOME: '/home' }]) {
        const { changes } = await applyConfig(await read(yaml, env), { ...options, account, isTrial: true })
        assert.deepEqual(changes, [], yaml)
      }
    }
    await store.query('delete from sink')
  }
  await fc.assert(fc.asyncProperty(documents, run), { numRuns: 25 })
})

function databaseOf({ connection: c }: TestDatabase, slot: string) {
  const { hostname, port, database, username, password } = c
  const made = { name: slot, create_if_not_exists: true }
  return { name: 'shop', hostname, port, database, username, password, ssl: false, slot: made, publication: made }
}
