/** Sign-in by OIDC, as browsers, issuers and admins see it. */
import assert from 'node:assert/strict'
import { hash } from 'node:crypto'
import { test } from 'node:test'
import { HttpReceiver } from '../../services/http-receiver.ts'
import { CLIENT, OidcIssuer } from '../../services/oidc-issuer.ts'
import { until } from '../../waiting.ts'
import { Browser, PASSWORD, PUBLIC_URL, refusalOf, serveSignIn, SETUP_CODE } from './served-sign-in.ts'

const CALLBACK = `${PUBLIC_URL}/api/session/oidc/callback`
/** Makes the first admin, who has a password. */
const setUp = (browser: Browser, email = 'ada@example.com') =>
  browser.visit('/api/session/setup', { method: 'POST', body: { code: SETUP_CODE, email, password: PASSWORD } })

test('who was invited signs in by the issuer, comes to the page that was asked for, and is the same user later, whatever the email is then', async () => {
  await using issuer = await OidcIssuer.start()
  await using s = await serveSignIn(issuer)
  assert.equal((await s.invite('Ada@example.com', 'editor')).role, 'editor')
  const browser = s.browser()
  const begun = await browser.visit('/api/session/oidc?to=/sinks%3Fstate=active')
  assert.equal(begun.status, 302)
  const asked = new URL(begun.location ?? '')
  const { code_challenge, state, nonce, ...rest } = Object.fromEntries(asked.searchParams)
  assert.equal(`${asked.origin}${asked.pathname}`, `${issuer.url}/authorize`)
  assert.deepEqual(rest, {
    client_id: CLIENT.id,
    response_type: 'code',
    redirect_uri: CALLBACK,
    scope: 'openid email profile',
    code_challenge_method: 'S256',
  })
  for (const random of [code_challenge, state, nonce]) assert.match(random ?? '', /^[\w-]{43}$/)
  assert.match(begun.cookies.join(), /^tailrace_sign_in=[\w-]+; Path=\/api\/session; Max-Age=600; HttpOnly; SameSite=Lax; Secure$/)

  const back = (await fetch(asked, { redirect: 'manual' })).headers.get('location') ?? ''
  const landed = await browser.visit(back)
  assert.deepEqual([landed.status, landed.location], [302, `${PUBLIC_URL}/sinks?state=active`])
  assert.match(landed.cookies.join('\n'), /^tailrace_session=[\w-]{43}; Path=\/; Max-Age=604800; HttpOnly; SameSite=Lax; Secure$/m)
  assert.ok(!browser.cookies.has('tailrace_sign_in'))
  const user = await browser.user()
  assert.deepEqual([user.email, user.name, user.role, user.account], ['ada@example.com', 'Ada', 'editor', 'shop'])
  assert.equal((await browser.visit('/api/sinks')).status, 200)
  assert.deepEqual((await s.call('GET', '/invitations')).data, [])

  issuer.person = { sub: 'subject-1', email: 'ada@elsewhere.example', email_verified: false, name: 'Ada L.' }
  const later = s.browser()
  assert.equal((await later.signIn()).location, `${PUBLIC_URL}/`)
  assert.deepEqual(await later.user(), { ...user, name: 'Ada L.' })

  const { data } = await s.call('GET', '/audit_log?kind=user')
  assert.equal(data.length, 1)
  const [{ action, name, actor, changes }] = data
  assert.deepEqual(
    [action, name, actor.kind, actor.id, actor.address],
    ['accept invitation', 'ada@example.com', 'user', user.id, '127.0.0.1'],
  )
  assert.deepEqual([changes.issuer.new, changes.subject.new, changes.role.new], [issuer.url, 'subject-1', 'editor'])
  assert.doesNotMatch(s.lines.join(), /an-access-token|eyJ|code=/)
})

test('a user with a password is linked by an email that is verified, and by no other; an email that has changed hands is nobody’s', async () => {
  await using issuer = await OidcIssuer.start()
  await using s = await serveSignIn(issuer)
  await setUp(s.browser())
  for (const person of [{ email: 'ada@example.com' }, { email: 'ada@example.com', email_verified: false }, { email_verified: true }]) {
    issuer.person = { sub: 'subject-1', ...person }
    assert.deepEqual(refusalOf(await s.browser().signIn()), [403, 'OIDC_EMAIL_UNVERIFIED'])
  }
  issuer.person = { sub: 'subject-1', email: 'ADA@example.com', email_verified: true }
  const browser = s.browser()
  await browser.signIn()
  assert.equal((await browser.user()).role, 'admin')
  assert.equal((await s.call('GET', '/audit_log?kind=user')).data[0].action, 'link identity')
  issuer.person = { ...issuer.person, sub: 'subject-2' }
  assert.deepEqual(refusalOf(await s.browser().signIn()), [403, 'OIDC_IDENTITY_TAKEN'])
  const password = { method: 'POST', body: { email: 'ada@example.com', password: PASSWORD } }
  assert.equal((await s.browser().visit('/api/session', password)).status, 200, 'the password is still good')
})

