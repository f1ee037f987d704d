import assert from 'node:assert/strict'
import { test } from 'node:test'
import { PeerKey, TakenRequests } from '../../../api/cluster/peer-key.ts'

const MINUTE_MS = 60_000
const request = (mac: string, timeMs: number) => ({ mac, timeMs, bodyHash: '' })

test('a request of a peer is taken once, as long as its time would let it pass', () => {
  const taken = new TakenRequests()
  assert.ok(taken.take(request('a', 0), 0))
  assert.ok(taken.take(request('b', MINUTE_MS), MINUTE_MS))
  assert.ok(!taken.take(request('a', 0), 5 * MINUTE_MS))
})

test('of more requests than are remembered none is taken a second time: those as old as the forgotten ones are refused', () => {
  const taken = new TakenRequests(100)
  for (let i = 0; i < 300; i++) assert.ok(taken.take(request(`${i}`, i), i))
  for (let i = 0; i < 300; i++) assert.ok(!taken.take(request(`${i}`, i), 300), `request ${i} was taken again`)
  assert.ok(taken.take(request('new', 299), 300))
})

test('the signature of an answer is good for its own request and status alone', () => {
  const key = new PeerKey(Buffer.alloc(32, 7))
  const request = { method: 'POST', path: '/internal/peer/report', to: 'a' }
  const [asked, again] = [key.sign(request, '', 0), key.sign(request, '', 0)] // alike but for the number that is used once
  const answer = { status: 200, body: '{}', counts: [] }
  const signed = key.signAnswer(asked.mac, answer)
  assert.ok(key.isAnswer(signed, asked.mac, answer))
  assert.ok(!key.isAnswer(signed, again.mac, answer), 'of another request')
  assert.ok(!key.isAnswer(signed, asked.mac, { ...answer, status: 503 }), 'of another status')
})
