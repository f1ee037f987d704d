/** What was compiled is code that runs as the service: it is kept only where nobody else can put something in its place. */
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { chmod, chown, mkdir, mkdtemp, readdir, rm, stat, symlink } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { COMMAND } from './running-command.ts'
// @ts-expect-error plain JavaScript, which any Node can read
import { trustedFolder as untyped } from '../../cli/compile-cache.mjs'

const trustedFolder = untyped as (path: string) => string | undefined
const isRoot = process.getuid?.() === 0
const NOBODY = 65_534

test('a folder that others may write, own, or could replace is not used', { skip: process.platform === 'win32' }, async () => {
  const home = await mkdtemp(join(tmpdir(), 'tailrace-cache-'))
  const folder = join(home, 'above', 'compiled')
  try {
    assert.equal(trustedFolder(folder), folder, 'made by us, below a sticky folder')
    assert.equal((await stat(folder)).mode & 0o777, 0o700)
    for (const [path, mode, former] of [
      [folder, 0o707, 0o700],
      [folder, 0o720, 0o700],
      [join(home, 'above'), 0o777, 0o700],
    ] as const) {
      await chmod(path, mode)
      assert.equal(trustedFolder(folder), undefined, `${path} ${mode.toString(8)}`)
      await chmod(path, former)
    }
    if (isRoot)
      for (const path of [folder, join(home, 'above')]) {
        await chown(path, NOBODY, NOBODY)
        assert.equal(trustedFolder(folder), undefined, `${path} of another user`)
        await chown(path, 0, 0)
      }
    await symlink(folder, join(home, 'link'))
    assert.equal(trustedFolder(join(home, 'link')), undefined)
    assert.equal(trustedFolder(folder), folder)
    assert.equal(trustedFolder('/proc/nowhere/compiled'), undefined, 'where none can be made')
  } finally {
    await rm(home, { recursive: true, force: true })
  }
})

test('the command keeps what it compiled in the user’s folder for caches, and nothing in the one for temporary files', async () => {
  const home = await mkdtemp(join(tmpdir(), 'tailrace-cache-'))
  try {
    const temporary = join(home, 'tmp')
    await mkdir(temporary)
    const env: NodeJS.ProcessEnv = {
      ...process.env,
      XDG_CACHE_HOME: join(home, 'caches'),
      LOCALAPPDATA: join(home, 'caches'),
      TMPDIR: temporary,
    }
    delete env['NODE_COMPILE_CACHE']
    execFileSync(process.execPath, [COMMAND, 'version'], { env })
    assert.deepEqual(await readdir(temporary), [])
    assert.equal((await readdir(join(home, 'caches', 'tailrace', 'compiled'))).length, 1)
  } finally {
    await rm(home, { recursive: true, force: true })
  }
})
