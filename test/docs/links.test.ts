/** Every link between the pages leads somewhere. */
import assert from 'node:assert/strict'
import { existsSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { test } from 'node:test'
import { anchorsOf } from './anchors.ts'
import { pages, root } from './pages.ts'

for (const { file, text } of pages) {
  test(`the links of ${file} lead to files and headings that exist`, () => {
    const prose = text.replace(/^```.*?^```$/gms, '')
    const links = [...prose.matchAll(/\]\(([^)\s]+)\)/g)].map(([, link]) => link as string).filter((link) => !/^[a-z]+:/.test(link))
    const broken = links.filter((link) => {
      const [path = '', fragment] = link.split('#')
      const target = path === '' ? join(root, file) : join(root, dirname(file), path)
      if (!existsSync(target)) return true
      return fragment !== undefined && !anchorsOf(readFileSync(target, 'utf8')).has(fragment)
    })
    assert.deepEqual(broken, [])
  })
}
