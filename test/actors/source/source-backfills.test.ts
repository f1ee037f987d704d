/** Backfills of a source whose ends can not be put on record are tried again with pauses, and never in a loop; those that wait say so once. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { SourceBackfills, type BackfillHome } from '../../../actors/source/source-backfills.ts'
import { BACKFILL_LIMITS } from '../../../engine/backfill/backfill-limits.ts'
import { createLogger } from '../../../engine/logger.ts'
import type { RunningBackfill } from '../../../engine/state/backfills.ts'
import type { SourceRun } from '../../../engine/wal/run.ts'
import { until } from '../../waiting.ts'
import { DATABASE } from '../sink-fixture.ts'

const BACKFILL: RunningBackfill = {
  ...{ id: 'f3b8bd07-6a1e-4f2c-9a5b-0f3c5c7f7a01', sinkId: 'e2a7ac06-5b0d-4e1b-8b4a-1e2b4b6e6b02', state: 'active', table: 'public.item' },
  ...{ sortColumn: null, startPosition: null, condition: null, maxTimeoutMs: 5_000 },
}
const nothing = () => Promise.resolve({ rows: [] })

/** One backfill whose sink does not take its table any more. @param ended what putting that on record comes to */
function refusing(ended: () => Promise<boolean>, over: Partial<BackfillHome> = {}) {
  let ends = 0
  const home: BackfillHome = {
    running: () => [BACKFILL],
    takes: () => false,
    ended: () => {
      ends++
      return ended()
    },
    sink: () => ({ isPaused: false, maxBacklogBytes: 1_000_000, handedOut: 0, served: () => [], watch: () => () => undefined }),
    log: { committed: () => Promise.reject(new Error('nothing is there')), stats: () => Promise.reject(new Error('nothing is there')) },
    state: nothing,
    logger: createLogger({ level: 'silent', format: 'json' }),
    meter: { backfilled: () => undefined },
    maxMessageBytes: 1_000_000,
    limits: BACKFILL_LIMITS,
    ...over,
  }
  const backfills = new SourceBackfills(DATABASE, home)
  backfills.begin({ query: nothing } as unknown as SourceRun, 1) // nothing else of it is asked for
  return { backfills, ends: () => ends, [Symbol.dispose]: () => backfills.end() }
}

for (const [what, ended] of [
  ['cannot be put on record', () => Promise.reject(new Error('the state database is away'))],
  ['is another one than is put on record', () => Promise.resolve(false)],
  ['is on record, and that is not heard of', () => Promise.resolve(true)],
] as const)
  test(`a backfill whose end ${what} is tried again with pauses, however often it is looked at`, async () => {
    using it = refusing(ended)
    let looks = 0
    await until('it was looked at for a while', () => {
      it.backfills.look()
      return it.ends() > 0 && ++looks === 50
    })
    assert.ok(it.ends() < 8, `its end was tried ${it.ends()} times`)
    assert.equal(it.backfills.statuses.length, 1, 'it is known to be failing')
    assert.equal(it.backfills.statuses[0]?.state, 'failing')
  })

test('many backfills that wait for the same are one notice in the health of their sink', async (t) => {
  t.mock.timers.enable({ apis: ['Date'], now: Date.now() })
  const waiting = ['a', 'b', 'c'].map((name) => ({ ...BACKFILL, id: name, table: `public.${name}` }))
  using it = refusing(() => Promise.resolve(true), { running: () => waiting, sink: () => undefined })
  await until('they wait for their sink', () => it.backfills.statuses.every(({ state }) => state === 'waiting'))
  assert.deepEqual(it.backfills.checks(BACKFILL.sinkId), [])
  t.mock.timers.tick(60_000)
  const [check, ...others] = it.backfills.checks(BACKFILL.sinkId)
  assert.deepEqual(others, [])
  assert.match(check?.error?.message ?? '', /^the backfill of public\.a waits since .*, as 2 more do: its sink takes no more/)
  assert.deepEqual(it.backfills.checks('another'), [])
})
