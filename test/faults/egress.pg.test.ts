/** A service that others say to where it sends: nothing goes into the network it stands in, whatever a name or a redirect leads to. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { HttpReceiver } from '../services/http-receiver.ts'
import { createDatabase, createState } from '../services/postgres.ts'
import { freePort } from '../services/free-port.ts'
import { Service } from './service.ts'
import { until } from '../waiting.ts'

test('with EGRESS=public sinks send to public addresses and to what is on the allow list, and a redirect leads nowhere', async () => {
  await using source = await createDatabase('create table goods (id int primary key)')
  await using state = await createState()
  await using inside = await HttpReceiver.start()
  await using partner = await HttpReceiver.start(() => ({ status: 307, headers: { location: `${inside.url}/secret` } }))
  const sinkOf = (name: string) => ({ name, destination: { type: 'webhook', http_endpoint: name } })
  await using service = await Service.prepare({
    ...{ source: source.connection, stateUrl: state.url },
    env: { EGRESS: 'public', EGRESS_ALLOW: '127.0.0.1' },
    endpoints: [
      { name: 'partner', url: partner.url },
      { name: 'inside', url: `http://127.0.0.2:${inside.port}` },
      { name: 'metadata', url: 'http://169.254.169.254/latest/meta-data' },
    ],
    sinks: ['partner', 'inside', 'metadata'].map(sinkOf),
  })
  await service.startReady()
  await source.query('insert into goods values (1), (2), (3), (4)')
  const failureOf = async (name: string) => {
    const { body } = await service.get(`/api/sinks/${name}`)
    const { checks } = (body as { health: { checks: { name: string; error?: { code: string; message: string } }[] } }).health
    return checks.find((check) => check.name === 'Message delivery')?.error
  }
  const untilFailed = (name: string) => until(`${name} fails`, () => failureOf(name))
  for (const name of ['inside', 'metadata']) {
    assert.equal((await untilFailed(name)).code, 'EGRESS_REFUSED', name)
    const { body } = await service.post(`/api/sinks/${name}/test_connection`, {})
    assert.match(JSON.stringify(body), /"success":false.*EGRESS/, name)
  }
  assert.match((await untilFailed('partner')).message, /^status 307/)
  assert.ok(partner.requests.length > 0)
  assert.equal(inside.connections, 0)
})

test('a start opens the metrics where their own setting says, gives rows to no test service, and encrypts logins that an older version stored', async () => {
  await using source = await createDatabase()
  await using state = await createState()
  const port = await freePort()
  const host = process.platform === 'linux' ? '127.0.0.2' : '127.0.0.1' // elsewhere the machine has but one address of its own
  const env = { TAILRACE_METRICS_PORT: String(port), TAILRACE_METRICS_HOST: host }
  await using service = await Service.prepare({ source: source.connection, stateUrl: state.url, sinks: [], env })
  await service.startReady()
  assert.equal((await fetch(`http://${host}:${port}/metrics`)).status, 200)
  if (host !== '127.0.0.1') await assert.rejects(fetch(`http://127.0.0.1:${port}/metrics`))
  const made = async (endpoint: object) => JSON.stringify((await service.post('/api/destinations/http_endpoints', endpoint)).body)
  assert.match(await made({ name: 'theirs', 'webhook.site': true }), /TAILRACE_TEST_ENDPOINTS/)
  await made({ name: 'old', url: 'http://127.0.0.1:9/in' })
  await state.query(`update tailrace.http_endpoint set url = 'http://user:pass-word@127.0.0.1:9/in' where name = 'old'`)
  await service.stop()
  await service.startReady()
  assert.deepEqual(await state.query('select url from tailrace.http_endpoint'), [{ url: 'http://127.0.0.1:9/in' }])
})
