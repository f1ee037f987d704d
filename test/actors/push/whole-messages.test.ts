import assert from 'node:assert/strict'
import { test } from 'node:test'
import { areWhole, wholeMessages } from '../../../actors/push/whole-messages.ts'
import type { Message } from '../../../engine/dispatch/batch.ts'
import { ACTION, MESSAGE_FLAG } from '../../../engine/log/pack.ts'
import type { WantedRow } from '../../../engine/wal/row-lookup.ts'
import { batchOf, NEVER, type Row } from '../../sinks/batch.ts'

const TOAST = 'unchanged_toast'
const row = (id: string, record: Record<string, unknown>): Row => ({
  key: [id],
  record,
  action: ACTION.update,
  flags: MESSAGE_FLAG.unchanged,
})
const recordOf = ({ view, place }: Message): object => {
  const message = JSON.parse(`{${view.buffer.toString('utf8', view.bodyStart(place), view.bodyEnd(place))}}}`) as { record: object }
  return message.record
}
const indexesOf = (messages: readonly Message[]) => messages.map(({ index }) => index)

test('values that were not sent stand in their places; a row that is gone lacks them, and the rest is untouched', async () => {
  const rows = [
    row('1', { id: 1, body: TOAST, name: 'größe "x"', more: TOAST }),
    { key: ['2'], record: { id: 2, body: TOAST } }, // a text that reads so
    row('3', { body: TOAST, id: 3 }),
    row('4', { body: TOAST }),
  ]
  const { messages } = batchOf(rows, 0, Date.now())
  const asked: WantedRow[] = []
  const lookup = {
    find: async (wanted: readonly WantedRow[]) => {
      asked.push(...wanted)
      return wanted.map(({ key, columns }) =>
        key[0] === '1' ? new Map(columns.map((name) => [name, Buffer.from(`{"of":"${name}"}`)])) : undefined,
      )
    },
  }
  const { whole } = await wholeMessages(messages, { lookup, format: 'iso8601', signal: NEVER })
  assert.deepEqual(
    asked.map(({ key, columns, relation, xid }) => [key, columns, relation, xid]),
    [
      [['1'], ['body', 'more'], 16_384, 1],
      [['3'], ['body'], 16_384, 1],
      [['4'], ['body'], 16_384, 1],
    ],
  )
  assert.deepEqual(whole.map(recordOf), [
    { id: 1, body: { of: 'body' }, name: 'größe "x"', more: { of: 'more' } },
    { id: 2, body: TOAST },
    { id: 3 },
    {},
  ])
  assert.deepEqual([areWhole(messages), areWhole(whole), whole.length], [false, true, 4])
  for (const i of [0, 2, 3]) {
    const [view, before] = [whole[i]?.view, messages[i]?.view]
    assert.deepEqual([view?.position(0), view?.group(0), view?.action(0)], [before?.position(i), before?.group(i), before?.action(i)])
  }
})

test('what is delivered after it was given up has the row as it is now, and nothing when the row says otherwise', async () => {
  const reopened = { flags: MESSAGE_FLAG.reopened }
  const { messages } = batchOf([
    { key: ['1'], record: { id: 1, name: 'old', gone: 1 }, ...reopened },
    { key: ['2'], record: { id: 2, name: 'old' }, ...reopened }, // deleted since
    { key: ['1'], record: { id: 1, name: null }, action: ACTION.delete, ...reopened }, // there again
    { key: ['2'], record: { id: 2, name: null }, action: ACTION.delete, ...reopened },
    { key: ['2'], record: { id: 3, name: 'old' } },
  ])
  const lookup = {
    find: async (wanted: readonly WantedRow[]) =>
      wanted.map(({ key, columns }) =>
        key[0] === '1' ? new Map(columns.filter((name) => name !== 'gone').map((name) => [name, Buffer.from('"new"')])) : undefined,
      ),
  }
  const { whole, outdated, behind } = await wholeMessages(messages, { lookup, format: 'iso8601', signal: NEVER })
  assert.deepEqual([indexesOf(outdated), indexesOf(whole), behind, areWhole(messages)], [[1, 2], [0, 3, 4], [], false])
  assert.deepEqual(whole.map(recordOf), [{ id: 'new', name: 'new' }, { id: 2, name: null }, { id: 3, name: 'old' }]) // prettier-ignore
})

test('large values are not fetched without end: what is behind them stays as it was', async () => {
  const { messages } = batchOf(Array.from({ length: 100 }, (_, i) => row(String(i), { id: i, body: TOAST })))
  const large = Buffer.from(JSON.stringify('x'.repeat(1024 * 1024)))
  const asked: number[] = []
  const lookup = {
    find: async (wanted: readonly WantedRow[]) => {
      asked.push(wanted.length)
      return wanted.map(() => new Map([['body', large]]))
    },
  }
  const { whole, behind } = await wholeMessages(messages, { lookup, format: 'iso8601', signal: NEVER })
  assert.deepEqual([asked, whole.length], [[16, 32], 48])
  assert.deepEqual(behind, messages.slice(48))
})

test('rows that come a few at a time are asked for until all are there, or one is too large', async () => {
  const { messages } = batchOf(Array.from({ length: 7 }, (_, i) => row(String(i), { id: i, body: TOAST })))
  const lookup = {
    find: async (wanted: readonly WantedRow[]) => {
      const large = wanted.findIndex(({ key }) => key[0] === '5')
      return wanted.slice(0, Math.min(2, large)).map(({ key }) => new Map([['body', Buffer.from(`1${key[0]}`)]]))
    },
  }
  const { whole, tooLarge, behind } = await wholeMessages(messages, { lookup, format: 'iso8601', signal: NEVER })
  assert.deepEqual([whole.length, tooLarge, behind], [5, messages[5], messages.slice(6)])
  const bodies = [10, 11, 12, 13, 14].map((body, id) => ({ id, body }))
  assert.deepEqual(whole.map(recordOf), bodies)
})
