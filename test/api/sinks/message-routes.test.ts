import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { MessageRecord } from '../../../engine/dispatch/parked/message-records.ts'
import { serve } from '../api-fixture.ts'
import { GOODS_ID, OTHER_TOKEN, RECORD } from '../scripted-engine.ts'

const PATH = '/api/sinks/goods/messages'

async function withMessages(...records: MessageRecord[]) {
  const s = await serve()
  s.engine.records.set(GOODS_ID, records)
  return s
}

test('messages are listed, and one is shown with its content byte for byte', async () => {
  await using s = await withMessages(RECORD)
  assert.deepEqual((await s.call(PATH)).body, { data: [RECORD] })
  const one = await s.call(`${PATH}/${RECORD.id}`)
  assert.match(
    one.text,
    /"message":\{"record":\{"id":12345678901234567890\}\},"functions":\{"dropped":false,"output":98765432109876543210,/,
  )
  assert.deepEqual({ ...(one.body as object), message: 0, functions: 0 }, { ...RECORD, message: 0, functions: 0 })
  assert.equal((await s.call(`${PATH}/abc.1.0.5.3`)).status, 404)
  assert.equal((await s.call(PATH, { token: OTHER_TOKEN })).status, 404)
  for (const query of ['state=done', 'limit=0', 'limit=1001', 'order=random'])
    assert.equal((await s.call(`${PATH}?${query}`)).status, 400, query)
})

test('what was delivered is listed apart, and can’t be delivered again from there', async () => {
  const sent: MessageRecord = { ...RECORD, id: 'abc.1.0.4.0', state: 'delivered' }
  await using s = await withMessages(RECORD)
  s.engine.deliveries.set(GOODS_ID, [sent])
  assert.deepEqual((await s.call(`${PATH}?state=delivered`)).body, { data: [sent] })
  assert.equal(((await s.call(`${PATH}/${sent.id}`)).body as MessageRecord).state, 'delivered')
  assert.equal((await s.call(`${PATH}/${sent.id}/redeliver`, { method: 'POST' })).status, 404)
})

test('a message is redelivered, acknowledged or discarded by its id; many by theirs, or by their state', async () => {
  await using s = await withMessages(RECORD)
  for (const edit of ['redeliver', 'acknowledge', 'discard']) {
    const one = await s.call(`${PATH}/${RECORD.id}/${edit}`, { method: 'POST' })
    assert.deepEqual([one.status, one.body], [200, { success: true, messages: 1 }])
    const many = await s.call(`${PATH}/${edit}`, { body: { ids: [RECORD.id, 'unknown'] } })
    assert.deepEqual([many.status, many.body], [200, { success: true, messages: 1 }])
    assert.equal((await s.call(`${PATH}/${edit}`, { body: { state: 'failing' } })).status, 200)
    assert.deepEqual(s.engine.edits.splice(0), [
      [GOODS_ID, edit, [RECORD.id]],
      [GOODS_ID, edit, [RECORD.id, 'unknown']],
      [GOODS_ID, edit, 'failing'],
    ])
    assert.equal((await s.call(`${PATH}/nothing/${edit}`, { method: 'POST' })).status, 404)
    for (const body of [{}, { ids: [] }, { ids: [''] }, { ids: [RECORD.id], state: 'open' }, { state: 'done' }, { all: true }])
      assert.equal((await s.call(`${PATH}/${edit}`, { body })).status, 400, JSON.stringify(body))
  }
  assert.equal((await s.call(`${PATH}/discard`, { body: { state: 'discarded' } })).status, 400)
  assert.equal((await s.call(`${PATH}/redeliver`, { body: { state: 'discarded' } })).status, 200)
})

test('what nobody has at the moment is to be sent again, and what was too large can’t be delivered', async () => {
  const lost: MessageRecord = { ...RECORD, id: 'abc.1.0.6.0', state: 'discarded', attempts: [{ code: 'MESSAGE_TOO_LARGE' }] }
  await using s = await withMessages(RECORD, lost)
  const refused = await s.call(`${PATH}/${lost.id}/redeliver`, { method: 'POST' })
  assert.deepEqual([refused.status, (refused.body as { code: string }).code], [409, 'MESSAGE_NOT_KEPT'])
  s.engine.editMessages = async () => ({ known: 2, served: 1, edited: 1 })
  const moving = await s.call(`${PATH}/${RECORD.id}/discard`, { method: 'POST' })
  assert.deepEqual([moving.status, (moving.body as { code: string }).code], [503, 'PARTITION_MOVING'])
})
