/** Each example of transforms/examples, built as it stands and run on a message that shows what it is for. */
import assert from 'node:assert/strict'
import { readdirSync, readFileSync } from 'node:fs'
import { after, test } from 'node:test'
import { STATE } from '../../transforms/stage.ts'
import type { SandboxKind } from '../../engine/state/function-kinds.ts'
import { PUSH_TYPES } from '../../sinks/destination-types.ts'
import { batchOf, fn, pool } from './function-fixture.ts'

const shared = pool()
after(() => shared.stop())

const METADATA = `{"table_schema":"public","table_name":"goods","commit_timestamp":"2025-02-03T04:05:06.789012Z","commit_lsn":26741272,"commit_idx":3,"idempotency_key":"MjY3NDEyNzI6MA==","record_pks":["7"],"transaction_annotations":null}`
const message = (record: string, changes = 'null', action = 'insert') =>
  `{"record":${record},"changes":${changes},"action":"${action}","metadata":${METADATA}}`
const SHA = '973dfe463ec85785f5f95af5ba3906eedb2d931c24e69824a89ea65dba4e813b' // of test@example.com

type Case = readonly [input: string, output: unknown]
const CASES: Readonly<Record<string, readonly Case[]>> = {
  'rename-fields': [
    [message('{"id":7,"title":"Lamp","price":"19.90","cost":"3"}'), { sku: 7, name: 'Lamp', price_cents: 1990 }],
    [message('{"id":7,"title":null,"price":null,"cost":null}', 'null', 'delete'), { sku: 7, name: null, price_cents: null }],
  ],
  'mask-personal-data': [
    [
      message('{"id":7,"email":" Test@Example.com","phone":"+49 151 2345","country":"DE"}'),
      { id: 7, country: 'DE', email_hash: SHA, phone: '•••45' },
    ],
    [message('{"id":7,"email":null,"phone":null,"country":"DE"}'), { id: 7, country: 'DE', email_hash: null, phone: null }],
    [
      message('{"id":7,"email":null,"phone":null,"country":null}', 'null', 'delete'),
      { id: 7, country: null, email_hash: null, phone: null },
    ],
  ],
  'flatten-jsonb': [
    [message('{"id":7,"attributes":null}', 'null', 'delete'), { id: 7, attributes: null }],
    [
      message('{"id":7,"attributes":{"size":{"width":3},"tags":["a"],"none":null}}'),
      { id: 7, attributes_size_width: 3, attributes_tags: ['a'], attributes_none: null },
    ],
  ],
  'one-tenant': [
    [message('{"tenant_id":7}'), true],
    [message('{"tenant_id":8}'), false],
    [message('{"tenant_id":7}', 'null', 'delete'), true],
    [message('{"tenant_id":null}', 'null', 'delete'), false],
  ],
  'price-changes': [
    [message('{"price":"2"}'), true],
    [message('{"price":"2"}', '{"price":"1"}', 'update'), true],
    [message('{"price":"2"}', '{"title":"x"}', 'update'), false],
    [message('{"price":"2"}', 'null', 'read'), true],
    [message('{"price":null}', 'null', 'delete'), false],
  ],
  'no-touches': [
    [message('{"id":1}', '{"updated_at":"x"}', 'update'), false],
    [message('{"id":1}', '{"updated_at":"x","title":"y"}', 'update'), true],
    [message('{"id":1}', 'null', 'delete'), true],
  ],
  'soft-deletes': [
    [message('{"id":7,"deleted_at":"2025-02-03T04:05:06.000000Z"}', '{}', 'update'), { action: 'delete', id: 7 }],
    [message('{"id":7,"deleted_at":null}'), { action: 'upsert', id: 7, record: { id: 7, deleted_at: null } }],
    [message('{"id":7,"deleted_at":null}', 'null', 'delete'), { action: 'delete', id: 7 }],
  ],
  'big-numbers': [
    [message('{"id":9007199254740993,"amount":"1.10"}'), '{"id":"9007199254740993","next":9007199254740994,"amount":"1.10"}'],
    [message('{"id":9007199254740993,"amount":null}', 'null', 'delete'), '{"id":"9007199254740993","next":9007199254740994,"amount":null}'],
  ],
  'local-time': [
    [message('{"id":7,"sold_at":"2025-07-01T22:30:00.000000Z"}'), { id: 7, sold_at: '2025-07-02 00:30:00' }],
    [message('{"id":7,"sold_at":null}', 'null', 'delete'), { id: 7, sold_at: null }],
  ],
  'one-shape': [
    [message('{"id":7}', 'null', 'delete'), { entity: 'goods', key: '7', at: '2025-02-03T04:05:06.789012Z', deleted: true, data: null }],
  ],
  'removed-rows': [
    [message('{"id":7,"deleted_at":null}'), {}],
    [message('{"id":7,"deleted_at":null}', 'null', 'delete'), {}],
    [message('{"id":7,"deleted_at":"2025-02-03T04:05:06.000000Z"}', '{}', 'update'), { action: 'delete' }],
  ],
  'tenant-index': [
    [message('{"id":7,"tenant_id":3}'), { index_name: 'goods-3' }],
    [message('{"id":7,"tenant_id":3}', 'null', 'delete'), { index_name: 'goods-3' }],
  ],
  'rest-calls': [
    [message('{"id":7}'), { method: 'POST', endpoint_path: '/goods', headers: { 'Idempotency-Key': 'MjY3NDEyNzI6MA==' } }],
    [
      message('{"id":"a/b"}', 'null', 'delete'),
      { method: 'DELETE', endpoint_path: '/goods/a%2Fb', headers: { 'Idempotency-Key': 'MjY3NDEyNzI6MA==' } },
    ],
  ],
  'with-tenant': [
    [message('{"id":7,"title":"Lamp"}', 'null', 'delete'), { id: 7, title: 'Lamp', tenant: null, in_stock: 0 }],
    [
      message('{"id":7,"title":"Lamp"}').replace('"transaction', '"enrichment":{"id":7,"tenant_name":"North","in_stock":3},"transaction'),
      { id: 7, title: 'Lamp', tenant: 'North', in_stock: 3 },
    ],
  ],
  'search-edit': [
    [
      message('{"id":7,"name":"North"}', '{"name":"Nord"}', 'update'),
      {
        ...{ action: 'function', index_name: 'products', filter: 'brand_id = 7' },
        ...{ function: 'doc.brand = context.name', context: { name: 'North' } },
      },
    ],
  ],
  once: [[message('{"id":7}'), { idempotency_key: 'MjY3NDEyNzI6MA==', position: [26741272, 3], action: 'insert', record: { id: 7 } }]],
  'event-names': [
    [
      message('{"id":7}', '{"title":"x"}', 'update'),
      {
        ...{ type: 'goods.updated', id: 'MjY3NDEyNzI6MA==', time: '2025-02-03T04:05:06.789012Z', source: 'shop' },
        ...{ data: { id: 7 }, changed: ['title'] },
      },
    ],
  ],
}

