import assert from 'node:assert/strict'
import { test } from 'node:test'
import { areWhole, wholeMessages } from '../../../actors/push/whole-messages.ts'
import { ACTION, MESSAGE_FLAG } from '../../../engine/log/pack.ts'
import type { WantedRow } from '../../../engine/wal/row-lookup.ts'
import { loadOf, NEVER, type Row } from '../../sinks/load.ts'

const TOAST = 'unchanged_toast'
const row = (id: string, record: Record<string, unknown>): Row => ({
  key: [id],
  record,
  action: ACTION.update,
  flags: MESSAGE_FLAG.unchanged,
})
const recordOf = ({ views, places }: Pick<ReturnType<typeof loadOf>, 'views' | 'places'>, i: number): object => {
  const view = views[i]
  const place = places[i] as number
  const message = JSON.parse(`{${view?.buffer.toString('utf8', view.bodyStart(place), view.bodyEnd(place))}}}`) as { record: object }
  return message.record
}

test('values that were not sent stand in their places; a row that is gone lacks them, and the rest is untouched', async () => {
  const rows = [
    row('1', { id: 1, body: TOAST, name: 'größe "x"', more: TOAST }),
    { key: ['2'], record: { id: 2, body: TOAST } }, // a text that reads so
    row('3', { body: TOAST, id: 3 }),
    row('4', { body: TOAST }),
  ]
  const load = loadOf(rows, 0, Date.now())
  const asked: WantedRow[] = []
  const lookup = {
    find: async (wanted: readonly WantedRow[]) => {
      asked.push(...wanted)
      return wanted.map(({ key, columns }) =>
        key[0] === '1' ? new Map(columns.map((name) => [name, Buffer.from(`{"of":"${name}"}`)])) : undefined,
      )
    },
  }
  const { messages: whole, whole: count } = await wholeMessages(load, { lookup, format: 'iso8601', signal: NEVER })
  assert.deepEqual(
    asked.map(({ key, columns, relation, xid }) => [key, columns, relation, xid]),
    [
      [['1'], ['body', 'more'], 16_384, 1],
      [['3'], ['body'], 16_384, 1],
      [['4'], ['body'], 16_384, 1],
    ],
  )
  assert.deepEqual(
    [0, 1, 2, 3].map((i) => recordOf(whole, i)),
    [{ id: 1, body: { of: 'body' }, name: 'größe "x"', more: { of: 'more' } }, { id: 2, body: TOAST }, { id: 3 }, {}],
  )
  assert.deepEqual([areWhole(load), areWhole(whole), count], [false, true, 4])
  for (const i of [0, 2, 3]) {
    const [view, before] = [whole.views[i], load.views[i]]
    assert.deepEqual([view?.position(0), view?.group(0), view?.action(0)], [before?.position(i), before?.group(i), before?.action(i)])
  }
})

test('what is delivered after it was given up has the row as it is now, and nothing when the row says otherwise', async () => {
  const reopened = { flags: MESSAGE_FLAG.reopened }
  const load = loadOf([
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
  const { messages, outdated, whole } = await wholeMessages(load, { lookup, format: 'iso8601', signal: NEVER })
  assert.deepEqual([outdated, whole, areWhole(load)], [[1, 2], 5, false])
  assert.deepEqual(recordOf(messages, 0), { id: 'new', name: 'new' })
  assert.deepEqual([recordOf(messages, 3), recordOf(messages, 4)], [{ id: 2, name: null }, { id: 3, name: 'old' }]) // prettier-ignore
})

test('large values are not fetched without end: what is behind them stays as it was', async () => {
  const load = loadOf(Array.from({ length: 100 }, (_, i) => row(String(i), { id: i, body: TOAST })))
  const large = Buffer.from(JSON.stringify('x'.repeat(1024 * 1024)))
  const asked: number[] = []
  const lookup = {
    find: async (wanted: readonly WantedRow[]) => {
      asked.push(wanted.length)
      return wanted.map(() => new Map([['body', large]]))
    },
  }
  const { messages, whole } = await wholeMessages(load, { lookup, format: 'iso8601', signal: NEVER })
  assert.deepEqual([asked, whole], [[16, 32], 48])
  assert.deepEqual(recordOf(messages, 48), { id: 48, body: TOAST })
})

test('rows that come a few at a time are asked for until all are there, or one is too large', async () => {
  const load = loadOf(Array.from({ length: 7 }, (_, i) => row(String(i), { id: i, body: TOAST })))
  const lookup = {
    find: async (wanted: readonly WantedRow[]) => {
      const large = wanted.findIndex(({ key }) => key[0] === '5')
      return wanted.slice(0, Math.min(2, large)).map(({ key }) => new Map([['body', Buffer.from(`1${key[0]}`)]]))
    },
  }
  const { messages, whole, tooLarge } = await wholeMessages(load, { lookup, format: 'iso8601', signal: NEVER })
  assert.deepEqual([whole, tooLarge], [5, 5])
  const bodies = [10, 11, 12, 13, 14].map((body, id) => ({ id, body }))
  assert.deepEqual([0, 1, 2, 3, 4].map((i) => recordOf(messages, i)), bodies) // prettier-ignore
})
