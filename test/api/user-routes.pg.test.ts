import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setupCodeOf } from '../../actors/resources/user-edits.ts'
import { until } from '../waiting.ts'
import { serveEverything, TOKENS, type Answered } from './served-everything.ts'

const CODE = setupCodeOf(Buffer.alloc(32, 5))
const PASSWORD = 'a-password-of-mine'
const OWNER = { email: 'Owner@Example.com', password: PASSWORD }
type Served = Awaited<ReturnType<typeof serveEverything>>

/** What a browser would send back. */
const cookieOf = ({ headers }: Answered): string => headers.get('set-cookie')?.split(';')[0] ?? assert.fail('no cookie was set')
const post = (s: Served, path: string, body: unknown, headers: Readonly<Record<string, string>> = {}) =>
  s.call('POST', `/api${path}`, { body, headers })

/** A browser of somebody who has signed in. */
async function setUp(s: Served) {
  const answer = await post(s, '/session/setup', { code: CODE, account: 'shop', ...OWNER })
  assert.equal(answer.status, 200, answer.text)
  return browser(s, cookieOf(answer))
}
const browser = (s: Served, cookie: string) => ({
  cookie,
  call: (method: string, path: string, body?: unknown, headers: Readonly<Record<string, string>> = {}) =>
    s.call(method, `/api${path}`, { body, headers: { cookie, ...headers } }),
})
async function invited(s: Served, role: string, email = `${role}@example.com`) {
  const { body } = await s.call('POST', '/api/invitations', { token: TOKENS.admin, body: { email, role } })
  return browser(s, cookieOf(await post(s, '/session/invitation', { token: body.token, password: PASSWORD })))
}

test('the first user is set up once, with the code, and is an admin', async () => {
  await using s = await serveEverything()
  assert.deepEqual((await s.call('GET', '/api/session')).body, {
    user: null,
    setup_needed: true,
    sign_in: { password: true, oidc: false },
  })
  const refused = await post(s, '/session/setup', { code: 'a-guess', account: 'shop', ...OWNER })
  assert.deepEqual([refused.status, refused.body.code], [403, 'SETUP_REFUSED'])
  const several = await post(s, '/session/setup', { code: CODE, ...OWNER })
  assert.deepEqual(several.body.validation_errors, { account: ['must be one of other, shop'] })
  const { call } = await setUp(s)
  const { user, setup_needed } = (await call('GET', '/session')).body
  assert.deepEqual([user.email, user.role, user.account, setup_needed], ['owner@example.com', 'admin', 'shop', false])
  const again = await post(s, '/session/setup', { code: CODE, account: 'shop', email: 'b@example.com', password: PASSWORD })
  assert.deepEqual([again.status, again.body.code], [403, 'SETUP_REFUSED'])
})

test('of two who set up at the same time one is the first', async () => {
  await using s = await serveEverything()
  const both = await Promise.all(
    ['a', 'b'].map((name) => post(s, '/session/setup', { code: CODE, account: 'shop', email: `${name}@example.com`, password: PASSWORD })),
  )
  assert.deepEqual(both.map(({ status }) => status).toSorted(), [200, 403])
})

test('who signs in has a cookie that no page can read, until signing out or its end', async () => {
  await using s = await serveEverything()
  await setUp(s)
  const answer = await post(s, '/session', { ...OWNER, email: 'OWNER@example.com' })
  assert.match(answer.headers.get('set-cookie') ?? '', /^tailrace_session=[\w-]{43}; Path=\/; Max-Age=604800; HttpOnly; SameSite=Lax$/)
  const { call, cookie } = browser(s, cookieOf(answer))
  assert.equal((await call('GET', '/sinks')).status, 200)
  const stored = JSON.stringify((await s.store.query('select u::text, encode(s.hash, $1) from app_user u, user_session s', ['hex'])).rows)
  assert.ok(!stored.includes(PASSWORD) && !stored.includes(cookie.split('=')[1] ?? ''), 'neither password nor secret is stored')
  assert.match(stored, /\$argon2id\$v=19\$m=19456,t=2,p=1\$/)
  const out = await call('DELETE', '/session')
  assert.match(out.headers.get('set-cookie') ?? '', /^tailrace_session=; Path=\/; Max-Age=0;/)
  assert.equal((await call('GET', '/sinks')).status, 401)
  const other = browser(s, cookieOf(await post(s, '/session', OWNER)))
  await s.store.query(`update user_session set expires_at = now()`)
  assert.equal((await other.call('GET', '/sinks')).status, 401)
})

test('email and password have to be right, which of them is wrong is not told, and tries are slowed by account and address', async () => {
  await using s = await serveEverything({ wrongTokens: 2 })
  await setUp(s)
  const timed = async (email: string) => {
    const began = performance.now()
    const { status, body } = await post(s, '/session', { email, password: 'a-wrong-password' })
    return { told: [status, body.code, body.summary], ms: performance.now() - began }
  }
  const [known, unknown, third] = [await timed(OWNER.email), await timed('nobody@example.com'), await timed(OWNER.email)]
  assert.deepEqual(known.told, [401, 'SIGN_IN_FAILED', 'email or password is wrong'])
  assert.deepEqual(unknown.told, known.told)
  assert.ok(third.ms >= 990, `the third was answered after ${third.ms} ms`)
  assert.equal((await post(s, '/session', OWNER)).status, 200)
  assert.doesNotMatch(JSON.stringify(s.lines), /a-wrong-password/)
})

