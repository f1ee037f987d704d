import assert from 'node:assert/strict'
import { test } from 'node:test'
import { TokenMemory } from '../../engine/state/token-memory.ts'
import { StateFeed } from '../../engine/state/state-feed.ts'
import { hashToken } from '../../engine/state/tokens.ts'
import { until } from '../waiting.ts'
import { ScriptedSink } from './scripted-engine.ts'
import { serveEverything, TOKENS } from './served-everything.ts'

const token = TOKENS.admin

test('a token is made with a text that is shown once, is listed with its use, and works until it is revoked', async () => {
  await using s = await serveEverything()
  const made = await s.call('POST', '/api/api_keys', { token, body: { name: 'worker' } })
  assert.equal(made.status, 200)
  assert.match(made.body.token, /^tr_.{32}$/)
  const { id, token: text, ...rest } = made.body
  assert.deepEqual({ ...rest, inserted_at: '' }, { name: 'worker', inserted_at: '', scopes: ['admin'], sinks: null, expires_at: null, last_used_at: null, made_by: 'api' }) // prettier-ignore
  const listed = async () =>
    (await s.call('GET', '/api/api_keys', { token })).body.data.find((one: { name: string }) => one.name === 'worker')
  assert.deepEqual(await listed(), { id, ...rest })
  assert.equal((await s.call('GET', '/api/sinks', { token: text })).status, 200)
  assert.ok(Date.now() - Date.parse((await listed()).last_used_at) < 60_000)
  const { rows } = await s.store.query('select t::text as row from api_token t')
  assert.ok(!JSON.stringify(rows).includes(text), 'only its hash is stored')
  assert.deepEqual((await s.call('DELETE', `/api/api_keys/${id}`, { token })).body, { success: true })
  assert.equal((await s.call('GET', '/api/sinks', { token: text })).status, 401)
  assert.equal(await listed(), undefined)
  assert.equal((await s.call('DELETE', `/api/api_keys/${id}`, { token })).status, 404)
})

test('the text of a token may be given; name and text are taken by one token alone', async () => {
  await using s = await serveEverything()
  const create = (body: unknown, by: string = token) => s.call('POST', '/api/api_keys', { token: by, body })
  assert.equal((await create({ name: 'given', token: 'a-text-of-mine' })).body.token, 'a-text-of-mine')
  assert.equal((await s.call('GET', '/api/sinks', { token: 'a-text-of-mine' })).status, 200)
  const reasons = async (body: unknown, by?: string) => (await create(body, by)).body.validation_errors
  assert.deepEqual(await reasons({ name: 'given' }), { name: ['is taken by another API token'] })
  assert.deepEqual(await reasons({ name: 'again', token: 'a-text-of-mine' }), { token: ['is in use already'] })
  assert.deepEqual(await reasons({ name: 'again', token: 'a-text-of-mine' }, TOKENS.other), { token: ['is in use already'] })
  assert.deepEqual(await reasons({ name: 'short', token: 'short' }), { token: ['must have at least 8 characters, got 5'] })
  assert.equal((await create({ name: 'given' }, TOKENS.other)).status, 200) // a name is taken within its account
})

test('a token may be for scopes, for the sinks that it names, and for a time', async () => {
  await using s = await serveEverything()
  const create = async (body: object) => (await s.call('POST', '/api/api_keys', { token, body: { name: 'worker', ...body } })).body
  assert.deepEqual(Object.keys((await create({ scopes: ['everything'] })).validation_errors), ['scopes'])
  assert.match((await create({ scopes: ['receive'] })).validation_errors.sinks[0], /must name the sinks/)
  assert.match((await create({ scopes: ['read'], sinks: ['goods'] })).validation_errors.sinks[0], /belongs to the scope receive/)
  assert.deepEqual((await create({ expires_at: '2020-01-01T00:00:00Z' })).validation_errors, { expires_at: ['must be in the future'] })
  assert.match((await create({ expires_at: 'soon' })).validation_errors.expires_at[0], /a time such as/)
  const expiresAt = new Date(Date.now() + 3_600_000)
  const made = await create({ scopes: ['receive', 'read'], sinks: ['goods'], expires_at: expiresAt.toISOString() })
  assert.deepEqual([made.scopes, made.sinks, made.expires_at], [['receive', 'read'], ['goods'], expiresAt.toISOString()])
  const receive = (sink: string) => s.call('GET', `/api/http_pull_consumers/${sink}/receive`, { token: made.token })
  assert.equal((await receive('goods')).status, 200)
  assert.equal((await receive('search')).status, 403)
  assert.equal((await s.call('GET', '/api/sinks', { token: made.token })).status, 200)
  await s.store.query('update api_token set expires_at = now() where id = $1', [made.id])
  await s.tokens.load()
  assert.equal((await receive('goods')).status, 401)
})

