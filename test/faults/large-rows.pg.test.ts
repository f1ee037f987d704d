/** Large rows through the log in the data folder. */
import { test } from 'node:test'
import { comesWhole, isDiscarded, LargeRows } from './large-rows.ts'

test('a row of 30 MB comes whole, in its place, also after a kill', async () => {
  await using home = await LargeRows.open({})
  await comesWhole(home, 30)
})

test('a row beyond MAX_MESSAGE_MB is on record by key and size, counted, told by health, and what is around it is delivered', async () => {
  await using home = await LargeRows.open({ MAX_MESSAGE_MB: '1' })
  await isDiscarded(home)
})
