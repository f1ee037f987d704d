import assert from 'node:assert/strict'
import { test } from 'node:test'
import { lastPage } from '../../../engine/state/backfills.ts'
import { historyAt } from '../../../engine/wal/history.ts'

const page = (history: number, lsn: string) => ({ after: [lsn], history, lsn, processed: 0, ingested: 0 })
const incarnations = [0n, 0x20n, 0x30n].map((beginsAt, history) => ({ history, systemIdentifier: '1', timeline: history + 1, beginsAt }))
const isOfPast = (history: number, lsn: bigint) => historyAt(incarnations, lsn) === history

test('a backfill goes on behind its newest page that the server has seen too: what stands above a switch of timelines never happened', () => {
  const before = page(0, '0/1F')
  assert.equal(lastPage([page(0, '0/10'), before, page(0, '0/20'), page(0, '0/28')], isOfPast), before)
  const after = page(1, '0/2F')
  assert.equal(lastPage([before, page(0, '0/28'), after, page(1, '0/30')], isOfPast), after)
  assert.equal(lastPage([page(1, '0/1F')], isOfPast), undefined)
})