test('a sink that gets another name stays within reach of the tokens that name it', async () => {
  await using s = await serveEverything()
  assert.equal((await s.call('PATCH', '/api/sinks/goods', { token, body: { name: 'wares' } })).status, 200)
  assert.equal((await s.call('GET', '/api/http_pull_consumers/wares/receive', { token: TOKENS.receive })).status, 200)
})

test('a receive that waits when its token is revoked gets no message: it goes back to the sink', async () => {
  await using s = await serveEverything()
  const { body: made } = await s.call('POST', '/api/api_keys', { token, body: { name: 'worker', scopes: ['receive'], sinks: ['goods'] } })
  const sinkId = s.cache.sinks.find(({ name }) => name === 'goods')?.id ?? assert.fail('no sink')
  const goods = new ScriptedSink()
  s.engine.running.set(sinkId, goods)
  const waiting = s.call('GET', '/api/http_pull_consumers/goods/receive?wait_for=60s', { token: made.token })
  await until('a receive waits', () => goods.waiting === 1)
  assert.equal((await s.call('DELETE', `/api/api_keys/${made.id}`, { token })).status, 200)
  goods.push({ id: 'one', data: '{"record":{}}' })
  assert.equal((await waiting).status, 401)
  assert.deepEqual([goods.givenBack, goods.ready.length], [1, 1])
})

test('a process takes in by itself what others change of tokens, and stores when they were used', async () => {
  await using s = await serveEverything()
  await using feed = new StateFeed(s.db.connection, () => undefined)
  const memory = new TokenMemory({ query: s.store.query, feed, onError: (error) => assert.fail(String(error)) })
  await memory.load()
  memory.start()
  feed.start()
  const { body: made } = await s.call('POST', '/api/api_keys', { token, body: { name: 'worker' } })
  const found = () => memory.find(hashToken(made.token))
  await until('the other process knows the token', () => found()?.name === 'worker')
  await memory[Symbol.asyncDispose]()
  const { rows } = await s.store.query('select used_at from api_token_use where token_id = $1', [made.id])
  assert.equal(rows.length, 1)
  await using again = new TokenMemory({ query: s.store.query, feed, onError: () => undefined })
  await again.load()
  again.start()
  await s.call('DELETE', `/api/api_keys/${made.id}`, { token })
  await until('it has heard that the token is revoked', () => again.find(hashToken(made.token)) === undefined)
})

test('wrong tokens are slowed and logged with their count, never with the token; right ones go on', async () => {
  await using s = await serveEverything({ wrongTokens: 2 })
  const timed = async (given: string) => {
    const began = performance.now()
    const { status } = await s.call('GET', '/api/sinks', { token: given })
    return { status, ms: performance.now() - began }
  }
  const wrong = [await timed('a-wrong-token'), await timed('a-wrong-token'), await timed('a-wrong-token')]
  assert.deepEqual(
    wrong.map(({ status }) => status),
    [401, 401, 401],
  )
  assert.ok((wrong[2]?.ms ?? 0) >= 990, `the third was answered after ${wrong[2]?.ms} ms`)
  assert.equal((await timed(token)).status, 200)
  const lines = s.lines.filter((line) => JSON.stringify(line).includes('requests came with API tokens that are not known'))
  assert.deepEqual(
    lines.map(({ from, tries }) => [from, tries]),
    [['127.0.0.1', 1]],
  )
  assert.doesNotMatch(JSON.stringify(s.lines), /a-wrong-token/)
})
