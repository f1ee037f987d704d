/** How the answers of all nodes become one. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { EngineVerbs } from '../../../actors/engine.ts'
import { VERBS } from '../../../api/cluster/verbs.ts'

test('why backfills stand still is known by the node that reads them, whichever is asked; a node that is away says nothing', async () => {
  const { waitingBackfills } = VERBS
  assert.ok(waitingBackfills !== 'here')
  const node = (answer: () => Promise<Record<string, string>>) => ({ node: 'node', answer })
  const own = node(async () => ({}))
  const reader = node(async () => ({ one: 'its sink takes no more for now' }))
  const away = node(() => Promise.reject(new Error('no answer')))
  const whole = {} as EngineVerbs // is asked nothing
  assert.deepEqual(await waitingBackfills.merge([own, away, reader], whole, ['sink']), { one: 'its sink takes no more for now' })
})
