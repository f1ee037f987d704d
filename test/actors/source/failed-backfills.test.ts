import assert from 'node:assert/strict'
import { test } from 'node:test'
import { FailedBackfills } from '../../../actors/source/failed-backfills.ts'
import { until } from '../../waiting.ts'

/** The checks of a sink whose backfills of some tables have failed. */
async function checksOf(tables: readonly string[]) {
  const rows = tables.map((table) => ({ sink_id: 'sink', table, reason: `${table} is a view` }))
  let rounds = 0
  using failed = new FailedBackfills(() => {
    rounds++
    return Promise.resolve({ rows, rowCount: rows.length })
  })
  failed.start()
  await until('they were looked at', () => rounds > 0 && failed.checks('sink').length > 0)
  assert.deepEqual(failed.checks('another'), [])
  return failed.checks('sink').map(({ status, error }) => `${status} ${error?.code}: ${error?.message}`)
}

test('a backfill that has failed says why in the health of its sink', async () => {
  assert.deepEqual(await checksOf(['public.a']), [
    'warning BACKFILL_FAILED: the backfill of public.a has failed: public.a is a view. Correct that and resume it, or delete it',
  ])
})

test('many backfills that have failed are one check, which counts them and names ten', async () => {
  const names = Array.from({ length: 12 }, (_, i) => `t${i}`)
  const named = names.slice(0, 10).join(', ')
  assert.deepEqual(await checksOf(names), [
    `warning BACKFILL_FAILED: the backfills of 12 tables have failed: ${named} and 2 more. The first: t0 is a view. Each of them says why: correct that and resume it, or delete it`,
  ])
})
