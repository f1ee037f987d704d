/** What functions make of messages whose rows are gone: the delete that follows must not wait for them. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { prepare } from '../../../actors/push/preparation.ts'
import type { Message } from '../../../engine/dispatch/batch.ts'
import { ACTION, MESSAGE_FLAG } from '../../../engine/log/pack.ts'
import { STATE, type FunctionStage } from '../../../transforms/stage.ts'
import { SINK } from '../sink-fixture.ts'
import { batchOf, NEVER } from '../../sinks/batch.ts'

/** Two updates that left a large value alone, of a row that is gone and of one that is there, and the delete of the first. */
function prepared(takesDeletes: boolean, largeKey?: string) {
  const update = { action: ACTION.update, flags: MESSAGE_FLAG.unchanged }
  const load = batchOf([
    { key: ['1'], record: { id: 1, body: 'unchanged_toast' }, group: 1, ...update },
    { key: ['2'], record: { id: 2, body: 'unchanged_toast' }, group: 2, ...update },
    { key: ['1'], record: { id: 1, body: null }, action: ACTION.delete, group: 1 },
  ])
  const batch = { generation: 1, partition: 0, messages: load.messages, throttles: 0, isStaged: false }
  const lookup = {
    find: async (wanted: readonly { key: readonly unknown[] }[]) =>
      wanted
        .slice(0, wanted.findIndex(({ key }) => key[0] === largeKey) >>> 0)
        .map(({ key }) => (key[0] === '2' ? new Map([['body', Buffer.from('"long"')]]) : undefined)),
  }
  const failing = { code: 'FUNCTION_FAILED', kind: 'transform', name: 'mine', message: 'no body' } as never
  const stage: FunctionStage = {
    isIdle: false,
    // fails at every update
    run: async (messages: readonly Message[]) => ({
      stateOf: (i: number) => (messages[i]?.view.action(messages[i].place) === ACTION.update ? STATE.failed : STATE.kept),
      failureOf: () => failing,
      logsOf: () => [],
      payloadAt: () => undefined,
      enrichmentOf: () => undefined,
      routeOf: () => undefined,
    }),
  } as unknown as FunctionStage
  const sink = { ...SINK, actions: takesDeletes ? SINK.actions : SINK.actions.filter((action) => action !== 'delete') }
  return async () => {
    const { batches, dropped, failed, behind } = await prepare(batch, { sink, stage, lookup, keyed: true, grouping: true }, NEVER)
    const indexesOf = (messages: readonly Message[]) => messages.map(({ index }) => index)
    const failedOf = indexesOf(failed.map(({ message }) => message))
    return {
      sent: batches.map(({ messages }) => indexesOf(messages)),
      dropped: indexesOf(dropped),
      failed: failedOf,
      released: indexesOf(behind),
    }
  }
}

test('a function that fails at a row that is gone holds up nothing: the update is passed over, and the delete goes out', async () => {
  assert.deepEqual(await prepared(true)(), { sent: [[2]], dropped: [0], failed: [1], released: [] })
})

test('where no delete would follow, it is a failure as any other', async () => {
  assert.deepEqual(await prepared(false)(), { sent: [], dropped: [], failed: [0, 1], released: [2] })
})

test('a message whose row is too large to be fetched fails alone, and those behind it come again', async () => {
  assert.deepEqual(await prepared(true, '1')(), { sent: [], dropped: [], failed: [0], released: [1, 2] })
})
