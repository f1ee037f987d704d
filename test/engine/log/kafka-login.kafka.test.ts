/** Brokers that ask for TLS and a login. */
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import type { KafkaConnection, KafkaSasl } from '../../../engine/log/kafka/connection.ts'
import { openKafkaLog } from '../../../engine/log/kafka/kafka-log.ts'
import { tokenFrom } from '../../../engine/log/kafka/oauth-token.ts'
import { KAFKA_STRANGER, KAFKA_USER, startKafka, type TestBroker } from '../../services/kafka.ts'
import { append, lsnsOf, readSome, SOURCE, TOPIC } from './conformance.ts'
import { kafkaHome } from './kafka-home.ts'
import { pass } from '../../waiting.ts'

const CA = readFileSync(join(import.meta.dirname, '../../services/tls/ca.crt'), 'utf8')
const OTHER_CA = readFileSync(join(import.meta.dirname, '../../services/tls/other-ca.crt'), 'utf8')

let broker: TestBroker
before(async () => (broker = await startKafka({ secured: true })))
after(() => broker[Symbol.asyncDispose]())

async function secured(sasl: KafkaSasl, ca = CA) {
  const home = await kafkaHome([broker.address], { tls: { ca }, sasl })
  return home
}
const open = (connection: KafkaConnection) => openKafkaLog({ connection, query: async () => ({ rows: [] }), openTimeoutMs: 500 })

for (const mechanism of ['plain', 'scram-sha-512'] as const) {
  test(`a log is used over TLS with ${mechanism}, also after the broker has ended sessions`, async () => {
    await using home = await secured({ mechanism, ...KAFKA_USER })
    const log = await home.open()
    await log.createTopic(TOPIC, 1)
    await log.beginRun(SOURCE)
    await append(log, 1)
    const reading = readSome(log, 3)
    await pass(2_500, 'the broker ends every session of before by then')
    await append(log, 2)
    await append(log, 3)
    assert.deepEqual(lsnsOf(await reading), [1, 2, 3])
  })
}

test('a token of an OAuth endpoint lets in', async () => {
  const asked: string[] = []
  const endpoint = createServer(async (request, response) => {
    let body = ''
    for await (const chunk of request) body += String(chunk)
    asked.push(`${request.headers.authorization} ${body}`)
    const now = Math.floor(Date.now() / 1000)
    const part = (value: object) => Buffer.from(JSON.stringify(value)).toString('base64url')
    const token = `${part({ alg: 'none' })}.${part({ sub: 'x', iat: now, exp: now + 600 })}.`
    response.end(JSON.stringify({ access_token: token, expires_in: 600 }))
  }).listen(0, '127.0.0.1')
  await once(endpoint, 'listening')
  try {
    const url = `http://127.0.0.1:${(endpoint.address() as AddressInfo).port}/token`
    const token = tokenFrom({ url, clientId: 'me', clientSecret: 's:e', scope: 'kafka' })
    await using home = await secured({ mechanism: 'oauthbearer', token })
    const log = await home.open()
    await log.createTopic(TOPIC, 1)
    await log.beginRun(SOURCE)
    await append(log, 1)
    assert.deepEqual(lsnsOf(await readSome(log, 1)), [1])
    const credentials = Buffer.from('me:s%3Ae').toString('base64')
    assert.deepEqual(asked, [`Basic ${credentials} grant_type=client_credentials&scope=kafka`], 'asked once for all connections')
  } finally {
    endpoint.close()
  }
})

test('what a login without rights may not do is refused, with the broker’s words', async () => {
  await using home = await secured({ mechanism: 'plain', ...KAFKA_USER })
  await using own = await home.open()
  await own.createTopic(TOPIC, 1)
  const connection = { ...home.connection, sasl: { mechanism: 'plain', ...KAFKA_STRANGER } } as const
  await using log = await home.open({ connection })
  const refused = (what: RegExp) => ({ code: 'LOG_REFUSED', message: what })
  await assert.rejects(log.createTopic('other.1', 1), refused(/authoriz/i))
  await assert.rejects(
    log.subscribe(TOPIC, { assigned: () => undefined, revoked: () => undefined }).then(() => undefined),
    refused(/group/i),
  )
})

test('a wrong password, no login, no TLS and an unknown authority are told apart from brokers that are away', async () => {
  const [host, port] = broker.address.split(':') as [string, string]
  const at = { brokers: [{ host, port: Number(port) }], clientId: 'tailrace-test' }
  const wrong = { mechanism: 'plain', ...KAFKA_USER, password: 'wrong' } as const
  await assert.rejects(open({ ...at, tls: { ca: CA }, sasl: wrong }), { code: 'LOG_REFUSED', message: /Authentication failed/i })
  await assert.rejects(open({ ...at, tls: { ca: OTHER_CA }, sasl: { mechanism: 'plain', ...KAFKA_USER } }), { code: 'LOG_REFUSED' })
  await assert.rejects(open({ ...at, sasl: { mechanism: 'plain', ...KAFKA_USER } }), { code: 'LOG_UNREACHABLE' })
  await assert.rejects(open({ ...at, tls: { ca: CA } }), { code: 'LOG_UNREACHABLE' })
})
