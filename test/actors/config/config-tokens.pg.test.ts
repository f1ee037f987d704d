/** The API tokens of configuration files: which are made, changed and revoked by which file. */
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { test } from 'node:test'
import { applyConfig } from '../../../actors/config/config-apply.ts'
import { parseConfig } from '../../../actors/config/config-document.ts'
import { ResourceStore } from '../../../engine/state/resource-store.ts'
import { Vault } from '../../../engine/state/secrets.ts'
import { openStore } from '../../../engine/state/store.ts'
import { saveToken, tokensOf } from '../../../engine/state/token-store.ts'
import { hashToken } from '../../../engine/state/tokens.ts'
import { DESTINATIONS } from '../../../sinks/destination-types.ts'
import { createState } from '../../services/postgres.ts'

async function stage() {
  await using stack = new AsyncDisposableStack()
  const state = stack.use(await createState())
  const store = stack.use(await openStore(state.connection, 3, () => {}))
  const resources = new ResourceStore(new Vault(randomBytes(32)), { destinations: DESTINATIONS })
  const account = await resources.saveAccount(store.query, 'shop')
  const { signal } = new AbortController()
  const given = (text: string) => parseConfig(`account: { name: shop }\n${text}`, 'shop.yaml', {})
  const owned = stack.move()
  return {
    store,
    account,
    /** the file of the start */
    start: async (text: string) => applyConfig(given(text), { store, resources, signal }),
    /** a file that a client applies */
    apply: async (text: string) => applyConfig(given(text), { store, resources, signal, account }),
    plan: async (text: string) => applyConfig(given(text), { store, resources, signal, account, isTrial: true }),
    names: async () => (await tokensOf(store.query, account)).map(({ name }) => name),
    [Symbol.asyncDispose]: () => owned.disposeAsync(),
  }
}

const OPS = '{ name: ops, token: a-token-of-ops }'
const WORKER = '{ name: worker, token: a-token-of-worker, scopes: [receive], sinks: [goods] }'

test('a token of a file may do everything, unless the file says less', async () => {
  await using s = await stage()
  await s.start(`api_tokens: [${OPS}, ${WORKER}]`)
  assert.deepEqual(
    (await tokensOf(s.store.query, s.account)).map(({ name, hash, scopes, sinks, madeBy }) => ({ name, hash, scopes, sinks, madeBy })),
    [
      { name: 'ops', hash: hashToken('a-token-of-ops'), scopes: ['admin'], sinks: [], madeBy: 'file' },
      { name: 'worker', hash: hashToken('a-token-of-worker'), scopes: ['receive'], sinks: ['goods'], madeBy: 'file' },
    ],
  )
  await assert.rejects(s.start('api_tokens: [{ name: w, token: a-token-of-w, scopes: [receive] }]'), { message: /must name the sinks/ })
  await assert.rejects(s.start('api_tokens: [{ name: w, token: a-token-of-w, scopes: [all] }]'), { code: 'CONFIG_INVALID' })
})

test('tokens that the file of the start made go when it no longer names them, also with the whole section, and others stay', async () => {
  await using s = await stage()
  await s.start(`api_tokens: [${OPS}, ${WORKER}]`)
  await saveToken(s.store.query, s.account, { name: 'by-hand', token: 'a-token-by-hand', madeBy: 'api' })
  await saveToken(s.store.query, s.account, { name: 'of-before', token: 'a-token-of-before' })
  await s.apply('api_tokens: [{ name: applied, token: a-token-applied }]')
  const { changes, notices } = await s.start(`api_tokens: [${OPS}]`)
  assert.deepEqual(
    changes.map(({ action, name, old }) => [action, name, old]),
    [['delete', 'worker', { name: 'worker', scopes: ['receive'], sinks: ['goods'] }]],
  )
  assert.deepEqual(notices, ['shop.yaml: the API token "worker" is revoked: the file that made it no longer names it'])
  await s.start('')
  assert.deepEqual(await s.names(), ['applied', 'by-hand', 'of-before'])
})

test('a file that a client applies revokes what such a file made, if it has the section, and nothing that the start made', async () => {
  await using s = await stage()
  await s.start(`api_tokens: [${OPS}]`)
  await s.apply(`api_tokens: [${WORKER}]`)
  await s.apply('sinks: []')
  assert.deepEqual(await s.names(), ['ops', 'worker'])
  const planned = await s.plan('api_tokens: []')
  assert.deepEqual(planned.notices, ['shop.yaml: the API token "worker" is revoked: the file that made it no longer names it'])
  assert.deepEqual(await s.names(), ['ops', 'worker'])
  await s.apply('api_tokens: []')
  assert.deepEqual(await s.names(), ['ops'])
})

test('another text for a known name is told in words, and so are other scopes; neither shows a token', async () => {
  await using s = await stage()
  await s.apply(`api_tokens: [${OPS}, ${WORKER}]`)
  assert.deepEqual((await s.plan(`api_tokens: [${OPS}, ${WORKER}]`)).changes, [])
  const other = `api_tokens: [{ name: ops, token: another-token-of-ops }, { name: worker, token: a-token-of-worker, scopes: [read] }]`
  const { changes, notices } = await s.plan(other)
  assert.deepEqual(notices, ['shop.yaml:2: the API token "ops" gets another text: the former one is refused from then on'])
  const admin = { name: 'ops', scopes: ['admin'], sinks: null }
  assert.deepEqual(
    changes.map(({ action, old, new: now }) => [action, old, now]),
    [
      ['update', { ...admin, token: '(stored)' }, { ...admin, token: '(another one)' }],
      ['update', { name: 'worker', scopes: ['receive'], sinks: ['goods'] }, { name: 'worker', scopes: ['read'], sinks: null }],
    ],
  )
  await s.apply(other)
  const [ops] = await tokensOf(s.store.query, s.account)
  assert.equal(ops?.hash, hashToken('another-token-of-ops'))
})

test('a token of a former version is of the file that names it from then on, and may get another name in it', async () => {
  await using s = await stage()
  await saveToken(s.store.query, s.account, { name: 'ops', token: 'a-token-of-ops' })
  assert.deepEqual((await s.start(`api_tokens: [${OPS}]`)).changes, [])
  assert.deepEqual((await tokensOf(s.store.query, s.account)).map(({ madeBy }) => madeBy), ['file']) // prettier-ignore
  const renamed = await s.start('api_tokens: [{ name: operators, token: a-token-of-ops }]')
  assert.deepEqual(renamed.changes.map(({ action, name }) => [action, name]), [['delete', 'ops'], ['create', 'operators']]) // prettier-ignore
})

test('a token that another account has is refused', async () => {
  await using s = await stage()
  await s.start(`api_tokens: [${OPS}]`)
  await saveToken(s.store.query, { id: await otherAccount(s.store), name: 'other' }, { name: 'x', token: 'a-token-of-x' })
  await assert.rejects(s.start('api_tokens: [{ name: mine, token: a-token-of-x }]'), { message: /already in use/ })
})

async function otherAccount(store: Awaited<ReturnType<typeof openStore>>): Promise<string> {
  const { rows } = await store.query(`insert into account (name) values ('other') returning id::text`)
  return String(rows[0]?.['id'])
}
