/** `--json`: every command prints JSON where it is asked to, also of what fails. */
import assert from 'node:assert/strict'
import { mkdtempDisposable, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { COMMANDS } from '../../cli/main.ts'
import { tailrace } from './command.ts'

const WITHOUT: Readonly<Record<string, string>> = {
  start: 'it runs until it is stopped: what it prints is its log, which TAILRACE_LOG_FORMAT makes JSON',
  completion: 'it prints a script',
  help: 'it prints a text for people',
}

test('every command takes --json, unless what it prints is no answer', () => {
  const lacking = Object.entries(COMMANDS).filter(([, { options }]) => options['json'] === undefined)
  assert.deepEqual(lacking.map(([name]) => name).toSorted(), Object.keys(WITHOUT).toSorted())
})

test('what fails is told as a line of JSON on the standard error, with its code and what mends it', async () => {
  const away = await tailrace('sinks', 'ls', '--json', '--url', 'http://127.0.0.1:1', '--token', 'a-token')
  assert.deepEqual([away.code, away.out], [1, ''])
  const { error } = JSON.parse(away.err)
  assert.equal(error.code, 'SERVICE_UNREACHABLE')
  assert.match(error.message, /^no Tailrace answers at /)
  assert.match(error.remedy, /\w/)
  const wrong = await tailrace('sinks', 'get', '--json')
  assert.deepEqual([wrong.code, JSON.parse(wrong.err)], [2, { error: { code: 'USAGE', message: 'SINK is missing: its name' } }])
})

test('files and results of commands that need no service are JSON, too', async () => {
  await using folder = await mkdtempDisposable(join(tmpdir(), 'tailrace-json-'))
  const file = (name: string) => join(folder.path, name)
  await writeFile(file('shop.yaml'), 'account: { name: "${TAILRACE_NO_SUCH:-shop}" } # mine\n')
  const config = await tailrace('config', 'interpolate', file('shop.yaml'), '--json')
  assert.deepEqual([config.code, JSON.parse(config.out)], [0, { account: { name: 'shop' } }])
  await writeFile(file('named.ts'), `export default (action, record) => { console.log('seen'); return { name: record.name } }`)
  await writeFile(file('rows.json'), '[{ "record": { "name": "a" } }, { "record": null }]')
  const tried = await tailrace('function', 'test', file('named.ts'), '--type', 'transform', '--input', file('rows.json'), '--json')
  assert.equal(tried.code, 1)
  const [good, bad] = JSON.parse(tried.out)
  assert.deepEqual([good.output, good.error, good.logs.length], [{ name: 'a' }, undefined, 1])
  assert.match(bad.error.text, /null/)
})
