import assert from 'node:assert/strict'
import { test } from 'node:test'
import { watchConfig } from '../../actors/config-watch.ts'
import type { Notice } from '../../engine/state/state-feed.ts'

test('what has taken effect already is not read again, and what could not be taken in is', async () => {
  const state = { stored: 'a', applied: 'a', reloads: 0, fails: false }
  const looked = { count: 0, next: Promise.withResolvers<void>() }
  let tell: (notice: Notice) => void = () => undefined
  const failures: unknown[] = []
  await using parts = new AsyncDisposableStack()
  parts.use(
    watchConfig({
      feed: {
        watch: (listener) => {
          tell = listener
          return () => undefined
        },
      },
      stored: async () => {
        looked.next.resolve()
        looked.next = Promise.withResolvers()
        return state.stored
      },
      applied: () => state.applied,
      reload: async () => {
        state.reloads++
        if (state.fails) throw new Error('away')
        state.applied = state.stored
      },
      onError: (error) => failures.push(error),
      lookEveryMs: 1, // of a failure, too
    }),
  )
  const looks = async (times: number) => {
    for (let i = 0; i < times; i++) await looked.next.promise
  }
  await looks(3)
  assert.equal(state.reloads, 0)
  Object.assign(state, { stored: 'b', applied: 'b' }) // an edit that was made here
  tell({ about: 'resources' })
  await looks(3)
  assert.equal(state.reloads, 0)
  Object.assign(state, { stored: 'c', fails: true })
  await looks(3)
  assert.ok(state.reloads > 1)
  state.fails = false
  await looks(3)
  const { reloads } = state
  await looks(3)
  assert.deepEqual([state.applied, state.reloads], ['c', reloads])
  assert.ok(failures.length > 0)
})
