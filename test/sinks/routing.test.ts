/** What routing functions may say of each kind of destination, and what comes of what they leave out. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Destination } from '../../engine/state/destinations.ts'
import type { MeilisearchDestination } from '../../sinks/meilisearch-settings.ts'
import type { WebhookDestination } from '../../sinks/webhook-settings.ts'
import { elasticsearchRouting } from '../../sinks/elasticsearch-settings.ts'
import { meilisearchRouting } from '../../sinks/meilisearch-settings.ts'
import type { DestinationRouting } from '../../sinks/routing.ts'
import { webhookRouting } from '../../sinks/webhook-settings.ts'

const hooks: WebhookDestination = { type: 'webhook', http_endpoint: 'hooks', http_endpoint_path: '/all', batch: true, item_results: false }
const search: MeilisearchDestination = {
  ...{ type: 'meilisearch', endpoint_url: 'http://search:7700', primary_key: 'id', api_key: 'k', batch_size: 1, timeout_seconds: 5 },
}
const message = { action: 'delete', database: 'shop', schema: 'public', table: 'goods' }

const refused = (routing: DestinationRouting, said: object, destination?: Destination) =>
  routing.read(said as Record<string, unknown>, destination).reason ?? assert.fail('it was taken')
const effective = (routing: DestinationRouting, said: object, destination?: Destination) => {
  const { route, reason } = routing.read(said as Record<string, unknown>, destination)
  return routing.effective(route ?? assert.fail(reason), destination, message)
}

test('what a function leaves out is the sink’s target, else what is built in', () => {
  assert.deepEqual(effective(webhookRouting, {}), { method: 'POST', endpoint_path: '', headers: {} })
  assert.deepEqual(effective(webhookRouting, { method: 'patch' }, hooks), { method: 'PATCH', endpoint_path: '/all', headers: {} })
  assert.deepEqual(effective(webhookRouting, { endpoint_path: '' }, hooks).endpoint_path, '')
  assert.deepEqual(effective(meilisearchRouting, {}, { ...search, index_name: 'goods' }), { action: 'delete', index_name: 'goods' })
  assert.deepEqual(effective(meilisearchRouting, { action: 'INDEX', index_name: 'own' }, search), { action: 'index', index_name: 'own' })
})

test('unknown keys, wrong types and wrong values are told by their key', () => {
  assert.equal(refused(webhookRouting, { path: '/x' }), 'path is not a known field: known are method, endpoint_path, headers')
  assert.match(refused(webhookRouting, { method: 'FETCH' }), /^method must be "GET", "POST".*\(it is "FETCH"\)$/)
  assert.match(
    refused(webhookRouting, { endpoint_path: 'x' }),
    /^endpoint_path must have the form: empty, or a text that begins with \/, \? or #; .*encodeURIComponent \(it is "x"\)$/,
  )
  assert.match(
    refused(webhookRouting, { endpoint_path: `/${'x'.repeat(2000)}` }),
    /^endpoint_path must have at most 2000 characters, got 2001/,
  )
  assert.equal(refused(webhookRouting, { headers: { 'X-Id': 7 } }), 'headers.X-Id must be a text, got a number')
  for (const path of ['/../admin', '/a/./b', '/..', '/a/%2e%2E/b', '/a/.%2e%2fb', '/%2e%2e%5cb', '/..;x/b'])
    assert.match(refused(webhookRouting, { endpoint_path: path }), /^endpoint_path has a part "\." or "\.\."/, path)
  for (const path of ['/a..b/.c', '/...', '/a;../b', '/a?x=/../', '#/..'])
    assert.equal(effective(webhookRouting, { endpoint_path: path }).endpoint_path, path)
  const ofConnection = ['Host', 'TE', 'Trailer', 'Proxy-Authorization', 'Proxy-Connection']
  for (const name of [...ofConnection, 'webhook-id', 'webhook-signature', 'webhook-timestamp'])
    assert.match(refused(webhookRouting, { headers: { [name]: 'x' } }), /^headers has a header that HTTP does not allow/, name)
  for (const index_name of ['..', '.', '*', '_all', '-a', 'a/b', 'a b', 'a,b', '<a-{now}>', 'x'.repeat(256)])
    assert.match(refused(elasticsearchRouting, { index_name }), /^index_name/, index_name)
  for (const index_name of ['goods', '.hidden', 'shop.public.goods-2025_1'])
    assert.deepEqual(effective(elasticsearchRouting, { index_name }), { index_name })
  for (const index_name of ['..', 'a.b', 'a/b', '*', 'x'.repeat(401)])
    assert.match(refused(meilisearchRouting, { index_name }), /^index_name/, index_name)
  for (const headers of [{ 'X Id': '7' }, { 'X-Id': 'a\r\nX-Other: b' }, { 'Content-Length': '1' }])
    assert.match(refused(webhookRouting, { headers }), /^headers has a header that HTTP does not allow/)
  assert.match(refused(meilisearchRouting, { index_name: '' }), /^index_name must have at least one character, got 0/)
  assert.match(refused(meilisearchRouting, { index_name: null }), /^index_name must be a text, got null/)
})

test('an edit by function needs its filter and its function, and nothing else may have them', () => {
  const edit = { action: 'function', filter: 'id = 1', function: 'doc.n = context.n', context: { n: 1 }, index_name: 'goods' }
  assert.deepEqual(effective(meilisearchRouting, edit), edit)
  assert.match(refused(meilisearchRouting, { ...edit, filter: undefined }), /^filter is missing/)
  assert.match(refused(meilisearchRouting, { ...edit, function: undefined }), /^function is missing/)
  assert.match(refused(meilisearchRouting, { ...edit, action: 'index' }), /^filter is only for the action "function"/)
})

test('where neither the function nor the sink names an index, the message can go nowhere', () => {
  assert.equal(refused(meilisearchRouting, {}, search), 'index_name is missing, and the sink names none')
  assert.deepEqual(effective(meilisearchRouting, {}), { action: 'delete' }) // of no sink yet
})
