import assert from 'node:assert/strict'
import { test } from 'node:test'
import { hashPassword, isPassword } from '../../../engine/state/passwords.ts'

test('a password is known by its argon2id hash, and nothing else is', async () => {
  const stored = await hashPassword('pässwörd 🔑')
  assert.match(stored, /^\$argon2id\$v=19\$m=19456,t=2,p=1\$[A-Za-z0-9+/]{22}\$[A-Za-z0-9+/]{43}$/)
  assert.notEqual(stored, await hashPassword('pässwörd 🔑'))
  assert.equal(await isPassword('pässwörd 🔑', stored), true)
  for (const given of ['pässwörd', '', 'pässwörd 🔑 ']) assert.equal(await isPassword(given, stored), false)
  for (const other of [undefined, '', 'plain', `${stored}x`, stored.replace('argon2id', 'argon2i')])
    assert.equal(await isPassword('pässwörd 🔑', other), false)
})

test('a hash of another cost opens, so the cost may be raised', async () => {
  const stored = '$argon2id$v=19$m=256,t=3,p=1$c29tZXNhbHQxMjM0NTY3OA$'
  const { argon2Sync } = await import('node:crypto')
  const made = argon2Sync('argon2id', {
    message: 'x',
    nonce: Buffer.from('c29tZXNhbHQxMjM0NTY3OA', 'base64'),
    memory: 256,
    passes: 3,
    parallelism: 1,
    tagLength: 32,
  })
  assert.equal(await isPassword('x', stored + made.toString('base64').replaceAll('=', '')), true)
})

test('only so many wait for their turn', async () => {
  const all = await Promise.allSettled(Array.from({ length: 60 }, () => isPassword('x', undefined)))
  const refused = all.filter((one) => one.status === 'rejected')
  assert.equal(refused.length, 8)
  for (const { reason } of refused) assert.equal(reason.code, 'SIGN_IN_BUSY')
})