test('who changes a password waits for earlier wrong tries, as who signs in does', async () => {
  await using s = await serveEverything({ wrongTokens: 0 })
  const { call } = await setUp(s)
  const answered: number[] = []
  const change = async (current_password: string) =>
    answered.push((await call('PATCH', '/session', { current_password, password: 'another-password-of-mine' })).status)
  const wrong = change('a-wrong-password')
  await until('the wrong try has been counted', () =>
    s.lines.some(({ message }) => String(message).includes('tries passwords that are wrong')),
  )
  await Promise.all([wrong, change(PASSWORD)])
  assert.deepEqual(answered, [401, 200])
})

test('what a user may do is what the role says', async () => {
  await using s = await serveEverything()
  const admin = await setUp(s)
  const [viewer, editor] = [await invited(s, 'viewer'), await invited(s, 'editor')]
  const asked = async ({ call }: typeof admin) => [
    (await call('GET', '/sinks')).status,
    (await call('PATCH', '/sinks/goods', {})).status,
    (await call('GET', '/http_pull_consumers/goods/receive')).status,
    (await call('GET', '/api_keys')).status,
    (await call('GET', '/config/export?show-sensitive=true')).status,
  ]
  assert.deepEqual(await asked(viewer), [200, 403, 403, 403, 403])
  assert.deepEqual(await asked(editor), [200, 200, 200, 403, 403])
  assert.deepEqual(await asked(admin), [200, 200, 200, 200, 200])
  assert.equal((await viewer.call('PATCH', '/sinks/goods', {})).body.required_scope, 'manage')
  assert.equal(
    (await s.call('GET', '/api/sinks', { token: 'of-nobody', headers: { cookie: admin.cookie } })).status,
    401,
    'a wrong token is no session',
  )
})

test('a page of another site changes nothing with the cookie, and takes no message', async () => {
  await using s = await serveEverything()
  const { call } = await setUp(s)
  const foreign: readonly Readonly<Record<string, string>>[] = [
    { 'sec-fetch-site': 'cross-site' },
    { 'sec-fetch-site': 'same-site' },
    { origin: 'https://evil.example' },
    { origin: 'null' },
  ]
  for (const headers of foreign) {
    for (const [method, path] of [
      ['PATCH', '/sinks/goods'],
      ['DELETE', '/sinks/goods'],
      ['GET', '/http_pull_consumers/goods/receive'],
      ['DELETE', '/session'],
      ['POST', '/session'],
    ] as const)
      // prettier-ignore
      assert.equal((await call(method, path, method === 'GET' ? undefined : { ...OWNER }, headers)).body.code, 'PAGE_FOREIGN', `${method} ${path}`)
    assert.equal(
      (await s.call('PATCH', '/api/sinks/goods', { token: TOKENS.admin, body: {}, headers })).status,
      200,
      'a token is sent by nobody else',
    )
  }
  assert.equal((await call('PATCH', '/sinks/goods', {}, { 'sec-fetch-site': 'same-origin' })).status, 200)
  assert.equal((await call('PATCH', '/sinks/goods', {}, { origin: s.api.url })).status, 200)
})

test('an invitation is shown once, good once, can be withdrawn, and ends', async () => {
  await using s = await serveEverything()
  await setUp(s)
  const invite = (email: string) => s.call('POST', '/api/invitations', { token: TOKENS.admin, body: { email, role: 'viewer' } })
  const accept = (token: string) => post(s, '/session/invitation', { token, password: PASSWORD })
  const { body: made } = await invite('New@example.com')
  assert.equal(made.email, 'new@example.com')
  assert.ok(Math.abs(Date.parse(made.expires_at) - Date.now() - 7 * 86_400_000) < 60_000)
  const { token: text, ...shown } = made
  assert.deepEqual((await s.call('GET', '/api/invitations', { token: TOKENS.admin })).body.data, [shown])
  assert.deepEqual((await s.call('GET', '/api/invitations', { token: TOKENS.other })).body.data, [])
  assert.equal((await post(s, '/session/invitation', { token: text, password: 'short' })).status, 422)
  assert.equal((await accept(text)).body.user.role, 'viewer')
  assert.equal((await accept(text)).status, 401)
  assert.deepEqual((await invite('new@example.com')).body.validation_errors, { email: ['is that of a user'] })
  const [withdrawn, over] = [(await invite('b@example.com')).body, (await invite('c@example.com')).body]
  assert.equal((await s.call('DELETE', `/api/invitations/${withdrawn.id}`, { token: TOKENS.other })).status, 404)
  assert.equal((await s.call('DELETE', `/api/invitations/${withdrawn.id}`, { token: TOKENS.admin })).status, 200)
  await s.store.query('update invitation set expires_at = now()')
  for (const { token } of [withdrawn, over]) assert.equal((await accept(token)).status, 401)
})

