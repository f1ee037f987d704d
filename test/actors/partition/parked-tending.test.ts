/** The order in which parking writes: what is finished below a row is durable before the row is. The store and the commit are scripted. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { OwnedPartition } from '../../../actors/partition/owned-partition.ts'
import { ParkedTending } from '../../../actors/partition/parked-tending.ts'
import { DiscardedMessages } from '../../../actors/partition/discarded-messages.ts'
import { AckPending } from '../../../engine/dispatch/ack-pending.ts'
import { commitPoint, committed } from '../../../engine/dispatch/commits.ts'
import { newDispatcher, type Dispatcher } from '../../../engine/dispatch/dispatcher.ts'
import { fail } from '../../../engine/dispatch/ends.ts'
import { offer } from '../../../engine/dispatch/intake.ts'
import { take } from '../../../engine/dispatch/take.ts'
import { wants } from '../../../engine/dispatch/wants.ts'
import type { ParkedStore } from '../../../engine/dispatch/parked/parked-store.ts'
import { Pack } from '../../../engine/log/pack.ts'
import { Counts, packOf } from '../sink-fixture.ts'

const ANY = { max: Infinity, overhead: 0, first: true }
const none = { messages: 0, lastAt: new Date(0) }

/** One group that fills the window. @returns what is written, in its order */
async function tended(sends: boolean, happens: (dispatcher: Dispatcher) => void): Promise<readonly string[]> {
  const written: string[] = []
  const both = Promise.withResolvers<void>()
  let now = 0
  const dispatcher = newDispatcher({
    ...{ generation: 1, partition: 0, grouping: true, keyed: false, sends, pending: new AckPending(1_000) },
    settings: { ackWaitMs: 1_000, maxDeliveries: null, windowBytes: 1 },
    restore: { commit: undefined, head: 0, parkedRefs: { offsets: [], indexes: [] }, parkedGroups: [] },
    clock: () => now,
  })
  committed(dispatcher, commitPoint(dispatcher, 1))
  const store: Pick<ParkedStore, 'insert' | 'removeDone'> = {
    insert: async () => {
      written.push('row')
      both.resolve()
    },
    removeDone: async () => undefined,
  }
  const owned = {
    ...{ dispatcher, store, observer: new Counts(), isClosed: false, moved: () => undefined },
    commits: { next: async () => void written.push('commit'), committed: { offset: 0, index: 0 } },
    discarded: new DiscardedMessages({ bySize: none, others: none }),
    sink: { clock: () => now, surroundings: {} },
  }
  const tending = new ParkedTending(owned as unknown as OwnedPartition, true)
  for (const offset of [0, 1]) offer(dispatcher, offset, Pack.decode(packOf(BigInt(offset + 1) * 16n, [{ id: offset, group: 'hot' }])))
  happens(dispatcher)
  const end = new AbortController()
  const running = tending.run(end.signal)
  tending.changed(wants(dispatcher))
  now += 60_000
  tending.changed(wants(dispatcher))
  await both.promise
  end.abort()
  await running
  return written
}

test('what is finished below a message that is parked is durable before its row: a crash between the two would bring it back behind', async () => {
  const written = await tended(false, (dispatcher) => {
    take(dispatcher, 1, ANY)
    take(dispatcher, 1, ANY) // looks at what waits behind it
  })
  assert.deepEqual(written, ['commit', 'row'])
})

test('so it is with a message that failed to be delivered', async () => {
  const written = await tended(true, (dispatcher) => {
    const batch = take(dispatcher, 1, ANY)
    assert.ok(batch)
    const failed = { attempts: 1, retryInMs: 200, error: 'refused', record: {} }
    for (const { offset, index } of batch.messages) fail(dispatcher, [{ offset, index, failed }])
  })
  assert.deepEqual(written, ['commit', 'row'])
})
