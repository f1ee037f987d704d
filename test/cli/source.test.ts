/** The command that the remedy of a gap names, as a user pastes it, against a served API. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { ERRORS } from '../../engine/errors.ts'
import { acceptRemedy } from '../../engine/wal/history.ts'
import { serve } from '../api/api-fixture.ts'
import { DATABASE, OTHER, OTHER_TOKEN, TOKEN } from '../api/scripted-engine.ts'
import { tailrace } from './command.ts'

/** Of the remedy: what stands behind "npx tailrace". */
const command = (/npx tailrace (.*?) \(/.exec(acceptRemedy(DATABASE.name))?.[1] ?? '').split(' ')
/** The call it names beside the command. */
const path = /POST (\S+?)\)/.exec(acceptRemedy(DATABASE.name))?.[1] ?? ''

test('the command of the remedy accepts the gap that the source stopped at, once', async () => {
  await using s = await serve()
  s.engine.databases = [DATABASE]
  s.engine.gaps.set(DATABASE.id, 'slot "s" stands at 0/20')
  const there = ['--url', s.api.url, '--token', TOKEN]
  const first = await tailrace(...command, ...there)
  assert.deepEqual([first.code, first.err], [0, ''])
  assert.match(first.out, /slot "s" stands at 0\/20/)
  assert.equal(s.engine.gaps.size, 0)
  const second = await tailrace(...command, ...there)
  assert.equal(second.code, 1)
  assert.match(second.err, /has not stopped because changes are missing/)
  // a token on the command line is seen by all users of the machine
  process.env['TAILRACE_TOKEN'] = TOKEN
  const third = await tailrace(...command, '--url', s.api.url).finally(() => delete process.env['TAILRACE_TOKEN'])
  assert.match(third.err, /has not stopped because changes are missing/)
})

test('the call of the remedy does the same, for the account of the token alone', async () => {
  await using s = await serve()
  s.engine.databases = [DATABASE, { ...DATABASE, id: '77777777-7777-4777-8777-777777777777', accountId: OTHER.id, name: 'theirs' }]
  s.engine.gaps.set(DATABASE.id, 'a gap')
  const post = { method: 'POST' }
  assert.equal((await s.call(path, { ...post, token: OTHER_TOKEN })).status, 404)
  assert.equal((await s.call(path.replace(DATABASE.name, 'theirs'), post)).status, 404)
  assert.equal((await s.call(path, { ...post, token: null })).status, 401)
  const { status, body } = await s.call(path, post)
  assert.deepEqual([status, body], [200, { success: true, accepted: 'a gap' }])
  assert.equal((await s.call(path, post)).status, 409)
})

test('a wrong address, a missing name and a missing token are told', async () => {
  const away = await tailrace(...command, '--url', 'http://127.0.0.1:1', '--token', 't')
  assert.equal(away.code, 1)
  assert.match(away.err, /^SERVICE_UNREACHABLE: .*127\.0\.0\.1:1/)
  assert.equal((await tailrace('source', 'accept-gap')).code, 2)
  assert.equal((await tailrace('source', 'accept-gap', 'a', '--tokn', 't')).code, 2)
  const without = await tailrace(...command)
  assert.equal(without.code, 2)
  assert.match(without.err, /give --token/)
})

test('a source that was told to try again is told of as it is then: at work, or with what it stopped at', async () => {
  await using s = await serve()
  s.engine.databases = [DATABASE]
  const retry = ['source', 'retry', DATABASE.name, '--url', s.api.url, '--token', TOKEN]
  assert.deepEqual(await tailrace(...retry), { code: 0, out: `The source of "${DATABASE.name}" is streaming.\n`, err: '' })
  assert.deepEqual(s.engine.retried, [DATABASE.id])
  s.engine.outcome = { state: 'failed', code: 'SLOT_MISSING', reason: 'there is no slot. Run: select 1' }
  const { code, out, err } = await tailrace(...retry)
  assert.deepEqual([code, out], [1, ''])
  assert.match(err, /is failed: SLOT_MISSING: there is no slot\. Run: select 1\n {2}.*npx tailrace source retry NAME/)
  const post = { method: 'POST' }
  const path = `/api/postgres_databases/${DATABASE.name}/retry`
  assert.equal((await s.call(path, { ...post, token: OTHER_TOKEN })).status, 404)
  assert.equal((await s.call(path, { ...post, token: null })).status, 401)
  assert.equal(((await s.call(path, post)).body as { remedy: string }).remedy, ERRORS.SLOT_MISSING.remedy)
})
