/**
 * What holds for every sink that sends over HTTP, whatever it sends to. A new one passes these with a bench of its own; one of another
 * protocol needs the same questions asked of it by tests of its own: what is refused to be connected to, calling off, secrets.
 */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { PushType, PushWire } from '../../sinks/push.ts'
import { Egress } from '../../engine/net/egress.ts'
import { HttpReceiver, type Received } from '../services/http-receiver.ts'
import { keys, batchOf, NEVER } from './batch.ts'

export type Bench = Readonly<{
  type: PushType
  /** A wire to this address; its login is `SECRET`, a request may take so long, a batch 100 messages. */
  open: (url: string, timeoutMs: number, egress?: Egress) => PushWire & AsyncDisposable
  /** a success for whatever was asked */
  answer: (request: Received) => string
  /** keys in the order in which a request brings them */
  keysOf: (request: Received) => readonly string[]
}>
export const SECRET = 'a-very-secret-value'

/** of a request whose answer comes, on a busy machine too; and of one whose answer never does */
const PATIENT_MS = 30_000
const IMPATIENT_MS = 300

export function conforms({ type, open: openFor, answer, keysOf }: Bench): void {
  const open = (url: string, egress?: Egress) => openFor(url, PATIENT_MS, egress)
  const named = (text: string) => `${type.type}: ${text}`
  const good = (request: Received) => ({ headers: { 'content-type': 'application/json' }, body: answer(request) })
  const failed = async (wire: PushWire, count = 2) => {
    const outcome = await wire.send(batchOf(keys(...Array.from({ length: count }, (_, i) => String(i)))), NEVER)
    assert.equal(outcome.kind, 'failed')
    return outcome.kind === 'failed' ? outcome.failure : assert.fail()
  }

  test(named('a batch arrives whole and in order, and is delivered'), async () => {
    await using receiver = await HttpReceiver.start(good)
    await using wire = open(receiver.url)
    const names = Array.from({ length: 100 }, (_, i) => `k${i}`)
    const { kind } = await wire.send(batchOf(keys(...names)), NEVER)
    assert.equal(kind, 'delivered')
    assert.deepEqual(receiver.requests.flatMap(keysOf), names)
  })

  test(named('limits are told: by count, by bytes, and what a request has beside a body'), async () => {
    await using receiver = await HttpReceiver.start(good)
    await using wire = open(receiver.url)
    assert.equal(wire.maxMessages, 100)
    const load = batchOf(keys(...Array.from({ length: 100 }, (_, i) => `k${i}`)))
    const bodies = load.messages.reduce((sum, { view, place }) => sum + view.bodyEnd(place) - view.bodyStart(place), 0)
    await wire.send(load, NEVER)
    const sent = receiver.requests.reduce((sum, { body }) => sum + body.length, 0)
    assert.ok(sent <= bodies + 100 * wire.overheadBytes + 100, `${sent} bytes sent for ${bodies}`)
    assert.ok(wire.maxBytes >= 1024 * 1024 && wire.maxBytes <= 100 * 1024 * 1024)
  })

  test(
    named('whatever goes wrong with a whole request is told by how far it reaches; nothing is tried again, and no redirect followed'),
    async () => {
      const cases = [
        [401, 'refused'],
        [403, 'refused'],
        [404, 'refused'],
        ...([301, 302, 303, 307, 308] as const).map((code) => [code, 'refused'] as const),
        [408, 'unavailable'],
        [502, 'unavailable'],
        [503, 'unavailable'],
        [504, 'unavailable'],
        ...([425, 521, 522, 523, 524, 529] as const).map((code) => [code, 'unavailable'] as const),
        [429, 'throttled'],
        [413, 'tooLarge'],
        [400, 'rejected'],
        [500, 'rejected'],
      ] as const
      let status = 200
      const headers = { 'retry-after': '7', location: '/elsewhere' }
      await using receiver = await HttpReceiver.start(() => ({ status, body: '{"message":"no"}', headers }))
      await using wire = open(receiver.url)
      for (const [code, blame] of cases) {
        status = code
        const failure = await failed(wire)
        assert.equal(failure.blame, blame, String(code))
        assert.equal(failure.answer.status, code)
        assert.equal(failure.retryAfterMs, 7_000)
      }
      assert.equal(receiver.requests.length, cases.length)
      assert.ok(receiver.requests.every(({ path }) => path !== '/elsewhere'))
    },
  )

  test(named('Retry-After is understood as seconds and as a date'), async () => {
    let after = ''
    await using receiver = await HttpReceiver.start(() => ({ status: 503, headers: { 'retry-after': after } }))
    await using wire = open(receiver.url)
    const askedMs = async (text: string) => {
      after = text
      return (await failed(wire)).retryAfterMs
    }
    assert.deepEqual([await askedMs('120'), await askedMs('0'), await askedMs('soon')], [120_000, 0, undefined])
    const date = new Date(Date.now() + 3_600_000)
    const ms = await askedMs(date.toUTCString())
    assert.ok(ms !== undefined && ms > 3_000_000 && ms <= 3_600_000, `${ms} ms until ${date.toUTCString()}`)
    assert.equal(await askedMs(new Date(Date.now() - 60_000).toUTCString()), 0)
  })

  test(named('an address that may not be sent to is never connected to, by deliveries and tests of the connection alike'), async () => {
    await using receiver = await HttpReceiver.start(good)
    const inside = new Egress({ mode: 'public', resolve: async () => [{ address: '127.0.0.1', family: 4 }] })
    // numbers, however they are written, and a name that leads there
    for (const host of ['127.0.0.1', '2130706433', '0x7f.1', '[::ffff:127.0.0.1]', 'hooks.example.com']) {
      await using wire = open(`http://${host}:${receiver.port}`, inside)
      const { blame, answer } = await failed(wire)
      assert.deepEqual([blame, answer.code], ['unreachable', 'EGRESS_REFUSED'], host)
      assert.equal((await wire.test(NEVER))?.code, 'EGRESS_REFUSED', host)
    }
    assert.equal(receiver.connections, 0)
  })

  test(named('a connection that breaks, and an answer that doesn’t come in time, leave it open what arrived'), async () => {
    await using receiver = await HttpReceiver.start()
    for (const reply of ['reset', 'half', 'hang'] as const) {
      await using wire = openFor(receiver.url, reply === 'hang' ? IMPATIENT_MS : PATIENT_MS)
      receiver.handler = () => reply
      assert.equal((await failed(wire)).blame, 'unavailable', reply)
    }
  })

  test(named('where nobody listens nothing was sent'), async () => {
    const receiver = await HttpReceiver.start()
    const { url } = receiver
    await receiver[Symbol.asyncDispose]()
    await using wire = open(url)
    const { blame, answer } = await failed(wire)
    assert.equal(blame, 'unreachable')
    assert.equal(answer.code, 'DESTINATION_UNREACHABLE')
    assert.match(answer.message, /ECONNREFUSED/)
  })

  test(named('a send that is called off settles at once'), async () => {
    await using receiver = await HttpReceiver.start(() => 'hang')
    await using wire = open(receiver.url)
    const off = new AbortController()
    const sent = wire.send(batchOf(keys('1')), off.signal)
    await receiver.until((requests) => requests.length === 1)
    off.abort()
    assert.equal((await sent).kind, 'aborted')
  })

  test(named('an error is kept in the destination’s own words, cut at a limit, and without our secrets'), async () => {
    const words = `the field "größe" is no number; you sent ${SECRET} and ${Buffer.from(SECRET).toString('base64')}`
    await using receiver = await HttpReceiver.start(({ headers }) => ({
      status: 400,
      headers: { 'x-echo': JSON.stringify(headers) },
      body: `${words} ${JSON.stringify(headers)} ${'x'.repeat(100_000)}`,
    }))
    await using wire = open(receiver.url)
    const { answer } = await failed(wire)
    assert.ok(answer.message.startsWith('status 400: the field "größe" is no number; you sent [secret] and '), answer.message)
    const whole = JSON.stringify(answer)
    assert.ok(!whole.includes(SECRET), 'the secret stands in what is kept')
    assert.ok(whole.length < 30_000, `${whole.length} characters`)
  })

  test(named('a test of the connection delivers nothing and tells in the destination’s own words what is wrong'), async () => {
    await using receiver = await HttpReceiver.start(good)
    await using wire = open(receiver.url)
    assert.equal(await wire.test(NEVER), undefined)
    assert.deepEqual(
      receiver.requests.filter(({ method }) => method !== 'GET').flatMap(({ path }) => (path.endsWith('/_search') ? [] : [path])),
      [],
    )
    const { url } = receiver
    await receiver[Symbol.asyncDispose]()
    await using late = open(url)
    assert.match((await late.test(NEVER))?.message ?? '', /ECONNREFUSED/)
    await using nowhere = open('http://no-such-host.invalid')
    assert.match((await nowhere.test(NEVER))?.message ?? '', /^(?:ENOTFOUND|EAI_AGAIN): .*no-such-host\.invalid/)
    await using stranger = await HttpReceiver.start(good, { secure: 'server' })
    await using untrusted = open(stranger.url)
    assert.match((await untrusted.test(NEVER))?.message ?? '', /certificate/i)
  })
}
