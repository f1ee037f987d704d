import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Egress, type Address, type EgressMode } from '../../../engine/net/egress.ts'
import { EngineError } from '../../../engine/errors.ts'

const isRefused = (error: unknown) => error instanceof EngineError && error.code === 'EGRESS_REFUSED'
const egress = (mode: EgressMode, allow: string[] = [], answer: readonly Address[] = []) =>
  new Egress({ mode, allow, resolve: async () => answer })
const may = async (guard: Egress, host: string): Promise<boolean> => {
  try {
    await guard.addressesOf(host)
    return true
  } catch (error) {
    assert.ok(isRefused(error), String(error))
    return false
  }
}

const PUBLIC = [
  ...['93.184.215.14', '1.1.1.1', '2606:4700::1111', '[2606:4700::1111]', '::ffff:93.184.215.14', '::ffff:0:1.1.1.1', '64:ff9b::101:101'],
  ...[
    '9.255.255.255',
    '11.0.0.1',
    '100.63.255.255',
    '100.128.0.1',
    '172.15.255.255',
    '172.32.0.1',
    '192.169.0.1',
    '169.253.0.1',
    '223.255.255.1',
  ],
]
const INSIDE = [
  '10.1.2.3',
  '172.16.0.1',
  '192.168.1.1',
  '127.0.0.1',
  '100.64.0.1',
  '::1',
  'fd12:3456::1',
  '::ffff:10.0.0.1',
  '64:ff9b::a00:1',
  '2002:a00:1::',
  // the same, written as few write it
  ...['::10.0.0.1', '::ffff:0:10.0.0.1', '64:ff9b:1::a00:1', '172.31.255.255', '100.127.255.255', 'fdff::1'],
  // nobody's, or not everybody's
  ...['192.0.0.1', '192.0.2.1', '192.88.99.1', '198.18.0.1', '198.19.255.1', '198.51.100.1', '203.0.113.1', '240.0.0.1'],
  ...['100::1', '2001::1', '2001:db8::1', '3fff::1', '5f00::1', 'fec0::1', '1::1', '4000::1'],
  ...['2001:4860::5efe:7f00:1', '2001:4860::200:5efe:a00:1'], // ISATAP
]
const NEVER = [
  ...['169.254.169.254', '169.254.0.1', '0.0.0.0', '100.100.100.200', '168.63.129.16', '224.0.0.1', '255.255.255.255'],
  ...['fe80::1', 'fd00:ec2::254', '::', 'ff02::1', '::ffff:169.254.169.254', '::ffff:a9fe:a9fe', '64:ff9b::a9fe:a9fe', '2002:a9fe:a9fe::'],
  ...['192.0.0.192', 'fd20:ce::254', '::169.254.169.254', '::ffff:0:169.254.169.254', '64:ff9b:1::a9fe:a9fe', 'fe80::1%eth0', '239.1.1.1'],
]

test('a private egress sends everywhere but to link-local, metadata and reserved addresses, however they are written', async () => {
  const guard = egress('private')
  for (const host of [...PUBLIC, ...INSIDE]) assert.equal(await may(guard, host), true, host)
  for (const host of NEVER) assert.equal(await may(guard, host), false, host)
})

test('a public egress sends to public addresses only', async () => {
  const guard = egress('public')
  for (const host of PUBLIC) assert.equal(await may(guard, host), true, host)
  for (const host of [...INSIDE, ...NEVER]) assert.equal(await may(guard, host), false, host)
})

test('a name is as good as its addresses: those that are refused are left out, and none left refuses it', async () => {
  const mixed = [
    { address: '169.254.169.254', family: 4 },
    { address: '93.184.215.14', family: 4 },
  ] as const
  assert.deepEqual(await egress('private', [], mixed).addressesOf('hooks.example.com'), [mixed[1]])
  await assert.rejects(egress('private', [], [mixed[0]]).addressesOf('rebound.example.com'), isRefused)
})

test('the allow list lets hosts, suffixes, addresses and ranges through', async () => {
  const inside = [{ address: '10.1.2.3', family: 4 }] as const
  const guard = egress('public', ['hooks.internal', '*.svc.local', '192.168.7.0/24', '127.0.0.1', 'fd12::/16'], inside)
  for (const host of ['hooks.internal', 'HOOKS.internal.', 'a.svc.local', '192.168.7.9', '127.0.0.1', 'fd12::9'])
    assert.equal(await may(guard, host), true, host)
  for (const host of ['other.internal', 'svc.local', 'evil-svc.local', '192.168.8.1', '127.0.0.2', 'fd13::9'])
    assert.equal(await may(guard, host), false, host)
  for (const entry of ['10.0.0.0/99', 'a b', 'http://x', '*', '1.2.3.4/8/8'])
    assert.throws(() => egress('public', [entry]), /SETTING_INVALID|host/, entry)
})
