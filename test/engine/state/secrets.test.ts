import assert from 'node:assert/strict'
import { mkdtemp, rm, stat } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { folderKey, Vault } from '../../../engine/state/secrets.ts'
import { hashToken, newToken } from '../../../engine/state/tokens.ts'

const key = (byte: number) => Buffer.alloc(32, byte)

test('a secret opens under its key, is not in its encrypted form, and never has the same form twice', () => {
  const vault = new Vault(key(1))
  for (const text of ['', 'pässwörd 🔑', 'x'.repeat(10_000)]) {
    const [once, again] = [vault.encrypt(text), vault.encrypt(text)]
    assert.equal(vault.decrypt(once), text)
    assert.notDeepEqual(once, again)
    if (text !== '') assert.equal(once.includes(text), false)
  }
})

test('another key, any changed byte and a cut secret are SECRET_UNREADABLE', () => {
  const vault = new Vault(key(1))
  const secret = vault.encrypt('secret')
  assert.throws(() => new Vault(key(2)).decrypt(secret), { code: 'SECRET_UNREADABLE' })
  for (let i = 1; i < secret.length; i++) {
    const changed = Buffer.from(secret)
    changed[i] = (changed[i] as number) ^ 1
    assert.throws(() => vault.decrypt(changed), { code: 'SECRET_UNREADABLE' }, `byte ${i}`)
  }
  for (const length of [0, 1, 12, 20, 28]) assert.throws(() => vault.decrypt(secret.subarray(0, length)), { code: 'SECRET_UNREADABLE' })
})

test('the key of a data folder is made once, for its owner alone', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'tailrace-vault-'))
  try {
    const made = folderKey(folder)
    assert.equal(made.length, 32)
    assert.deepEqual(folderKey(folder), made)
    assert.equal((await stat(join(folder, 'vault.key'))).mode & 0o777, 0o600)
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
})

test('tokens differ, and their hash is the sha256 that any tool computes', () => {
  assert.equal(new Set(Array.from({ length: 100 }, newToken)).size, 100)
  assert.equal(hashToken('abc'), 'ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad')
})
