/** What the Python client does about answers: programs that use it, against the real API and a scripted service. */
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { text } from 'node:stream/consumers'
import { test } from 'node:test'
import { serve } from '../api/api-fixture.ts'
import { message, TOKEN } from '../api/scripted-engine.ts'
import { PYTHON_PATH, withoutPython } from './python.ts'
import { json, scripted, wire } from './scripted-service.ts'

const options = { skip: withoutPython }

/** Runs a program; it has the URL of a service. @returns what it printed, by lines */
async function python(url: string, program: string): Promise<readonly string[]> {
  const env = { ...process.env, PYTHONPATH: PYTHON_PATH, PYTHONDONTWRITEBYTECODE: '1', URL: url, TOKEN }
  const source = `import os, tailrace\nurl, token = os.environ["URL"], os.environ["TOKEN"]\n${program}`
  const child = spawn('python3', ['-c', source], { env, stdio: ['ignore', 'pipe', 'pipe'] })
  const [out, said, [code]] = await Promise.all([text(child.stdout), text(child.stderr), once(child, 'close')])
  assert.equal(code, 0, said)
  return out.trimEnd().split('\n')
}

test('Python: a loop over messages acks them, and what it has not begun goes back when it is left', options, async () => {
  await using s = await serve()
  s.goods.push(...['a1', 'a2', 'a3', 'a4', 'a5'].map((id) => message(id)))
  const printed = await python(
    s.api.url,
    `
for n, message in enumerate(tailrace.Consumer("goods", token, url)):
    print(message.ack_id, message.action)
    message.ack()
    if n == 2:
        break
`,
  )
  assert.deepEqual(printed.map((line) => line.split(' ')[0]), ['a1', 'a2', 'a3']) // prettier-ignore
  assert.deepEqual([s.goods.acked, s.goods.inFlight.size], [['a1', 'a2', 'a3'], 0])
})

test('Python: batches are acked whole by their token, and without what was settled one by one', options, async () => {
  const of = (...ids: string[]) => json({ data: ids.map((id) => wire(id)), ack_token: `token of ${ids.join()}` })
  await using s = await scripted([of('a', 'b'), of('c', 'd', 'e')])
  await python(
    s.receiver.url,
    `
for n, batch in enumerate(tailrace.Consumer("rows", token, url).batches()):
    if n == 1:
        batch.messages[0].nack()
    batch.ack()
    batch.nack()
    if n == 1:
        break
`,
  )
  assert.deepEqual([s.acked, s.nacked], [['token of a,b', 'd', 'e'], ['c']])
})

test('Python: handlers run beside each other, and one that fails has its message again after a pause that grows', options, async () => {
  await using s = await serve()
  s.goods.push(...Array.from({ length: 40 }, (_, i) => message(`m${i}`)))
  const printed = await python(
    s.api.url,
    `
import threading, time
lock, at_work, most, tries, done = threading.Lock(), 0, 0, [], []
consumer = tailrace.Consumer("goods", token, url)
def handle(message):
    global at_work, most
    with lock:
        at_work += 1
        most = max(most, at_work)
    time.sleep(0.01)
    with lock:
        at_work -= 1
    if message.ack_id == "m7":
        tries.append(time.monotonic())
        if len(tries) < 3:
            raise ValueError("not yet")
    done.append(message.ack_id)
    if len(done) == 40:
        consumer.stop()
errors = []
consumer.run(handle, concurrency=5, on_error=lambda error, message: errors.append(str(error)))
print(most, len(set(done)), errors, tries[1] - tries[0] > 0.45, tries[2] - tries[1] > 0.9)
`,
  )
  assert.deepEqual(printed, ["5 40 ['not yet', 'not yet'] True True"])
  assert.equal(new Set(s.goods.acked).size, 40)
})

test('Python: calls are tried again, and never sooner than Retry-After says', options, async () => {
  const busy = { status: 429, headers: { 'retry-after': '1' }, body: '{"summary":"busy","code":"TOO_MANY_WAITING"}' }
  let refusals = 1
  const settle = () => (refusals-- > 0 ? { status: 503, body: '{"summary":"moving","code":"PARTITION_MOVING"}' } : json({ success: true }))
  await using s = await scripted(['reset', { status: 502, body: '<html>' }, busy, json({ data: [wire('a')] })], { settle })
  const printed = await python(
    s.receiver.url,
    `
import time
begun = time.monotonic()
for message in tailrace.Consumer("rows", token, url):
    print(message.ack_id, time.monotonic() - begun > 1)
    message.ack()
    break
`,
  )
  assert.deepEqual([printed, s.acked], [['a True'], ['a']])
})

test('Python: what the service refuses for good is raised with its code and remedy', options, async () => {
  await using s = await serve()
  const printed = await python(
    s.api.url,
    `
for arguments in (("goods", "wrong", url), ("nosuch", token, url), ("", token, url)):
    try:
        tailrace.Consumer(*arguments).run(print)
    except tailrace.TailraceError as error:
        print(error.code, error.status, bool(error.remedy))
`,
  )
  assert.deepEqual(printed, ['TOKEN_INVALID 401 True', 'NOT_FOUND 404 True', 'ARGUMENT_INVALID None False'])
})

test('Python: a message whose time is over before it was begun is let go, for another client may have it', options, async () => {
  await using s = await scripted([json({ data: [wire('a')] }), json({ data: [wire('b'), wire('c')] })], { ackWaitMs: 300 })
  const printed = await python(
    s.receiver.url,
    `
import time
consumer = tailrace.Consumer("rows", token, url, batch_size=2)
def handle(message):
    print(message.ack_id)
    if message.ack_id == "b":
        time.sleep(max(0, message.expires_at - time.time()) + 0.05)
        consumer.stop()
consumer.run(handle)
`,
  )
  assert.deepEqual([printed, s.acked, s.nacked], [['a', 'b'], ['a', 'b'], []])
})

test('Python: a handler runs in the trace of who wrote the row, where the program has OpenTelemetry', options, async () => {
  const annotated = { ...wire('a'), metadata: { transaction_annotations: { user: 9, traceparent: '00-x' } } }
  await using s = await scripted([json({ data: [annotated, { ...wire('b'), metadata: { transaction_annotations: null } }] })])
  const printed = await python(
    s.receiver.url,
    `
import sys, types
active = ["own"]
context, propagate = types.ModuleType("opentelemetry.context"), types.ModuleType("opentelemetry.propagate")
context.attach, context.detach = active.append, lambda token: active.pop()
propagate.inject, propagate.extract = lambda headers: None, lambda carrier: carrier
sys.modules.update({"opentelemetry.context": context, "opentelemetry.propagate": propagate})
consumer, seen = tailrace.Consumer("rows", token, url), []
def handle(message):
    seen.append(f"{message.ack_id} {active[-1]}")
    if len(seen) == 2:
        consumer.stop()
consumer.run(handle)
print("\\n".join(sorted(seen)), len(active))
`,
  )
  assert.deepEqual(printed, ["a {'traceparent': '00-x'}", 'b own 1'])
})
