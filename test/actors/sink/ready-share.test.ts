import assert from 'node:assert/strict'
import { test } from 'node:test'
import { ReadyShare } from '../../../actors/sink/ready-share.ts'

test('a sink is looked at from its ring on until nothing is ready, whoever else is; an idle one is not', (t) => {
  t.mock.timers.enable({ apis: ['setInterval'] })
  const looks = { busy: 0, idle: 0, gone: 0 }
  const ready = { busy: true, idle: false, gone: true }
  const shareOf = (name: keyof typeof looks) =>
    new ReadyShare(() => {
      looks[name]++
      return ready[name]
    })
  using busy = shareOf('busy')
  using idle = shareOf('idle')
  const gone = shareOf('gone')
  t.mock.timers.tick(10_000)
  assert.deepEqual(looks, { busy: 0, idle: 0, gone: 0 })
  for (const share of [busy, idle, gone]) share.ring()
  for (let i = 0; i < 3; i++) busy.ring()
  t.mock.timers.tick(250)
  gone[Symbol.dispose]()
  t.mock.timers.tick(9_750)
  assert.deepEqual(looks, { busy: 40, idle: 1, gone: 1 })
  ready.busy = false
  t.mock.timers.tick(10_000)
  assert.equal(looks.busy, 41)
  ready.idle = true
  idle.ring()
  t.mock.timers.tick(1_000)
  assert.deepEqual(looks, { busy: 41, idle: 5, gone: 1 })
})
