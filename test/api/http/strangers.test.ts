import assert from 'node:assert/strict'
import { EventEmitter } from 'node:events'
import type { Socket } from 'node:net'
import { test } from 'node:test'
import { Strangers } from '../../../api/http/strangers.ts'

test('whoever has a network of IPv6 is one client, and an IPv4 address is one however it is written', () => {
  const strangers = new Strangers({ connections: 2, requests: 9 })
  let remotePort = 0
  const isTaken = (remoteAddress: string) =>
    strangers.take(
      Object.assign(new EventEmitter(), { remoteAddress, remotePort: ++remotePort, destroy: () => undefined }) as unknown as Socket,
    )
  const taken = (...addresses: string[]) => addresses.map(isTaken)
  assert.deepEqual(taken('2001:db8:0:7::1', '2001:db8:0:7:ffff:1:2:3', '2001:db8:0:7::2', '2001:db8:0:8::1'), [true, true, false, true])
  assert.deepEqual(taken('::1', '0:0:0:0:9::', '::2', '1::1'), [true, true, false, true])
  assert.deepEqual(taken('fe80::1%eth0', 'fe80::2%eth0', 'fe80::3%eth1'), [true, true, false])
  assert.deepEqual(taken('192.0.2.1', '::ffff:192.0.2.1', '::ffff:c000:201', '::ffff:192.0.2.2'), [true, true, false, true])
})
