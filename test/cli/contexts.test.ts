/** Contexts as a user keeps them: which service is asked, by which token, and who can read them. */
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFile, stat, writeFile } from 'node:fs/promises'
import { mkdtempDisposable } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { test } from 'node:test'
import { serve } from '../api/api-fixture.ts'
import { TOKEN } from '../api/scripted-engine.ts'
import { COMMAND } from '../services/bundled-command.ts'

async function home() {
  const folder = await mkdtempDisposable(join(tmpdir(), 'tailrace-contexts-'))
  /** @param given what the command reads from its standard input */
  const run = async (args: readonly string[], { given = '', env = {} }: { given?: string; env?: Record<string, string> } = {}) => {
    const variables = { PATH: process.env['PATH'], XDG_CONFIG_HOME: folder.path, TAILRACE_DATA: join(folder.path, 'none'), ...env }
    const child = spawn(process.execPath, [COMMAND, ...args], { env: variables, stdio: 'pipe' })
    child.stdin.on('error', () => undefined) // it may end without reading it
    child.stdin.end(given)
    const [[code], out, err] = await Promise.all([once(child, 'close') as Promise<[number]>, text(child.stdout), text(child.stderr)])
    return { code, out, err }
  }
  return { run, file: join(folder.path, 'tailrace', 'contexts.json'), [Symbol.asyncDispose]: () => folder.remove() }
}

test('the token of a context is read from a pipe, and kept where only its owner can read it', async () => {
  await using s = await serve()
  await using h = await home()
  const added = await h.run(['context', 'add', 'shop', '--url', `${s.api.url}/`], { given: `${TOKEN}\n` })
  assert.deepEqual(added, { code: 0, out: 'shop: added, and selected\n', err: '' })
  assert.equal((await stat(h.file)).mode & 0o777, 0o600)
  assert.equal((await stat(join(h.file, '..'))).mode & 0o777, 0o700)
  assert.match((await h.run(['sinks', 'ls'])).out, /^NAME +TYPE .*\ngoods +sequin_stream +active/)
  const info = await h.run(['context', 'info'])
  assert.match(info.out, new RegExp(`^name +shop\nurl +${s.api.url}\n`))
  assert.doesNotMatch(info.out, new RegExp(TOKEN))
  await writeFile(h.file, await readFile(h.file), { mode: 0o644 })
  await h.run(['context', 'select', 'shop'])
  assert.equal((await stat(h.file)).mode & 0o777, 0o600, 'also one that was readable before')
})

test('options stand before --context, that before the environment, that before the selected context', async () => {
  await using s = await serve()
  await using h = await home()
  const nowhere = 'http://127.0.0.1:1'
  await h.run(['context', 'add', 'good', '--url', s.api.url, '--token', TOKEN])
  await h.run(['context', 'add', 'dead', '--url', nowhere, '--select'], { env: { TAILRACE_TOKEN: 'x' } })
  const ls = ['sinks', 'ls']
  const asked = async (args: readonly string[], env: Record<string, string> = {}) => {
    const { code, err } = await h.run(args, { env })
    return code === 0 ? 'good' : /^SERVICE_UNREACHABLE: no Tailrace answers at http:..127.0.0.1:1\//.test(err) ? 'dead' : err
  }
  assert.equal(await asked(ls), 'dead', 'the selected one')
  assert.equal(await asked(['--context', 'good', ...ls]), 'good', 'before the command')
  assert.equal(await asked(['--context=good', ...ls]), 'good')
  assert.equal(
    await asked([...ls, '--context', 'good'], { TAILRACE_URL: nowhere, TAILRACE_TOKEN: 'x' }),
    'good',
    'behind it, and before the environment',
  )
  assert.equal(await asked(ls, { TAILRACE_URL: s.api.url, TAILRACE_TOKEN: TOKEN }), 'good', 'the environment before the selected one')
  assert.equal(await asked([...ls, '--url', nowhere, '--token', 'x'], { TAILRACE_URL: s.api.url, TAILRACE_TOKEN: TOKEN }), 'dead')
  assert.match(
    await asked([...ls, '--url', s.api.url]),
    /an API token is missing/,
    'the token of a selected context goes to no other address',
  )
})

test('contexts are listed, replaced, selected and removed', async () => {
  await using h = await home()
  assert.match((await h.run(['context', 'ls'])).out, /^There are no contexts in .*contexts\.json\.\n$/)
  for (const name of ['b', 'a']) await h.run(['context', 'add', name, '--url', `https://${name}.example.com/x/`, '--token', 't'])
  assert.equal((await h.run(['context', 'add', 'b', '--url', 'https://c.example.com', '--token', 'u'])).out, 'b: replaced, and selected\n')
  assert.equal((await h.run(['context', 'ls'])).out, '   NAME  URL\n   a     https://a.example.com/x\n*  b     https://c.example.com\n')
  assert.equal((await h.run(['context', 'select', 'a'])).out, 'a: selected\n')
  assert.equal((await h.run(['context', 'rm', 'a'])).out, 'a: removed\n')
  assert.deepEqual(JSON.parse((await h.run(['context', 'ls', '--json'])).out), {
    data: [{ name: 'b', url: 'https://c.example.com', selected: false }],
  })
  const refused: [args: string[], words: RegExp][] = [
    [['info'], /no context is selected/],
    [['info', 'x'], /no context "x": there are b/],
    [['select'], /NAME is missing/],
    [['add', 'x', '--url', 'ftp://x', '--token', 't'], /--url is an address such as/],
    [['add', 'x', '--url', 'http://u:p@x', '--token', 't'], /without user, password/],
    [['add', 'a b', '--token', 't'], /letters, digits/],
    [['add', 'x'], /a token is missing/],
    [['ls', '--select'], /--select is of add, not of ls/],
  ]
  for (const [args, words] of refused) {
    const { code, err } = await h.run(['context', ...args])
    assert.equal(code, 2, args.join(' '))
    assert.match(err, words)
  }
  await writeFile(h.file, '{"contexts":{"x":{"token":"hidden-text"}}}')
  const broken = await h.run(['context', 'ls'])
  assert.equal(broken.code, 1)
  assert.match(broken.err, /^ARGUMENT_INVALID: .*contexts\.json holds no contexts/)
  assert.doesNotMatch(broken.err, /hidden-text/)
})
