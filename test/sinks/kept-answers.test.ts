import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { HttpAnswer } from '../../engine/net/http-pool.ts'
import { KeptAnswers } from '../../sinks/kept-answers.ts'
import { Verbatim } from '../../sinks/verbatim.ts'

const answer = (fields: Partial<HttpAnswer> = {}): HttpAnswer => ({
  ...{ status: 200, headers: { date: 'Mon, 03 Feb 2025 04:05:06 GMT', 'x-seen': 'by hunter2' }, body: Buffer.from('fine'), isCut: false },
  ...fields,
})

test('answers that say the same are kept once; any difference is kept', () => {
  const kept = new KeptAnswers(new Verbatim([]))
  for (const other of [
    answer({ status: 202 }),
    answer({ body: Buffer.from('good') }),
    answer({ headers: { ...answer().headers, date: 'Mon, 03 Feb 2025 04:05:07 GMT' } }),
    answer({ headers: { ...answer().headers, 'x-more': '1' } }),
    answer({ headers: { date: answer().headers.date } }),
  ]) {
    const first = kept.keep(answer())
    assert.equal(kept.keep(answer()), first)
    assert.notEqual(kept.keep(other), first)
  }
})

test('of a long answer the beginning is kept, and no secret is shown', () => {
  const kept = new KeptAnswers(new Verbatim(['hunter2']))
  const one = kept.keep(answer({ body: Buffer.from(`hunter2 ${'x'.repeat(10_000)}`) }))
  const { headers, body = '' } = one.shown()
  assert.deepEqual(headers, { date: 'Mon, 03 Feb 2025 04:05:06 GMT', 'x-seen': 'by [secret]' })
  assert.match(body, /^\[secret\] x{1016}…$/)
  assert.ok(one.bytes < 4_096)
  const many = kept.keep(answer({ headers: { 'x-long': 'x'.repeat(8_000), 'set-cookie': ['y'.repeat(4_000), 'z'.repeat(4_000)] } }))
  assert.ok(many.bytes > 16_000, 'what its headers take is counted')
})
