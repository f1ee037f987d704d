/** The API over TLS, with certificates made here. */
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { copyFile, rm, writeFile } from 'node:fs/promises'
import { connect as connectPlain } from 'node:net'
import { after, before, test } from 'node:test'
import { connect, type TLSSocket } from 'node:tls'
import { listenForMetrics } from '../../api/metrics-server.ts'
import { Certificate, openAuthority, type CertificateFiles } from '../../api/http/certificate.ts'
import { EngineError } from '../../engine/errors.ts'
import { createLogger } from '../../engine/logger.ts'
import { Metrics } from '../../engine/metrics.ts'
import { TestAuthority } from '../services/certificates.ts'
import { until } from '../waiting.ts'
import { serve, waitingCount, type Fixture } from './api-fixture.ts'
import { message, TOKEN } from './scripted-engine.ts'

const RECEIVE = '/api/http_pull_consumers/goods/receive'
const HERE = ['DNS:localhost', 'IP:127.0.0.1']
const authorization = `authorization: Bearer ${TOKEN}\r\n`
const LOOK_EVERY_MS = 10

let authority: TestAuthority
before(async () => {
  authority = await TestAuthority.create()
})
after(() => authority[Symbol.asyncDispose]())

type Served = AsyncDisposable &
  Readonly<{ s: Fixture; files: CertificateFiles; log: string[]; opened: (servername?: string) => Promise<TLSSocket> }>

async function serveTls(limits: Parameters<typeof serve>[0] = {}): Promise<Served> {
  await using stack = new AsyncDisposableStack()
  const files = await authority.issue(HERE)
  const log: string[] = []
  const logger = createLogger({ level: 'info', format: 'json', destination: { write: (line: string) => void log.push(line) } })
  const certificate = stack.use(new Certificate(files, logger, LOOK_EVERY_MS))
  const s = stack.use(await serve(limits, { certificate }))
  const opened = async () => {
    const socket = connect({ port: portOf(s), host: '127.0.0.1', ca: authority.pem })
    socket.on('error', () => {})
    await once(socket, 'secureConnect')
    return socket
  }
  const owned = stack.move()
  return { s, files, log, opened, [Symbol.asyncDispose]: () => owned.disposeAsync() }
}

const portOf = (s: Fixture): number => Number(new URL(s.api.url).port)

/** Sends a request on a connection that stays open. @returns the answer, once it has its end */
async function ask(socket: TLSSocket, path: string, headers = '', end = '}'): Promise<string> {
  let text = ''
  const came = new Promise<string>((resolve) => {
    const take = (chunk: Buffer) => {
      text += String(chunk)
      if (!text.endsWith(end)) return
      socket.off('data', take)
      resolve(text)
    }
    socket.on('data', take).once('close', () => resolve(text))
  })
  socket.write(`GET ${path} HTTP/1.1\r\nhost: localhost\r\n${headers}\r\n`)
  return came
}

const nameOf = (socket: TLSSocket): string => String(socket.getPeerCertificate().subject.CN)
const copy = async (from: CertificateFiles, to: CertificateFiles) => {
  await copyFile(from.keyFile, to.keyFile)
  await copyFile(from.certFile, to.certFile)
}

test('the API speaks TLS from 1.2 on, and nothing else on its port', async () => {
  await using served = await serveTls()
  const { s, opened } = served
  assert.match(s.api.url, /^https:\/\/127\.0\.0\.1:\d+$/)
  const socket = await opened()
  assert.equal(socket.getProtocol(), 'TLSv1.3')
  assert.match(await ask(socket, '/health'), /^HTTP\/1\.1 200 /)
  assert.match(await ask(socket, '/api/sinks', authorization), /^HTTP\/1\.1 200 [\s\S]*"goods"/)
  socket.destroy()
  const older = connect({
    port: portOf(s),
    host: '127.0.0.1',
    ca: authority.pem,
    minVersion: 'TLSv1',
    maxVersion: 'TLSv1.1',
    ciphers: 'DEFAULT@SECLEVEL=0',
  })
  const [refused] = (await once(older, 'error')) as [NodeJS.ErrnoException]
  assert.match(String(refused.code), /PROTOCOL_VERSION|ALERT|ECONNRESET/)
  await using hasty = await serveTls({ headersMs: 200, checkEveryMs: 20 })
  for (const said of ['GET /health HTTP/1.1\r\nhost: x\r\n\r\n', '']) {
    const plain = connectPlain({ port: portOf(hasty.s), host: '127.0.0.1' })
    let answer = ''
    plain.on('error', () => {}).on('data', (chunk) => (answer += chunk.toString('latin1')))
    plain.write(said)
    await once(plain, 'close') // one that says nothing has so long for its handshake as another for its headers
    assert.doesNotMatch(answer, /HTTP/)
  }
})

