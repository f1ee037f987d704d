import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { test } from 'node:test'
import { COLLECTOR_FLAGS, THEIR_V8 } from '../../cli/collector-flags.ts'

test('the Node that is installed has the V8 whose flags a service sets, and it knows them', () => {
  assert.ok(process.versions.v8.startsWith(THEIR_V8), `V8 ${process.versions.v8}: try the flags, and name it`)
  const known = execFileSync(process.execPath, ['--v8-options'], { encoding: 'utf8' })
  for (const flag of COLLECTOR_FLAGS) assert.match(known, new RegExp(`^ *${flag.split('=')[0]} `, 'm'))
})
