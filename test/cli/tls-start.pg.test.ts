/** The service with a certificate, as the settings name it. */
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { text } from 'node:stream/consumers'
import { test } from 'node:test'
import { Agent, request } from 'undici'
import { TestAuthority } from '../services/certificates.ts'
import { CLIENT, OidcIssuer } from '../services/oidc-issuer.ts'
import { freePort } from '../services/free-port.ts'
import { COMMAND, CommandStage } from './running-command.ts'

test('with a certificate and an OIDC issuer in the settings, the API and the metrics speak TLS, commands reach it, and users sign in at the issuer', async () => {
  await using issuer = await OidcIssuer.start()
  await using authority = await TestAuthority.create()
  const { certFile, keyFile } = await authority.issue(['DNS:localhost', 'IP:127.0.0.1'])
  await using stage = await CommandStage.create()
  const [port, metricsPort] = [String(await freePort()), String(await freePort())]
  const tls = { TAILRACE_TLS_CERT_FILE: certFile, TAILRACE_TLS_KEY_FILE: keyFile, SERVER_PORT: port }
  const { outer, gone } = await stage.start(process.execPath, [COMMAND, 'start'], {
    ...tls,
    ...{ TAILRACE_METRICS_PORT: metricsPort, TAILRACE_METRICS_TLS: 'true' },
    ...{ TAILRACE_OIDC_ISSUER: issuer.url, TAILRACE_OIDC_CLIENT_ID: CLIENT.id, TAILRACE_PUBLIC_URL: `https://localhost:${port}` },
    TAILRACE_PASSWORD_SIGN_IN: 'false',
    CONFIG_FILE_YAML: Buffer.from('account: { name: shop }\napi_tokens: [{ name: main, token: a-good-token }]\n').toString('base64'),
  })
  const agent = new Agent({ connect: { ca: authority.pem } })
  for (const url of [`https://localhost:${port}/health`, `https://127.0.0.1:${metricsPort}/metrics`]) {
    const { statusCode, body } = await request(url, { dispatcher: agent })
    await body.dump()
    assert.equal(statusCode, 200, url)
  }
  const session = await request(`https://localhost:${port}/api/session`, { dispatcher: agent })
  assert.deepEqual(await session.body.json(), { user: null, setup_needed: true, sign_in: { password: false, oidc: true } })
  const begun = await request(`https://localhost:${port}/api/session/oidc`, { dispatcher: agent })
  await begun.body.dump()
  assert.equal(begun.statusCode, 302)
  assert.match(String(begun.headers['location']), new RegExp(`^${issuer.url}/authorize\\?.*client_id=${CLIENT.id}&`))
  await agent.close()
  const command = spawn(process.execPath, [COMMAND, 'token', 'ls', '--token', 'a-good-token'], {
    env: { ...process.env, ...tls, NODE_EXTRA_CA_CERTS: authority.file },
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const [listed, [code]] = await Promise.all([text(command.stdout), once(command, 'close') as Promise<[number]>])
  assert.equal(code, 0)
  assert.match(listed, /\bmain\b/)
  outer.kill('SIGTERM')
  await gone
})

test('a key of another certificate stops the start, and is named', async () => {
  await using authority = await TestAuthority.create()
  const [{ certFile }, { keyFile }] = [await authority.issue(['DNS:localhost']), await authority.issue(['DNS:localhost'])]
  const env = { ...process.env, TAILRACE_TLS_CERT_FILE: certFile, TAILRACE_TLS_KEY_FILE: keyFile, TAILRACE_DATA: '/nosuch/folder' }
  const command = spawn(process.execPath, [COMMAND, 'start'], { env, stdio: ['ignore', 'ignore', 'pipe'] })
  const [said, [code]] = await Promise.all([text(command.stderr), once(command, 'close') as Promise<[number]>])
  assert.notEqual(code, 0)
  assert.match(said, /SETTING_INVALID[\s\S]*TAILRACE_TLS_KEY_FILE: the key in .* does not belong to the first certificate in /)
})
