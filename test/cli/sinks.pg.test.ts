/** `tailrace sinks`, as a user types it, against a service whose engine runs them. */
import assert from 'node:assert/strict'
import { mkdtempDisposable, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { ITEMS } from '../actors/shop.ts'
import { serveShop, TOKEN } from '../api/sinks/served-shop.ts'
import { printed, tailrace, type Listed } from './command.ts'

type Named = Readonly<{ name: string }>

test('sinks are made from a file, listed, shown, paused, resumed and deleted', async () => {
  await using s = await serveShop([`name: a, ${ITEMS}`])
  await using folder = await mkdtempDisposable(join(tmpdir(), 'tailrace-sinks-'))
  const sinks = (...args: string[]) => tailrace('sinks', ...args, '--url', s.url, '--token', TOKEN)
  const file = join(folder.path, 'b.yaml')
  await writeFile(file, `name: b\ndatabase: ${s.shop.db.name}\ndestination: { type: sequin_stream }\n${ITEMS}\n`)
  assert.match((await sinks('create', file)).out, /^b: created \([0-9a-f-]{36}\)\n$/)
  const again = await sinks('create', file)
  assert.equal(again.code, 1)
  assert.match(again.err, /"b"|name/)
  assert.match((await sinks('ls')).out, /^NAME +TYPE +STATUS +HEALTH +DATABASE\na +\w+ +active .*\nb +\w+ +active .*\n$/)
  assert.equal((await sinks('pause', 'a', 'b')).out, 'a: paused\nb: paused\n')
  const status = async (name: string) => (await s.call('GET', `/sinks/${name}`)).body.status
  assert.deepEqual([await status('a'), await status('b')], ['paused', 'paused'])
  assert.equal((await sinks('resume', 'b')).out, 'b: active\n')
  const shown = await sinks('get', 'a')
  assert.match(shown.out, /^id +[0-9a-f-]{36}\nname +a\nstatus +paused\n[^]*\nhealth: paused\n {2}Sink configuration/)
  assert.equal(printed<Named>(await sinks('get', 'a', '--json')).name, 'a')
  const asked = await sinks('delete', 'b')
  assert.equal(asked.code, 1)
  assert.match(asked.err, /nothing was deleted: there is no terminal to ask at; --yes/)
  assert.equal((await sinks('delete', 'b', '--yes')).out, 'b: deleted\n')
  assert.deepEqual(printed<Listed<Named>>(await sinks('ls', '--json')).data.map(({ name }) => name), ['a']) // prettier-ignore
  await writeFile(file, 'sinks: []')
  for (const [args, code, words] of [
    [['get', 'b'], 1, /There is no sink "b"/],
    [['create', file], 2, /must hold one sink/],
    [['create', 'no-such-file'], 1, /no such file/],
    [['create'], 2, /FILE is missing/],
    [['pause'], 2, /SINK is missing/],
    [['ls', 'a'], 2, /ls takes no sink/],
    [['pause', 'a', '--yes'], 2, /--yes is of delete/],
  ] as const) {
    const answer = await sinks(...args)
    assert.equal(answer.code, code, args.join(' '))
    assert.match(answer.err, words)
  }
})