test('settings say which claims count, and that the issuer’s emails are to be trusted; what the ID token lacks is asked at the userinfo endpoint', async () => {
  await using issuer = await OidcIssuer.start()
  issuer.person = { sub: 'subject-1' }
  issuer.userInfo = { upn: 'ada@example.com', profile: { full: 'Ada Lovelace' }, realm: { roles: 'owners' } }
  await using s = await serveSignIn(issuer, {
    env: {
      TAILRACE_OIDC_EMAIL_CLAIM: 'upn',
      TAILRACE_OIDC_NAME_CLAIM: 'profile.full',
      TAILRACE_OIDC_GROUPS_CLAIM: 'realm.roles',
      TAILRACE_OIDC_UNVERIFIED_EMAILS: 'trust',
      TAILRACE_OIDC_ROLES: 'owners=admin',
    },
  })
  const browser = s.browser()
  await browser.signIn()
  const { email, name, role } = await browser.user()
  assert.deepEqual([email, name, role], ['ada@example.com', 'Ada Lovelace', 'admin'])
})

test('groups give roles at each sign-in and take them away again, but for the last admin; the others need an invitation', async () => {
  await using issuer = await OidcIssuer.start()
  await using s = await serveSignIn(issuer, { env: { TAILRACE_OIDC_ROLES: 'owners=admin,staff=viewer,developers=editor' } })
  const signIn = async (sub: string, groups: unknown) => {
    issuer.person = { sub, email: `${sub}@example.com`, email_verified: true, groups }
    const browser = s.browser()
    const landed = await browser.signIn()
    return landed.status === 302 ? (await browser.user()).role : refusalOf(landed)
  }
  assert.deepEqual(await signIn('ada', ['guests']), [403, 'OIDC_NOT_INVITED'])
  assert.equal(await signIn('ada', ['staff', 'owners', 'developers']), 'admin')
  assert.equal(await signIn('ada', ['staff']), 'admin', 'the last admin stays one')
  assert.equal(await signIn('bob', ['owners']), 'admin')
  assert.equal(await signIn('ada', ['staff']), 'viewer')
  assert.deepEqual(await signIn('ada', []), [403, 'OIDC_NOT_INVITED'], 'the groups gave the role, and give none any more')
  await s.invite('eve@example.com', 'editor')
  assert.equal(await signIn('eve', []), 'editor')
  assert.equal(await signIn('eve', undefined), 'editor', 'an admin gave the role')
  const { data } = await s.call('GET', '/audit_log?kind=user&name=ada@example.com')
  const entries = data as readonly { action: string; changes: { role: { new: string } } }[]
  const roles = entries.map(({ action, changes }) => `${action}: ${changes.role.new}`)
  assert.deepEqual(roles, ['update: viewer', 'create: admin'])
})

test('lists of domains and groups hold for all; a default role lets the others in, into the account that is named', async () => {
  await using issuer = await OidcIssuer.start()
  const env = { TAILRACE_OIDC_DOMAINS: '@Example.com', TAILRACE_OIDC_GROUPS: 'staff', TAILRACE_OIDC_DEFAULT_ROLE: 'viewer' }
  await using s = await serveSignIn(issuer, { env }, ['shop', 'other'])
  const named = await s.start({ env: { ...env, TAILRACE_OIDC_ACCOUNT: 'other' } })
  const landed = async (person: object, url = s.url) => {
    issuer.person = { sub: 'subject-1', email: 'ada@example.com', email_verified: true, groups: ['staff'], ...person }
    return new Browser(url).signIn()
  }
  assert.deepEqual(refusalOf(await landed({ email: 'ada@example.com.evil.example' })), [403, 'OIDC_NOT_ALLOWED'])
  assert.deepEqual(refusalOf(await landed({ groups: ['guests'] })), [403, 'OIDC_NOT_ALLOWED'])
  assert.deepEqual(refusalOf(await landed({ email_verified: false })), [403, 'OIDC_EMAIL_UNVERIFIED'])
  assert.deepEqual(refusalOf(await landed({})), [503, 'OIDC_MISCONFIGURED'])
  assert.match(s.lines.join(), /there are several accounts \(other, shop\): TAILRACE_OIDC_ACCOUNT/)
  assert.equal((await landed({}, named)).status, 302)
  const { rows } = await s.store.query('select u.email, u.role, a.name from app_user u join account a on a.id = u.account_id')
  assert.deepEqual(rows, [{ email: 'ada@example.com', role: 'viewer', name: 'other' }])
  const elsewhere = await s.start({ env: { ...env, TAILRACE_OIDC_ACCOUNT: 'shop' } })
  assert.deepEqual(refusalOf(await landed({}, elsewhere)), [403, 'OIDC_NOT_INVITED'])
})

