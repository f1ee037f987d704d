import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createActor, SimulatedClock, waitFor } from 'xstate'
import type { Child } from '../../actors/supervised.ts'
import { supervisorMachine } from '../../actors/supervisor.ts'

/** A child whose life the test holds in its hands. */
function scripted(key: string, kind: Child['kind'], log: string[] = []) {
  const lives: PromiseWithResolvers<void>[] = []
  const starts: PromiseWithResolvers<void>[] = []
  const child: Child = {
    key,
    kind,
    start() {
      const life = Promise.withResolvers<void>()
      lives.push(life)
      starts.shift()?.resolve()
      log.push(`${key} started`)
      return Promise.resolve({
        ended: life.promise,
        stop: () => {
          log.push(`${key} stopped`)
          life.resolve()
          return Promise.resolve()
        },
      })
    },
  }
  return {
    child,
    crash: (error: Error) => (lives.at(-1) as PromiseWithResolvers<void>).reject(error),
    nextStart() {
      const start = Promise.withResolvers<void>()
      starts.push(start)
      return start.promise
    },
    get started() {
      return lives.length
    },
  }
}

function supervise(...children: Child[]) {
  const clock = new SimulatedClock()
  const crashes: unknown[] = []
  const crashed: PromiseWithResolvers<void>[] = []
  const actor = createActor(supervisorMachine, {
    clock,
    input: {
      onCrash: (_child, error) => {
        crashes.push(error)
        crashed.shift()?.resolve()
      },
    },
  }).start()
  for (const child of children) actor.send({ type: 'supervise', child })
  return {
    actor,
    clock,
    crashes,
    nextCrash() {
      const crash = Promise.withResolvers<void>()
      crashed.push(crash)
      return crash.promise
    },
  }
}
const running = (key: string) => (s: { context: { children: ReadonlyMap<string, { getSnapshot(): { value: unknown } }> } }) =>
  s.context.children.get(key)?.getSnapshot().value === 'running'

async function untilRunning(actor: ReturnType<typeof supervise>['actor'], key: string) {
  const child = actor.getSnapshot().context.children.get(key)
  assert.ok(child)
  await waitFor(child, (s) => s.value === 'running')
  assert.ok(running(key)(actor.getSnapshot()))
}

test('a crashed actor starts again after its back-off, alone, and its last error stays visible', async () => {
  const a = scripted('sink a', 'sink')
  const b = scripted('sink b', 'sink')
  const { actor, clock, crashes, nextCrash } = supervise(a.child, b.child)
  await untilRunning(actor, 'sink a')
  await untilRunning(actor, 'sink b')
  const crash = nextCrash()
  a.crash(new Error('broken'))
  await crash
  assert.equal(a.started, 1)
  clock.increment(249)
  assert.equal(a.started, 1)
  clock.increment(1)
  assert.equal(a.started, 2)
  assert.equal(b.started, 1)
  assert.equal((crashes[0] as Error).message, 'broken')
  await untilRunning(actor, 'sink a')
  const last = actor.getSnapshot().context.children.get('sink a')?.getSnapshot().context.lastError
  assert.equal((last?.error as Error).message, 'broken')
})

test('an actor that keeps dying backs off longer each time, and a stable run resets the back-off', async () => {
  const a = scripted('source a', 'source')
  const { actor, clock, nextCrash } = supervise(a.child)
  for (const backOff of [250, 500, 1000, 2000]) {
    await untilRunning(actor, 'source a')
    const crash = nextCrash()
    const before = a.started
    a.crash(new Error('again'))
    await crash
    clock.increment(backOff - 1)
    assert.equal(a.started, before)
    clock.increment(1)
    assert.equal(a.started, before + 1)
  }
  await untilRunning(actor, 'source a')
  clock.increment(60_000)
  const crash = nextCrash()
  a.crash(new Error('much later'))
  await crash
  const before = a.started
  clock.increment(250)
  assert.equal(a.started, before + 1)
})

test('stop ends every source before any sink', async () => {
  const log: string[] = []
  const children = [scripted('sink a', 'sink', log), scripted('source a', 'source', log), scripted('source b', 'source', log)]
  const { actor } = supervise(...children.map((c) => c.child))
  for (const key of ['sink a', 'source a', 'source b']) await untilRunning(actor, key)
  actor.send({ type: 'stop' })
  await waitFor(actor, (s) => s.status === 'done')
  assert.deepEqual(log.slice(3).sort(), ['sink a stopped', 'source a stopped', 'source b stopped'])
  assert.equal(log.at(-1), 'sink a stopped')
})

test('a stop during the back-off ends the actor without another start', async () => {
  const a = scripted('sink a', 'sink')
  const { actor, clock, nextCrash } = supervise(a.child)
  await untilRunning(actor, 'sink a')
  const crash = nextCrash()
  a.crash(new Error('broken'))
  await crash
  actor.send({ type: 'stop' })
  await waitFor(actor, (s) => s.status === 'done')
  clock.increment(60_000)
  assert.equal(a.started, 1)
})

test('a dismissed actor stops and a new one may take its place', async () => {
  const a = scripted('sink a', 'sink')
  const { actor } = supervise(a.child)
  await untilRunning(actor, 'sink a')
  actor.send({ type: 'dismiss', key: 'sink a' })
  await waitFor(actor, (s) => s.context.children.size === 0)
  actor.send({ type: 'supervise', child: a.child })
  await untilRunning(actor, 'sink a')
  assert.equal(a.started, 2)
})
