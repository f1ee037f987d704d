/** `tailrace messages`, as a user types it, against a served API. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { serve } from '../api/api-fixture.ts'
import { GOODS_ID, RECORD, TOKEN } from '../api/scripted-engine.ts'
import { printed, tailrace } from './command.ts'

test('messages are listed, shown and edited, one or all of a state', async () => {
  await using s = await serve()
  s.engine.records.set(GOODS_ID, [RECORD])
  const messages = (...args: string[]) => tailrace('messages', ...args, '--url', s.api.url, '--token', TOKEN)
  const listed = await messages('ls', 'goods', '--state', 'failing')
  assert.deepEqual([listed.code, listed.err], [0, ''])
  const [head = '', row = ''] = listed.out.split('\n')
  assert.match(head, /^ID +STATE +TABLE +KEY +ACTION +TRIES +ERROR$/)
  for (const part of [RECORD.id, RECORD.state, RECORD.action, RECORD.error]) assert.ok(row.includes(String(part)), row)
  assert.deepEqual(printed(await messages('ls', 'goods', '--json')), { data: [RECORD] })
  const shown = await messages('get', 'goods', RECORD.id)
  assert.match(shown.out, new RegExp(`^id +${RECORD.id}\n[^]*\nattempts:\n`))
  assert.equal(printed<{ id: string }>(await messages('get', 'goods', RECORD.id, '--json')).id, RECORD.id)
  for (const [args, choice] of [
    [['redeliver', 'goods', RECORD.id], [RECORD.id]],
    [
      ['discard', 'goods', RECORD.id, 'other'],
      [RECORD.id, 'other'],
    ],
    [['acknowledge', 'goods', '--state', 'failing'], 'failing'],
  ] as const) {
    const { code, out } = await messages(...args)
    assert.equal(code, 0)
    assert.match(out, /^\d messages (to be delivered again|acknowledged|discarded)\n$/)
    assert.deepEqual(s.engine.edits.at(-1), [GOODS_ID, args[0], choice])
  }
})

test('a refusal is told in its words, a wrong use with the right one', async () => {
  await using s = await serve()
  const refused: [args: string[], code: number, words: RegExp][] = [
    [['get', 'goods', 'x'], 1, /There is no message "x"/],
    [['ls', 'nosuch'], 1, /There is no sink "nosuch"/],
    [['ls', 'goods', '--state', 'odd'], 1, /state must be one of/],
    [['ls', 'goods', 'x'], 2, /ls takes no message/],
    [['ls', 'goods', '--limit', '0'], 2, /--limit is a whole number/],
    [['get', 'goods'], 2, /get takes the id of one message/],
    [['redeliver', 'goods'], 2, /redeliver takes either ids of messages or --state/],
    [['discard', 'goods', 'x', '--state', 'open'], 2, /discard takes either/],
    [['discard', 'goods', 'x', '--limit', '3'], 2, /--limit is of ls/],
  ]
  for (const [args, code, words] of refused) {
    const answer = await tailrace('messages', ...args, '--url', s.api.url, '--token', TOKEN)
    assert.equal(answer.code, code, args.join(' '))
    assert.match(answer.err, words)
  }
})
