import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { test } from 'node:test'
import { setupCodeOf } from '../../actors/resources/user-edits.ts'
import { COMMAND } from '../services/bundled-command.ts'

const setupCode = (env: Readonly<Record<string, string>>) =>
  spawnSync(process.execPath, [COMMAND, 'user', 'setup-code'], { encoding: 'utf8', env: { PATH: process.env['PATH'], ...env } })

test('the set-up code is printed to who has the key of the service, and to nobody else', () => {
  const key = Buffer.alloc(32, 7)
  const { status, stdout } = setupCode({ VAULT_KEY: key.toString('base64') })
  assert.deepEqual([status, stdout], [0, `${setupCodeOf(key)}\n`])
  assert.equal(setupCodeOf(key).length, 24)
  const without = setupCode({ TAILRACE_DATA: '/nowhere' })
  assert.deepEqual([without.status, /has no key/.test(without.stderr)], [2, true])
})
