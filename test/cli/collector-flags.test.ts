import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { test } from 'node:test'
import { KNOWN_FLAGS, THEIR_V8 } from '../../cli/collector-flags.ts'

test('the Node that is installed has the V8 whose flags a service sets, and it knows them', () => {
  assert.ok(process.versions.v8.startsWith(THEIR_V8), `V8 ${process.versions.v8}: try the flags, and name it`)
  const known = execFileSync(process.execPath, ['--v8-options'], { encoding: 'utf8' })
  for (const flag of KNOWN_FLAGS) assert.match(known, new RegExp(`^ *${flag.split('=')[0]} `, 'm'))
})

/** Makes objects that live for a moment, as a service under load does; prints how large the room for young ones became, in MB. */
const UNDER_LOAD = `
  const { setImmediate: nextTurn } = await import('node:timers/promises')
  const { getHeapSpaceStatistics } = await import('node:v8')
  const { setCollectorFlags } = await import(${JSON.stringify(new URL('../../cli/collector-flags.ts', import.meta.url).href)})
  setCollectorFlags()
  const held = []
  let most = 0
  for (let i = 0; i < 3_000_000; i++) {
    held.push({ i, list: [i] })
    if (held.length > 300_000) held.length = 0
    if (i % 2_000 !== 0) continue
    await nextTurn()
    most = Math.max(most, getHeapSpaceStatistics().find((space) => space.space_name === 'new_space').space_size)
  }
  console.log(most / 2 ** 20)`

test('the room for young objects grows under load, up to its bound', () => {
  const room = Number(execFileSync(process.execPath, ['--input-type=module', '--eval', UNDER_LOAD], { encoding: 'utf8' }))
  assert.equal(room, 32)
})
