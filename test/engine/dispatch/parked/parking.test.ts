import assert from 'node:assert/strict'
import { test } from 'node:test'
import { AckPending } from '../../../../engine/dispatch/ack-pending.ts'
import { commitPoint, committed } from '../../../../engine/dispatch/commits.ts'
import { newDispatcher } from '../../../../engine/dispatch/dispatcher.ts'
import { finish } from '../../../../engine/dispatch/ends.ts'
import { offer } from '../../../../engine/dispatch/intake.ts'
import { moved, toPark, MAX_RANGES } from '../../../../engine/dispatch/parked/parking.ts'
import { take } from '../../../../engine/dispatch/take.ts'
import { PackBuilder } from '../../../../engine/log/pack-builder.ts'
import { ACTION, Pack } from '../../../../engine/log/pack.ts'
import { PART } from '../../../../engine/position.ts'

test('when what was acked lies in more pieces than a commit may hold, the lowest open messages are parked until it does not', () => {
  const windowBytes = 1 << 30 // far from full
  const dispatcher = newDispatcher({
    ...{ generation: 1, partition: 0, grouping: true, keyed: false, clock: () => 0 },
    settings: { ackWaitMs: 1_000, maxDeliveries: null, windowBytes },
    pending: new AckPending(1_000_000),
    restore: { commit: undefined, head: 0, parkedRefs: { offsets: [], indexes: [] }, parkedGroups: [] },
  })
  const count = 2 * MAX_RANGES + 200
  const builder = new PackBuilder({ history: 0, term: 1, routing: 1 })
  builder.begin(1n, 1, 0)
  for (let idx = 0; idx < count; idx++) {
    builder.bodies.ascii('body')
    builder.add(idx, PART.row, ACTION.insert, 1, 0, idx, 0, 0)
  }
  committed(dispatcher, commitPoint(dispatcher, 1))
  offer(dispatcher, 0, Pack.decode(builder.encode()))
  committed(dispatcher, commitPoint(dispatcher, 1))
  let ranges = 0
  for (let taken = 0; taken < count;) {
    const batch = take(dispatcher, 1_000, { max: Infinity, overhead: 0, first: true })
    const indexes = batch?.messages.map(({ index }) => index) ?? []
    taken += indexes.length
    const odd = indexes.filter((index) => index % 2 === 1)
    finish(dispatcher, { offsets: odd.map(() => 0), indexes: odd })
    const commit = commitPoint(dispatcher, 1)
    ranges = commit.finished.length
    committed(dispatcher, commit)
  }
  assert.ok(ranges > MAX_RANGES)
  const moves = toPark(dispatcher)
  assert.deepEqual(
    moves.slice(0, 3).map((move) => move.index),
    [0, 2, 4],
  )
  moved(dispatcher, moves)
  assert.ok(commitPoint(dispatcher, 1).finished.length <= MAX_RANGES)
  assert.deepEqual(toPark(dispatcher), [])
})
