import assert from 'node:assert/strict'
import { fork } from 'node:child_process'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { mkdir, mkdtemp, rm, stat, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { openDataFolder } from '../../engine/data-folder.ts'

async function freshFolder() {
  const parent = await mkdtemp(join(tmpdir(), 'tailrace-data-'))
  return { path: join(parent, 'a folder'), [Symbol.asyncDispose]: () => rm(parent, { recursive: true, force: true }) }
}

test('a data folder that another process holds is refused with its pid, until that process is killed', async (t) => {
  await using dir = await freshFolder()
  const holder = fork(join(import.meta.dirname, 'hold-data-folder.ts'), [dir.path], { execArgv: ['--expose-gc'] })
  t.after(() => holder.kill('SIGKILL'))
  await once(holder, 'message')
  assert.throws(() => openDataFolder(dir.path), { code: 'DATA_FOLDER_IN_USE', message: new RegExp(`process ${holder.pid}$`) })
  holder.kill('SIGKILL')
  await once(holder, 'exit')
  using folder = openDataFolder(dir.path)
  assert.equal((await stat(folder.path)).mode & 0o777, 0o700)
  assert.equal((await stat(join(folder.path, 'lock.sqlite'))).mode & 0o777, 0o600)
})

test('a folder that was let go can be taken again by the same process', async () => {
  await using dir = await freshFolder()
  for (let i = 0; i < 2; i++) {
    using folder = openDataFolder(dir.path)
    assert.throws(() => openDataFolder(folder.path), { code: 'DATA_FOLDER_IN_USE' })
  }
})

test('what can’t be a data folder is refused with the setting, the reason and what it takes', async () => {
  await using dir = await freshFolder()
  const file = join(dir.path, 'file')
  const odd = join(dir.path, 'odd')
  await mkdir(join(odd, 'lock.sqlite'), { recursive: true })
  await writeFile(file, '')
  const nowhere = existsSync('/proc/self') ? ['/proc/tailrace', '/proc/tailrace/data'] : []
  for (const path of [file, join(file, 'below'), odd, ...nowhere]) {
    assert.throws(() => openDataFolder(path), { code: 'SETTING_INVALID', message: /^TAILRACE_DATA: .+ can't be .+\. Name a folder that/ })
  }
  assert.throws(() => openDataFolder(file), { message: /file is not a folder/ })
})