test('a new certificate is served to whoever comes then, and what is open stays open', async () => {
  await using served = await serveTls()
  const { s, files, log, opened } = served
  const kept = await opened()
  assert.match(await ask(kept, '/health'), /^HTTP\/1\.1 200 /)
  const waiting = await opened()
  const before = nameOf(waiting)
  const received = ask(waiting, `${RECEIVE}?wait_for=60s`, authorization)
  await waitingCount(s.goods, 1)
  const next = await authority.issue(HERE)
  await copyFile(next.keyFile, files.keyFile) // the certificate comes later: no pair
  await until('it is told that they do not fit', () => log.some((line) => line.includes('does not belong to the first certificate')))
  const between = await opened()
  assert.equal(nameOf(between), before)
  between.destroy()
  await copyFile(next.certFile, files.certFile)
  await until('the new one is served', async () => {
    const socket = await opened()
    const name = nameOf(socket)
    socket.destroy()
    return name !== before
  })
  assert.match(await ask(kept, '/health'), /^HTTP\/1\.1 200 /)
  s.goods.push(message('a1'))
  assert.match(await received, /"ack_id":"a1"/)
  assert.equal(log.filter((line) => line.includes('does not belong')).length, 1, 'told once')
  for (const socket of [kept, waiting]) socket.destroy()
})

test('files that are gone for a while are told, and change nothing', async () => {
  await using served = await serveTls()
  const { files, log, opened } = served
  const next = await authority.issue(HERE)
  await rm(files.certFile)
  await until('it is told', () => log.some((line) => line.includes('ENOENT')))
  const socket = await opened()
  const before = nameOf(socket)
  socket.destroy()
  await copy(next, files)
  await until('the new one is served', async () => {
    const other = await opened()
    const name = nameOf(other)
    other.destroy()
    return name !== before
  })
})

test('connections without a token are counted as without TLS, and those with one are not', async () => {
  await using served = await serveTls({ strangers: 2 })
  const { opened } = served
  const known = await opened()
  assert.match(await ask(known, '/api/sinks', authorization), /^HTTP\/1\.1 200 /)
  const strange = [await opened(), await opened()]
  await assert.rejects(opened(), 'the third without a token')
  for (const socket of strange) socket.destroy()
  const again = await until('the server knows that they have gone', () => opened().catch(() => undefined))
  for (const socket of [known, again]) socket.destroy()
})

test('files that can’t be used stop the start, and the variable is named', async () => {
  const logger = createLogger({ level: 'silent', format: 'json' })
  const [good, other] = [await authority.issue(HERE), await authority.issue(HERE)]
  const noPem = `${good.certFile}.txt`
  await writeFile(noPem, 'not a certificate')
  const refused = (files: CertificateFiles): EngineError => {
    try {
      new Certificate(files, logger)[Symbol.dispose]()
    } catch (error) {
      assert.ok(error instanceof EngineError)
      assert.equal(error.code, 'SETTING_INVALID')
      return error
    }
    return assert.fail('it was taken')
  }
  assert.match(refused({ ...good, certFile: '/nosuch/tls.crt' }).message, /^TAILRACE_TLS_CERT_FILE: .*ENOENT.*\/nosuch\/tls\.crt/)
  assert.match(refused({ ...good, keyFile: '/nosuch/tls.key' }).message, /^TAILRACE_TLS_KEY_FILE: .*ENOENT/)
  assert.match(refused({ ...good, certFile: noPem }).message, /^TAILRACE_TLS_CERT_FILE: .* has no certificate in PEM$/)
  assert.match(refused({ ...good, keyFile: noPem }).message, /^TAILRACE_TLS_KEY_FILE: .* has no private key in PEM/)
  assert.match(refused({ ...good, keyFile: other.keyFile }).message, /^TAILRACE_TLS_KEY_FILE: the key in .* does not belong to/)
  assert.throws(() => openAuthority(noPem, logger), {
    code: 'SETTING_INVALID',
    message: /^TAILRACE_PEER_CA_FILE: .* has no certificate/,
  })
})

test('a certificate that has expired, is not valid yet or ends soon is served, with a warning', async () => {
  const inDays = (days: number) => `${new Date(Date.now() + days * 86_400_000).toISOString().slice(0, 19).replaceAll(/[-T:]/g, '')}Z`
  for (const [from, to, told] of [
    [-30, -1, 'has expired'],
    [1, 30, 'is not valid yet'],
    [-1, 3, 'expires in less than 14 days'],
    [-1, 90, ''],
  ] as const) {
    const log: string[] = []
    const logger = createLogger({ level: 'info', format: 'json', destination: { write: (line: string) => void log.push(line) } })
    using certificate = new Certificate(await authority.issue(HERE, [inDays(from), inDays(to)]), logger)
    assert.ok(certificate.options.cert)
    assert.equal(log.length, told === '' ? 0 : 1, told)
    assert.ok(log.join('').includes(told), told)
  }
})

test('metrics speak TLS with the same certificate', async () => {
  const logger = createLogger({ level: 'silent', format: 'json' })
  using certificate = new Certificate(await authority.issue(HERE), logger)
  const metrics = new Metrics({ version: '9.9.9', processMetrics: false })
  await using server = await listenForMetrics({
    host: '127.0.0.1',
    port: 0,
    user: undefined,
    password: undefined,
    metrics,
    logger,
    certificate,
  })
  assert.match(server.url, /^https:/)
  const socket = connect({ port: Number(new URL(server.url).port), host: '127.0.0.1', ca: authority.pem })
  assert.match(await ask(socket, '/metrics', 'connection: close\r\n', 'never'), /^HTTP\/1\.1 200 [\s\S]*tailrace_build_info/)
})
