import assert from 'node:assert/strict'
import { Writable } from 'node:stream'
import { test } from 'node:test'
import { FailedRequests } from '../../../api/http/failed-requests.ts'
import { EngineError } from '../../../engine/errors.ts'
import { createLogger } from '../../../engine/logger.ts'

function bench() {
  const lines: Record<string, unknown>[] = []
  const destination = new Writable({ write: (chunk, _encoding, done) => (lines.push(JSON.parse(String(chunk))), done()) })
  const time = { now: 0 }
  const failed = new FailedRequests(createLogger({ level: 'info', format: 'json', destination }), () => time.now)
  return { lines, time, failed }
}
const request = { method: 'POST', path: '/api/http_pull_consumers/goods/ack' }

test('of requests that are to be sent again the log has one short line every ten seconds, with their number', () => {
  const { lines, time, failed } = bench()
  const putOff = () => failed.add(new EngineError('PARTITION_MOVING', 'partition 1/0 has no live owner'), 'PARTITION_MOVING', request)
  for (let i = 0; i < 500; i++) putOff()
  time.now = 10_000
  putOff()
  assert.deepEqual(
    lines.map(({ level, code, requests, reason }) => ({ level, code, requests, reason })),
    [1, 500].map((requests) => ({ level: 'warn', code: 'PARTITION_MOVING', requests, reason: 'partition 1/0 has no live owner' })),
  )
  assert.ok(lines.every((line) => !JSON.stringify(line).includes('stack')))
})

test('what nobody expects is told each time, with its stack', () => {
  const { lines, failed } = bench()
  for (let i = 0; i < 2; i++) failed.add(new TypeError('undefined is not a function'), 'INTERNAL', request)
  assert.equal(lines.length, 2)
  assert.match(JSON.stringify(lines[0]), /failed-requests\.test/)
})