const KINDS: Readonly<Record<string, SandboxKind>> = { Filter: 'filter', Route: 'routing' }
const folder = new URL('../../transforms/examples/', import.meta.url)
const names = readdirSync(folder).flatMap((file) => (file.endsWith('.ts') ? [file.slice(0, -3)] : [])) // SQL: enrichment.pg.test.ts

test('every example has a case here', () => assert.deepEqual(names.toSorted(), Object.keys(CASES).toSorted()))

for (const name of names)
  test(`example ${name}`, async () => {
    const text = readFileSync(new URL(`${name}.ts`, folder), 'utf8')
    const [, type = 'Transform'] = /import type \{ (Filter|Route|Transform)\b/.exec(text) ?? []
    const kind = KINDS[type] ?? 'transform'
    const checked = await shared.check({ name, kind, code: text })
    assert.equal(checked.failure, undefined)
    const cases = CASES[name] ?? []
    const outcome = await shared.run([fn(checked.failure ? '' : checked.code, kind)], batchOf(cases.map(([input]) => input)))
    assert.deepEqual([...outcome.failures.values()], [])
    for (const [i, [, output]] of cases.entries()) {
      if (kind === 'filter') assert.equal(outcome.states[i] === STATE.kept, output)
      else if (typeof output === 'string') assert.equal(outcome.resultText(0, i), output)
      else assert.deepEqual(JSON.parse(outcome.resultText(0, i)), output)
      if (kind !== 'routing') continue
      const [, sinkType = ''] = /Route<'(\w+)'/.exec(text) ?? []
      assert.deepEqual(PUSH_TYPES.get(sinkType)?.routing?.read(output as Record<string, unknown>), { route: output })
    }
  })
