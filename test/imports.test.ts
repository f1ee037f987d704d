/** Dependencies point one way: the lint configuration refuses an import that goes up. */
import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { copyFile, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { test } from 'node:test'

const root = dirname(import.meta.dirname)

const MAY: Readonly<Record<string, readonly string[]>> = {
  engine: [],
  sinks: ['engine'],
  transforms: ['engine'],
  actors: ['engine', 'sinks', 'transforms'],
  api: ['engine', 'sinks', 'transforms', 'actors'],
  cli: ['engine', 'sinks', 'transforms', 'actors', 'api'],
  bench: ['engine', 'sinks', 'transforms', 'actors', 'api', 'cli', 'test'],
  test: ['engine', 'sinks', 'transforms', 'actors', 'api', 'cli', 'bench'],
}

/** Lints a small project of its own that has one file for each pair of folders. @returns pairs "from to" that were refused */
async function refusedPairs(): Promise<string[]> {
  const folder = await mkdtemp(join(tmpdir(), 'tailrace-lint-'))
  try {
    await copyFile(join(root, '.oxlintrc.json'), join(folder, '.oxlintrc.json'))
    const folders = Object.keys(MAY)
    for (const from of folders) {
      await mkdir(join(folder, from, 'inner'), { recursive: true })
      await writeFile(join(folder, from, 'target.ts'), 'export const target = 1\n')
      for (const to of folders.filter((name) => name !== from)) {
        await writeFile(
          join(folder, from, 'inner', `${to}.ts`),
          `import { target } from '../../${to}/target.ts'\nexport const value = target\n`,
        )
      }
    }
    const report = await lint(folder)
    const { diagnostics } = JSON.parse(report) as { diagnostics: { code: string; filename: string }[] }
    const wrong = diagnostics.filter(({ code }) => code !== 'eslint(no-restricted-imports)')
    assert.deepEqual(wrong, [], 'nothing else is wrong with these files')
    return diagnostics.map(({ filename }) => /([a-z]+)\/inner\/([a-z]+)\.ts$/.exec(filename)?.slice(1).join(' ') ?? filename).sort()
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
}

const lint = (folder: string): Promise<string> =>
  new Promise((resolve, reject) => {
    const file = join(root, 'node_modules', 'oxlint', 'bin', 'oxlint')
    // oxlint exits with 1 when it has found something: that is what is asked for
    execFile(process.execPath, [file, '--format=json'], { cwd: folder }, (error, stdout) =>
      stdout === '' ? reject(error) : resolve(stdout),
    )
  })

test('the linter refuses exactly the imports between folders that point upwards', async () => {
  const folders = Object.keys(MAY)
  const forbidden = folders.flatMap((from) => folders.filter((to) => to !== from && !MAY[from]?.includes(to)).map((to) => `${from} ${to}`))
  assert.deepEqual(await refusedPairs(), forbidden.sort())
})
