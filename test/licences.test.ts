/** The licences of what the package installs with it, as the lock file has them. */
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'

type Package = Readonly<{ license?: string; dev?: boolean }>

/** They ask for no more than their text and their notice. */
const FREE = ['MIT', 'Apache-2.0', 'BSD-2-Clause', 'BSD-3-Clause', '0BSD', 'ISC', 'BlueOak-1.0.0', 'PostgreSQL']

test('what users install with the package has licences that ask for no more than their notice', () => {
  const lock = JSON.parse(readFileSync(join(import.meta.dirname, '..', 'package-lock.json'), 'utf8')) as {
    packages: Readonly<Record<string, Package>>
  }
  const others = Object.entries(lock.packages)
    .filter(([name, { dev, license = '' }]) => name !== '' && dev !== true && !FREE.includes(license))
    .map(([name, { license }]) => `${name}: ${license}`)
  assert.deepEqual(others, [])
})