test('an ID token with a wrong signature, algorithm, nonce, audience, issuer or time signs nobody in, and the answer says what is wrong', async () => {
  await using issuer = await OidcIssuer.start()
  await using s = await serveSignIn(issuer, { env: { TAILRACE_OIDC_DEFAULT_ROLE: 'viewer' } })
  const now = Math.floor(Date.now() / 1_000)
  for (const [claims, wrong] of [
    [{ nonce: 'another' }, '"nonce"'],
    [{ nonce: undefined }, '"nonce"'],
    [{ aud: 'another-client' }, '"aud"'],
    [{ aud: [CLIENT.id, 'another-client'], azp: 'another-client' }, '"azp"'],
    [{ iss: 'https://evil.example' }, '"iss"'],
    [{ exp: now - 600 }, '"exp"'],
    [{ nbf: now + 600 }, '"nbf"'],
    [{ sub: undefined }, '"sub"'],
  ] as const) {
    issuer.forged = (said) => ({ ...said, ...claims })
    const refused = await s.browser().signIn()
    assert.deepEqual(refusalOf(refused), [401, 'OIDC_TOKEN_INVALID'], wrong)
    assert.ok(refused.body.summary.includes(wrong), refused.body.summary)
  }
  issuer.repent()
  issuer.isUnsigned = true
  assert.match((await s.browser().signIn()).body.summary, /"alg"/)
  issuer.isUnsigned = false
  issuer.forgeSignature()
  const browser = s.browser()
  const refused = await browser.signIn()
  assert.deepEqual(refusalOf(refused), [401, 'OIDC_TOKEN_INVALID'])
  assert.match(refused.body.summary, /signature/)
  assert.equal(await browser.user(), null)
  assert.deepEqual((await s.store.query('select from app_user')).rows, [])
  issuer.repent()
  issuer.forged = (said) => ({ ...said, exp: now - 20, iat: now - 320 })
  assert.equal((await browser.signIn()).status, 302, 'clocks may differ by a minute')
})

test('a key that the issuer has just taken signs users in at once, by RS256 and by ES256', async () => {
  await using issuer = await OidcIssuer.start('RS256')
  await using s = await serveSignIn(issuer, { env: { TAILRACE_OIDC_DEFAULT_ROLE: 'viewer' } })
  assert.equal((await s.browser().signIn()).status, 302)
  issuer.rotate('ES256')
  assert.equal((await s.browser().signIn()).status, 302)
  assert.equal(issuer.asked.filter((path) => path.startsWith('/.well-known')).length, 1, 'what it offers is asked once')
})

test('a sign-in ends once, in the browser that began it, in any process of the service', async () => {
  await using issuer = await OidcIssuer.start()
  issuer.takesCodesAgain = true
  await using s = await serveSignIn(issuer, { env: { TAILRACE_OIDC_DEFAULT_ROLE: 'viewer' } })
  const invalid = [401, 'OIDC_STATE_INVALID']
  const [browser, other] = [s.browser(), s.browser()]
  const back = await browser.goToIssuer()
  assert.deepEqual(refusalOf(await other.visit(back)), invalid, 'a browser that began none')
  await other.goToIssuer()
  assert.deepEqual(refusalOf(await other.visit(back)), invalid, 'a browser that began another one')
  const ticket = browser.cookies.get('tailrace_sign_in') ?? ''
  browser.cookies.set('tailrace_sign_in', `${ticket.slice(0, -9)}${hash('sha256', ticket, 'base64url').slice(0, 9)}`)
  assert.deepEqual(refusalOf(await browser.visit(back)), invalid, 'a cookie that was changed')
  browser.cookies.set('tailrace_sign_in', ticket)
  browser.moveTo(await s.start({ env: { TAILRACE_OIDC_DEFAULT_ROLE: 'viewer' } }))
  assert.equal((await browser.visit(back)).status, 302)
  assert.deepEqual(refusalOf(await browser.visit(back)), invalid, 'the browser has forgotten it')
  browser.cookies.set('tailrace_sign_in', ticket)
  assert.deepEqual(refusalOf(await browser.visit(back)), invalid, 'it was completed, though the issuer takes the code again')
})

