/** What the pages tell a reader to type works as it stands, on a service started as the README says. */
import assert from 'node:assert/strict'
import { execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdir, mkdtemp, rm, symlink } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { delimiter, join } from 'node:path'
import { createInterface } from 'node:readline'
import { after, before, test } from 'node:test'
import { withoutPython } from '../clients/python.ts'
import { COMMAND } from '../services/bundled-command.ts'
import { freePort } from '../services/free-port.ts'
import { pages, root, runnable } from './pages.ts'

/** The pages name the default address; the test takes a free one, for another service may run. */
const ADDRESS_IN_PAGES = '127.0.0.1:7376'
/** Likewise the port of a server that a reader starts. */
const RECEIVER_IN_PAGES = '7399'
const NEXT_BLOCK = '--- next block ---'
/** The first page's commands are found by npm, as a reader has it, which takes as much CPU time as most of them do. */
const FOUND_BY_NPM = 'README.md'
const NPX = `npx() { shift; "${process.execPath}" "${COMMAND}" "$@"; }`

const started = new AsyncDisposableStack()
let env: NodeJS.ProcessEnv
let address: string
let receiver: number
/** where a reader types: as the checkout, but what is written there goes away */
let clone: string

before(async () => {
  const folder = await mkdtemp(join(tmpdir(), 'tailrace-snippets-'))
  started.defer(() => rm(folder, { recursive: true, force: true }))
  clone = join(folder, 'clone')
  await mkdir(clone)
  for (const name of ['package.json', 'cli', 'clients', 'engine', 'node_modules']) await symlink(join(root, name), join(clone, name))
  const port = await freePort()
  address = `127.0.0.1:${port}`
  receiver = await freePort()
  env = { ...process.env, TAILRACE_DATA: folder, SERVER_PORT: String(port), TAILRACE_METRICS_PORT: '0' }
  for (const name of ['PG_URL', 'CONFIG_FILE_PATH', 'CONFIG_FILE_YAML']) delete env[name]
  env.PATH = `${join(root, 'node_modules', '.bin')}${delimiter}${env.PATH}`
  const service = spawn(process.execPath, ['cli/tailrace.mjs', 'start'], { cwd: root, env, stdio: ['ignore', 'pipe', 'pipe'] })
  const ended = once(service, 'exit')
  started.defer(async () => {
    service.kill('SIGTERM')
    await ended
  })
  const printed: string[] = []
  service.stderr.on('data', (text: Buffer) => printed.push(text.toString()))
  const ready = Promise.withResolvers<void>()
  createInterface(service.stdout).on('line', (line) => {
    printed.push(`${line}\n`)
    if (line.includes('API token:')) ready.resolve()
  })
  await Promise.race([
    ready.promise,
    ended.then(([code]) => Promise.reject(new Error(`the service ended with ${code} before it was ready:\n${printed.join('')}`))),
  ])
})

after(() => started.disposeAsync())

for (const page of pages.filter((candidate) => runnable(candidate).length > 0)) {
  test(`the commands of ${page.file} work when typed in order`, async () => {
    const wanted = runnable(page).filter((commands) => withoutPython === false || !commands.includes('python3'))
    const blocks = wanted.map((commands) => commands.replaceAll(ADDRESS_IN_PAGES, address).replaceAll(RECEIVER_IN_PAGES, String(receiver)))
    const script = blocks.join(`\necho; echo '${NEXT_BLOCK}'\n`)
    const answers = (await shell(page.file === FOUND_BY_NPM ? script : `${NPX}\n${script}`)).split(NEXT_BLOCK)
    assert.equal(answers.length, blocks.length)
    for (const [index, answer] of answers.entries()) {
      assert.doesNotMatch(answer, /"summary"|"errors"/, `answered with an error:\n${blocks[index]}`)
      if (blocks[index]?.includes('/receive')) assert.match(answer, /"ack_id"|"success":\s*true/, `had no message:\n${blocks[index]}`)
    }
  })
}

const shell = (script: string): Promise<string> =>
  new Promise((resolve, reject) => {
    execFile(
      'bash',
      ['-euo', 'pipefail', '-c', `trap 'kill $(jobs -p) 2>&- || true' EXIT\n${script}`],
      { cwd: clone, env },
      (error, stdout, stderr) => {
        if (error) reject(new Error(`${error.message}\n${stdout}\n${stderr}`))
        else resolve(stdout)
      },
    )
  })
