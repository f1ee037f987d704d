/** What the receiver of the tests does with a line that breaks. */
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { connect } from 'node:net'
import { test } from 'node:test'
import { until } from '../waiting.ts'
import { HttpReceiver } from './http-receiver.ts'

test('a request whose line breaks within its body is no request, and fails no test', async () => {
  await using receiver = await HttpReceiver.start()
  const broken = connect(receiver.port, '127.0.0.1')
  broken.write('POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\nhalf of it')
  await until('the receiver has begun to read it', () => receiver.begun > 0)
  broken.resetAndDestroy()
  await once(broken, 'close')
  assert.equal((await fetch(receiver.url, { method: 'POST', body: 'whole' })).status, 200)
  assert.deepEqual(receiver.requests.map(({ body }) => String(body)), ['whole']) // prettier-ignore
})