test('a new person who signs in twice at the same time is one user', async () => {
  await using issuer = await OidcIssuer.start()
  await using s = await serveSignIn(issuer, { env: { TAILRACE_OIDC_DEFAULT_ROLE: 'editor' } })
  const landed = await Promise.all([s.browser().signIn(), s.browser().signIn()])
  assert.deepEqual(landed.map(({ status }) => status), [302, 302]) // prettier-ignore
  assert.equal((await s.store.query('select from app_user')).rows.length, 1)
})

test('an issuer that is down, slow, refuses, or is not the one of the settings is told by its code, and works as soon as it is right', async () => {
  await using issuer = await OidcIssuer.start()
  await using s = await serveSignIn(issuer, { env: { TAILRACE_OIDC_DEFAULT_ROLE: 'viewer' } })
  const begin = async (url = s.url) => refusalOf(await new Browser(url).visit('/api/session/oidc'))
  issuer.fault = () => 'reset'
  assert.deepEqual(await begin(), [503, 'OIDC_UNREACHABLE'])
  issuer.fault = () => ({ status: 502 })
  assert.deepEqual(await begin(), [503, 'OIDC_UNREACHABLE'])
  issuer.fault = () => 'hang'
  assert.deepEqual(await begin(await s.start({ timeoutMs: 50 })), [503, 'OIDC_UNREACHABLE'])
  issuer.fault = () => ({ status: 404 })
  assert.deepEqual(await begin(), [503, 'OIDC_MISCONFIGURED'])
  issuer.fault = undefined
  issuer.offers = { issuer: 'https://another.example' }
  assert.deepEqual(await begin(), [503, 'OIDC_MISCONFIGURED'])
  assert.match(s.lines.join(), /calls itself https:\/\/another\.example|does not match the expected issuer/)
  issuer.offers = {}
  const token = ({ path }: { path: string }) => (path === '/token' ? { status: 503 } : undefined)
  issuer.fault = token
  assert.deepEqual(refusalOf(await s.browser().signIn()), [503, 'OIDC_UNREACHABLE'])
  issuer.fault = undefined
  issuer.refusal = 'access_denied'
  const refused = await s.browser().signIn()
  assert.deepEqual(refusalOf(refused), [403, 'OIDC_REFUSED'])
  assert.match(refused.body.summary, /access_denied/)
  issuer.refusal = undefined
  const wrongSecret = await s.start({ env: { TAILRACE_OIDC_CLIENT_SECRET: 'another' } })
  assert.deepEqual(refusalOf(await new Browser(wrongSecret).signIn()), [503, 'OIDC_MISCONFIGURED'])
  assert.match(s.lines.join(), /invalid_client/)
  const browser = s.browser()
  const back = new URL(await browser.goToIssuer())
  back.searchParams.set('code', 'a-guess')
  assert.deepEqual(refusalOf(await browser.visit(back.href)), [403, 'OIDC_REFUSED'])
  assert.equal((await browser.signIn()).status, 302)
  await using gone = await HttpReceiver.start()
  const url = await s.start({ env: { TAILRACE_OIDC_ISSUER: gone.url } })
  await gone[Symbol.asyncDispose]()
  assert.deepEqual(await begin(url), [503, 'OIDC_UNREACHABLE'])
})

