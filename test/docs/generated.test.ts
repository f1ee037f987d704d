/** Pages made from the code say what the code says. */
import assert from 'node:assert/strict'
import { readFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { test } from 'node:test'
import { generatedPages } from '../../docs/generate.ts'

const docs = join(dirname(dirname(import.meta.dirname)), 'docs')

for (const [name, text] of Object.entries(generatedPages())) {
  test(`docs/${name} is up to date (npm run docs makes it)`, async () => {
    assert.equal(await readFile(join(docs, name), 'utf8'), text)
  })
}