test('a user who is deleted, or whose password is changed, has no session any more; a changed role holds at once', async () => {
  await using s = await serveEverything()
  const admin = await setUp(s)
  const editor = await invited(s, 'editor')
  const users = async () => (await admin.call('GET', '/users')).body.data as { id: string; email: string; role: string }[]
  const { id } = (await users()).find(({ role }) => role === 'editor') ?? assert.fail('no editor')
  assert.equal((await admin.call('PATCH', `/users/${id}`, { role: 'viewer' })).body.role, 'viewer')
  assert.equal((await editor.call('PATCH', '/sinks/goods', {})).status, 403)
  const second = browser(s, cookieOf(await post(s, '/session', { email: 'editor@example.com', password: PASSWORD })))
  const change = (current_password: string) => editor.call('PATCH', '/session', { current_password, password: 'another-password-of-mine' })
  assert.equal((await change('a-wrong-password')).status, 401)
  assert.equal((await change(PASSWORD)).status, 200)
  assert.equal((await second.call('GET', '/sinks')).status, 401)
  assert.equal((await editor.call('GET', '/sinks')).status, 200, 'the session that changed it goes on')
  assert.equal((await admin.call('DELETE', `/users/${id}`)).status, 200)
  assert.equal((await editor.call('GET', '/sinks')).status, 401)
  const [owner] = await users()
  assert.match((await admin.call('DELETE', `/users/${owner?.id}`)).body.validation_errors.role[0], /last admin/)
  assert.equal((await s.call('DELETE', `/api/users/${owner?.id}`, { token: TOKENS.other })).status, 404)
})

test('what users do goes on record in their name, without passwords', async () => {
  await using s = await serveEverything()
  const admin = await setUp(s)
  await invited(s, 'viewer')
  await admin.call('PATCH', '/sinks/goods', { batch_size: 7 })
  const { data } = (await admin.call('GET', '/audit_log')).body
  assert.deepEqual(
    data.map(({ action, kind, name, actor }: any) => [action, kind, name, actor.kind, actor.name]), // oxlint-disable-line typescript/no-explicit-any
    [
      ['update', 'sink', 'goods', 'user', 'owner@example.com'],
      ['accept invitation', 'user', 'viewer@example.com', 'user', 'viewer@example.com'],
      ['create', 'invitation', 'viewer@example.com', 'token', 'admin'],
      ['set up', 'user', 'owner@example.com', 'user', 'owner@example.com'],
    ],
  )
  assert.ok(!JSON.stringify(data).includes(PASSWORD))
})

test('users of a file sign in; another password in it is told, takes effect, and ends their sessions', async () => {
  await using s = await serveEverything()
  const apply = (verb: string, users: unknown, token: string = TOKENS.admin) =>
    s.call('POST', `/api/config/${verb}`, { token, body: { yaml: JSON.stringify({ users }) } })
  const file = [{ email: 'Admin@example.com', password: 'of-the-file!' }, { email: 'v@example.com', password: 'of-the-file!', role: 'viewer' }] // prettier-ignore
  assert.equal((await apply('apply', file, TOKENS.manage)).body.required_scope, 'admin')
  assert.deepEqual(
    (await apply('apply', file)).body.changes
      .filter(({ action }: { action: string }) => action === 'create')
      .map(({ resource_type, new: now }: any) => [resource_type, now]), // oxlint-disable-line typescript/no-explicit-any
    [['user', { email: 'admin@example.com', role: 'admin' }], ['user', { email: 'v@example.com', role: 'viewer' }]], // prettier-ignore
  )
  const { call } = browser(s, cookieOf(await post(s, '/session', { email: 'admin@example.com', password: 'of-the-file!' })))
  const told = async (users: unknown) =>
    (await apply('plan', users)).body.changes.filter(({ action }: { action: string }) => action === 'update')
  assert.deepEqual(await told(file), [])
  const other = [{ email: 'admin@example.com', password: 'another-of-the-file!' }]
  const user = { email: 'admin@example.com', role: 'admin' }
  assert.deepEqual(await told(other), [{ resource_type: 'user', action: 'update', name: 'admin@example.com', old: { ...user, password: '(stored)' }, new: { ...user, password: '(another one)' } }]) // prettier-ignore
  assert.equal((await call('GET', '/sinks')).status, 200, 'a plan changes nothing')
  await apply('apply', other)
  assert.equal((await call('GET', '/sinks')).status, 401)
  assert.equal((await post(s, '/session', { email: 'admin@example.com', password: 'another-of-the-file!' })).status, 200)
  const wrong = await apply('plan', [{ email: 'no email', password: 'x', role: 'king' }])
  assert.match(wrong.body.summary, /user|users, entry 1/)
  assert.equal((await apply('apply', other, TOKENS.other)).status, 422, 'an email is of one account')
})
