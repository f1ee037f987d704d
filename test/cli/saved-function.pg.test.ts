/** `tailrace function save`, as a user types it, against a served API. */
import assert from 'node:assert/strict'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { serve } from '../api/served-functions.ts'
import { tailrace } from './command.ts'

test('a function from a file is created under its name, updated when it is there, and refused in words', async () => {
  await using s = await serve()
  const folder = await mkdtemp(join(tmpdir(), 'tailrace-save-'))
  const save = async (file: string, text: string, ...more: string[]) => {
    await writeFile(join(folder, file), text)
    return tailrace('function', 'save', join(folder, file), ...more, '--url', s.url, '--token', 'a-good-token')
  }
  try {
    const made = await save('way.ts', "import type { Route } from 'tailrace'\nexport default (() => ({})) satisfies Route<'meilisearch'>")
    assert.deepEqual(made, { code: 0, out: 'way: saved, type routing\n', err: '' })
    assert.deepEqual(
      s.cache.functions.map(({ name, type, sinkType }) => [name, type, sinkType]),
      [['way', 'routing', 'meilisearch']],
    )
    await s.store.query(`update sink set settings = settings || '{"routing": "way"}' where name = 'search'`)
    await s.reload()
    const again = await save('way.ts', 'export default (a, r) => r.no.such', '--type', 'routing', '--sink-type', 'meilisearch')
    assert.deepEqual([again.code, again.out], [0, 'way: updated, type routing; sinks that have it: search\n'])
    assert.match(again.err, /^it fails on an example: TypeError: .*\(line 1, column 31\)\n$/)
    const query = await save('names.sql', 'select 1 as id where 1 = any($1)', '--name', 'other')
    assert.deepEqual(
      [query.out, s.cache.functions.map(({ type }) => type).toSorted()],
      ['other: saved, type enrichment\n', ['enrichment', 'routing']],
    )
    for (const [file, text, more, words] of [
      ['bad.ts', 'export default (', [], /^tailrace function: .*code /],
      ['only.ts', 'export default () => 1', ['--sink', 'nosuch'], /^tailrace function: There is no sink "nosuch"/],
      ['way.js', 'export default () => true', ['--type', 'filter'], /of the sink "search" names "way", which is a function of type filter/],
    ] as const) {
      const refused = await save(file, text, ...more)
      assert.equal(refused.code, 1)
      assert.match(refused.err, words)
    }
  } finally {
    await rm(folder, { recursive: true })
  }
})
