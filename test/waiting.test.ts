/** How tests wait. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { pass, until } from './waiting.ts'

test('a wait ends with the first answer that is truthy, and gives it', async () => {
  const answers = [undefined, null, false, 0, '', 'done']
  assert.equal(await until('an answer', () => answers.shift()), 'done')
})

test('a wait in vain says what for, how long, and what the service has logged', async () => {
  let looks = 0
  const never = async () => void looks++
  await assert.rejects(until('better times', never, { withinMs: 30 }), { message: 'not within 30 ms: better times' })
  assert.ok(looks > 3, `${looks} looks`)
  const service = { failure: (what: string) => new Error(`${what}; the log: nothing`) }
  await assert.rejects(
    until(() => `better times after ${looks} looks`, never, { withinMs: 0, service }),
    ({ message }: Error) => {
      assert.equal(message, `not within 0 ms: better times after ${looks} looks; the log: nothing`)
      return true
    },
  )
})

test('what a condition throws ends the wait', async () => {
  await assert.rejects(
    until('nothing', () => assert.fail('it has ended')),
    { message: 'it has ended' },
  )
})

test('time passes until it is over, or until it is ended', async () => {
  const at = performance.now()
  await pass(20, 'it is what is tested')
  assert.ok(performance.now() - at >= 19)
  const end = new AbortController()
  const passing = pass(600_000, 'it is ended', end.signal)
  end.abort()
  await passing
  await pass(600_000, 'it has ended', end.signal)
})