test('a sign-in ends at a path of the service, and nowhere else', async () => {
  await using issuer = await OidcIssuer.start()
  await using s = await serveSignIn(issuer, { env: { TAILRACE_OIDC_DEFAULT_ROLE: 'viewer' } })
  for (const to of [
    'https://evil.example/',
    '//evil.example',
    '/\\evil.example',
    '\\\\evil.example',
    'sinks',
    '',
    'javascript:alert(1)',
    '/\t/evil.example',
    `/${'x'.repeat(500)}`,
  ]) {
    // prettier-ignore
    const { status, body } = await s.browser().visit(`/api/session/oidc?to=${encodeURIComponent(to)}`)
    assert.deepEqual([status, body.code, Object.keys(body.validation_errors)], [422, 'VALIDATION_FAILED', ['to']], to)
  }
  for (const [to, where] of [
    ['/.//evil.example', '//evil.example'],
    ['/sinks/ä?a=b#c', '/sinks/%C3%A4?a=b#c'],
  ] as const)
    // prettier-ignore
    assert.equal((await s.browser().signIn(to)).location, `${PUBLIC_URL}${where}`)
})

test('who signs out is told where the issuer ends its own session, if it does', async () => {
  await using issuer = await OidcIssuer.start()
  await using s = await serveSignIn(issuer)
  const [admin, browser] = [s.browser(), s.browser()]
  await setUp(admin)
  assert.deepEqual((await admin.visit('/api/session', { method: 'DELETE' })).body, { success: true }, 'a session by a password')
  await browser.signIn()
  const idToken = browser.cookies.get('tailrace_id_token') ?? assert.fail('no ID token is kept')
  const { body } = await browser.visit('/api/session', { method: 'DELETE' })
  const url = new URL(body.end_session_url)
  assert.equal(`${url.origin}${url.pathname}`, `${issuer.url}/logout`)
  assert.deepEqual(Object.fromEntries(url.searchParams), {
    client_id: CLIENT.id,
    id_token_hint: idToken,
    post_logout_redirect_uri: `${PUBLIC_URL}/`,
  })
  assert.deepEqual([await browser.user(), [...browser.cookies.keys()]], [null, []])
  issuer.offers = {}
  const another = new Browser(await s.start())
  issuer.person = { ...issuer.person, picture: 'x'.repeat(4_000) } // such a token is too long for a cookie
  await another.signIn()
  assert.equal(another.cookies.get('tailrace_id_token'), '-')
  assert.deepEqual((await another.visit('/api/session', { method: 'DELETE' })).body, { success: true })
})

test('without passwords users sign in by the issuer alone, and the set-up code makes the first admin all the same', async () => {
  await using issuer = await OidcIssuer.start()
  await using s = await serveSignIn(issuer, { env: { TAILRACE_PASSWORD_SIGN_IN: 'false', TAILRACE_OIDC_DEFAULT_ROLE: 'viewer' } })
  const browser = s.browser()
  await browser.signIn()
  const { body } = await browser.visit('/api/session')
  assert.deepEqual([body.user.role, body.setup_needed, body.sign_in], ['viewer', true, { password: false, oidc: true }])
  const owner = { email: 'owner@example.com', password: PASSWORD }
  const admin = s.browser()
  assert.equal((await setUp(admin, owner.email)).status, 200, 'a viewer came first, and nobody is locked out')
  assert.equal((await setUp(s.browser(), 'second@example.com')).body.code, 'SETUP_REFUSED')
  const { token } = await s.invite('eve@example.com', 'viewer')
  for (const [browserOf, path, method, given] of [
    [s.browser(), '/api/session', 'POST', owner],
    [s.browser(), '/api/session/invitation', 'POST', { token, password: PASSWORD }],
    [admin, '/api/session', 'PATCH', { current_password: PASSWORD, password: PASSWORD }],
  ] as const)
    assert.deepEqual(refusalOf(await browserOf.visit(path, { method, body: given })), [403, 'PASSWORDS_OFF'], `${method} ${path}`)
  const again = new Browser(await s.start())
  assert.equal((await again.visit('/api/session', { method: 'POST', body: owner })).status, 200, 'with the setting they are good again')
})

test('who fails to sign in is slowed and told to the log, as who tries passwords', async () => {
  await using issuer = await OidcIssuer.start()
  await using s = await serveSignIn(issuer, { env: { TAILRACE_OIDC_DEFAULT_ROLE: 'viewer' }, wrongTokens: 0 })
  const browser = s.browser()
  const back = await browser.goToIssuer()
  const statuses: number[] = []
  const visit = async (who: Browser) => statuses.push((await who.visit(back)).status)
  const wrong = visit(s.browser())
  await until('the failed sign-in is told', () => s.lines.join().includes('sign-ins by OIDC failed'))
  await Promise.all([wrong, visit(browser)])
  assert.deepEqual(statuses, [401, 302])
})
