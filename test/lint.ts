/** What the linter, configured as here, says of a small project of its own. */
import { execFile } from 'node:child_process'
import { copyFile, mkdir, mkdtempDisposable, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'

const root = dirname(import.meta.dirname)

export type Refusal = Readonly<{ code: string; filename: string }>

/** @param files content by path */
export async function refusalsOf(files: Readonly<Record<string, string>>): Promise<readonly Refusal[]> {
  await using folder = await mkdtempDisposable(join(tmpdir(), 'tailrace-lint-'))
  await copyFile(join(root, '.oxlintrc.json'), join(folder.path, '.oxlintrc.json'))
  for (const [name, content] of Object.entries(files)) {
    await mkdir(join(folder.path, dirname(name)), { recursive: true })
    await writeFile(join(folder.path, name), content)
  }
  return (JSON.parse(await lint(folder.path)) as { diagnostics: readonly Refusal[] }).diagnostics
}

const lint = (folder: string): Promise<string> =>
  new Promise((resolve, reject) => {
    const file = join(root, 'node_modules', 'oxlint', 'bin', 'oxlint')
    // oxlint exits with 1 when it has found something: that is what is asked for
    execFile(process.execPath, [file, '--format=json'], { cwd: folder }, (error, stdout) =>
      stdout === '' ? reject(error) : resolve(stdout),
    )
  })
