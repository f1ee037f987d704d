/** What functions make of messages whose rows are gone: the delete that follows must not wait for them. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { PiecePreparation } from '../../../actors/push/piece-preparation.ts'
import type { Piece } from '../../../actors/push/pieces.ts'
import { wholeMessages } from '../../../actors/push/whole-messages.ts'
import { ACTION, MESSAGE_FLAG } from '../../../engine/log/pack.ts'
import { STATE, type FunctionStage } from '../../../transforms/stage.ts'
import { loadOf, NEVER } from '../../sinks/load.ts'

/** Two updates that left a large value alone, of a row that is gone and of one that is there, and the delete of the first. */
function bench(takesDeletes: boolean, largeKey?: string) {
  const update = { action: ACTION.update, flags: MESSAGE_FLAG.unchanged }
  const load = loadOf([
    { key: ['1'], record: { id: 1, body: 'unchanged_toast' }, group: 1, ...update },
    { key: ['2'], record: { id: 2, body: 'unchanged_toast' }, group: 2, ...update },
    { key: ['1'], record: { id: 1, body: null }, action: ACTION.delete, group: 1 },
  ])
  const piece: Piece = {
    ...{ views: load.views, places: load.places, offsets: [0, 0, 0], indexes: [0, 1, 2] },
    ...{ origin: undefined, doubtedSince: undefined, throttles: 0, isStaged: false },
  }
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
    run: async ({ views, places }: Pick<Piece, 'views' | 'places'>) => ({
      stateOf: (i: number) => (views[i]?.action(places[i] as number) === ACTION.update ? STATE.failed : STATE.kept),
      failureOf: () => failing,
      logsOf: () => [],
      payloadOf: () => undefined,
      enrichmentOf: () => undefined,
      routeOf: () => undefined,
    }),
  } as unknown as FunctionStage
  const ends: Record<string, number[]> = { dropped: [], failed: [], released: [] }
  const note = (what: string) => (some: Piece) => void ends[what]?.push(...some.indexes)
  const preparation = new PiecePreparation(
    {
      complete: (some, signal) => wholeMessages(some, { lookup, format: 'iso8601', signal }),
      ...{ stage: () => stage, stageTrouble: () => undefined, grouping: true, keyed: true, takesDeletes: () => takesDeletes },
    },
    { release: note('released'), drop: note('dropped'), fail: note('failed'), next: () => undefined },
  )
  return { ends, run: () => preparation.run(piece, NEVER) }
}

test('a function that fails at a row that is gone holds up nothing: the update is passed over, and the delete goes out', async () => {
  const { ends, run } = bench(true)
  assert.deepEqual((await run())?.indexes, [2])
  assert.deepEqual(ends, { dropped: [0], failed: [1], released: [] })
})

test('where no delete would follow, it is a failure as any other', async () => {
  const { ends, run } = bench(false)
  assert.equal(await run(), undefined)
  assert.deepEqual(ends, { dropped: [], failed: [0, 1], released: [2] })
})

test('a message whose row is too large to be fetched fails alone, and those behind it come again', async () => {
  const { ends, run } = bench(true, '1')
  assert.equal(await run(), undefined)
  assert.deepEqual(ends, { dropped: [], failed: [0], released: [1, 2] })
})
