/** How tests wait. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { refusalsOf } from './lint.ts'
import { gather, pass, until } from './waiting.ts'

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

test('what comes in several answers is gathered in order until it is enough, or the time is over', async () => {
  const answers = [[1, 2], [], [3], [4, 5]]
  assert.deepEqual(await gather('numbers', async () => answers.shift() ?? [], 3), [1, 2, 3])
  assert.deepEqual(
    await gather(
      'more',
      async (came) => [came.length],
      (came) => came.at(-1) === 2,
    ),
    [0, 1, 2],
  )
  const slowly = async () => {
    await pass(1, 'as an answer that waits')
    return []
  }
  await assert.rejects(gather('more', slowly, 1, { withinMs: 20 }), { message: 'not within 20 ms: more, of which 0 came' })
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

test('the linter refuses waits by the clock in tests, and nowhere else', async () => {
  const waits = {
    'promise.ts': 'await new Promise((resolve) => setTimeout(resolve, 1))\n',
    'sleep.ts': `import { setTimeout as sleep } from 'node:timers/promises'\nawait sleep(1)\n`,
    'timers.ts': `import { setTimeout as later } from 'node:timers'\nlater(() => undefined, 1)\n`,
    'turn.ts': `import { setImmediate as turn } from 'node:timers/promises'\nawait turn()\n`,
    'sample.ts': 'setInterval(() => performance.now(), 1).unref()\n',
  }
  const files: Record<string, string> = {}
  for (const folder of ['engine', 'test', 'test/faults'])
    for (const [name, content] of Object.entries(waits)) files[`${folder}/${name}`] = content
  for (const own of ['test/waiting.ts', 'test/file-limit.ts', 'test/api/scripted-engine.ts'])
    files[own] = waits['sleep.ts'] + waits['promise.ts']
  const refused = ['test', 'test/faults'].flatMap((folder) => ['promise.ts', 'sleep.ts', 'timers.ts'].map((name) => `${folder}/${name}`))
  assert.deepEqual((await refusalsOf(files)).map(({ filename }) => filename).sort(), refused.sort())
})
