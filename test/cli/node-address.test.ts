import assert from 'node:assert/strict'
import type { NetworkInterfaceInfo } from 'node:os'
import { test } from 'node:test'
import { nodeAddress } from '../../cli/node-address.ts'

const at = (address: string, more: Partial<NetworkInterfaceInfo> = {}): NetworkInterfaceInfo =>
  ({
    address,
    family: address.includes(':') ? 'IPv6' : 'IPv4',
    internal: false,
    netmask: '',
    mac: '',
    cidr: null,
    ...more,
  }) as NetworkInterfaceInfo
const machine = {
  lo: [at('127.0.0.1', { internal: true })],
  eth0: [at('fe80::1', { scopeid: 2 } as Partial<NetworkInterfaceInfo>), at('2001:db8::7'), at('10.0.0.7')],
}

test('the address that was given is taken as it is', () => {
  assert.equal(nodeAddress('http://node-1.internal:7376/', 'http://0.0.0.0:7376', machine), 'http://node-1.internal:7376')
})

test('without one it is the address that is listened on, or of all the first that others can reach', () => {
  assert.equal(nodeAddress(undefined, 'http://127.0.0.1:7376', machine), 'http://127.0.0.1:7376')
  assert.equal(nodeAddress(undefined, 'http://0.0.0.0:7376', machine), 'http://10.0.0.7:7376')
  assert.equal(nodeAddress(undefined, 'http://[::]:7376', machine), 'http://10.0.0.7:7376')
  assert.equal(nodeAddress(undefined, 'http://[::]:1', { eth0: machine.eth0.slice(0, 2) }), 'http://[2001:db8::7]:1')
  assert.equal(nodeAddress(undefined, 'http://0.0.0.0:7376', { lo: machine.lo }), 'http://127.0.0.1:7376')
})
