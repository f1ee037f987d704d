/** Dependencies point one way: the lint configuration refuses an import that goes up. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { refusalsOf } from './lint.ts'

const MAY: Readonly<Record<string, readonly string[]>> = {
  engine: [],
  sinks: ['engine'],
  transforms: ['engine'],
  actors: ['engine', 'sinks', 'transforms'],
  api: ['engine', 'sinks', 'transforms', 'actors'],
  cli: ['engine', 'sinks', 'transforms', 'actors', 'api'],
  clients: ['engine'],
  bench: ['engine', 'sinks', 'transforms', 'actors', 'api', 'cli', 'clients', 'test'],
  test: ['engine', 'sinks', 'transforms', 'actors', 'api', 'cli', 'clients', 'bench'],
}

/** Lints a project that has one file for each pair of folders. @returns pairs "from to" that were refused */
async function refusedPairs(): Promise<string[]> {
  const files: Record<string, string> = {}
  const folders = Object.keys(MAY)
  for (const from of folders) {
    files[`${from}/target.ts`] = 'export const target = 1\n'
    for (const to of folders.filter((name) => name !== from))
      files[`${from}/inner/${to}.ts`] = `import { target } from '../../${to}/target.ts'\nexport const value = target\n`
  }
  const refusals = await refusalsOf(files)
  const wrong = refusals.filter(({ code }) => code !== 'eslint(no-restricted-imports)')
  assert.deepEqual(wrong, [], 'nothing else is wrong with these files')
  return refusals.map(({ filename }) => /([a-z]+)\/inner\/([a-z]+)\.ts$/.exec(filename)?.slice(1).join(' ') ?? filename).sort()
}

test('the linter refuses exactly the imports between folders that point upwards', async () => {
  const folders = Object.keys(MAY)
  const forbidden = folders.flatMap((from) => folders.filter((to) => to !== from && !MAY[from]?.includes(to)).map((to) => `${from} ${to}`))
  assert.deepEqual(await refusedPairs(), forbidden.sort())
})
