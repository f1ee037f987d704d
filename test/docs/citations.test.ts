/** What a comment cites is in the repository: a page, or a rule of docs/rules.md, so that a reader of the sources can look it up. */
import assert from 'node:assert/strict'
import { existsSync, globSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { test } from 'node:test'
import { pages, root } from './pages.ts'

const RULES = 'docs/rules.md'
const SOURCES = '{engine,actors,sinks,transforms,api,cli,bench,test,docs}/**/*.{ts,mjs,js,sql,sh}'
/** What papers of a design are called: one that is cited by its number is not in the repository. */
const PAPER = /\b(?:contract|correctness|decision|design|invariant|requirement|ruling|section|spec)s?,? \d+(?:\.\d+)?/gi
const RULE = /(docs\/rules\.md, )?\brules? (\d+(?:(?:, | and | to )\d+)*)/g
const PAGE = /[\w./-]+\.md\b/g

const rules = new Set([...readFileSync(join(root, RULES), 'utf8').matchAll(/^### (\d+)\. /gm)].map(([, number]) => Number(number)))

/** Lines of a comment are one text: a citation may go over their ends. */
const unwrapped = (text: string): string => text.replace(/\n *(?:\*|\/\/|--|#)? */g, ' ')

/** @returns what the text of a file cites and nobody can look up */
function citesInVain(file: string, source: string): string[] {
  const text = unwrapped(source)
  const strayRules = [...text.matchAll(RULE)].filter(([, page, numbers = '']) => {
    if (page === undefined && file !== RULES) return true
    return (numbers.match(/\d+/g) ?? []).some((number) => !rules.has(Number(number)))
  })
  const strayPages = [...text.matchAll(PAGE)].filter(
    ([page]) => !['', 'docs', dirname(file)].some((folder) => existsSync(join(root, folder, page))),
  )
  return [...strayRules, ...strayPages, ...text.matchAll(PAPER)].map(([cited]) => cited)
}

test('every rule and page that sources and pages cite is there', () => {
  const found = globSync(SOURCES, { cwd: root, exclude: ['**/node_modules/**', 'test/docs/citations.test.ts'] })
    .map((file) => ({ file, text: readFileSync(join(root, file), 'utf8') }))
    .concat(pages)
    .flatMap(({ file, text }) => citesInVain(file, text).map((cited) => `${file}: ${cited}`))
  assert.deepEqual(found, [])
})

test('a rule that is not there, one without its page, a page and a paper that are not there are found, also over the end of a line', () => {
  const cases: readonly (readonly [comment: string, inVain: readonly string[]])[] = [
    ['/** Appends one at a time (docs/rules.md, rule 4). */', []],
    ['/**\n * Appends one at a time (docs/rules.md,\n * rules 4 and 16 to 18), as docs/how-it-works.md says.\n */', []],
    ['// nothing follows (docs/rules.md, rule 999)', ['docs/rules.md, rule 999']],
    ['// nothing follows (docs/rules.md, rules 4 and\n   // 999)', ['docs/rules.md, rules 4 and 999']],
    ['// nothing follows (rule 4)', ['rule 4']],
    ['// as docs/papers.md says', ['docs/papers.md']],
    ['/** Bounds (contract 12.3), and order (correctness,\n * invariants 6 and 8) */', ['contract 12.3', 'invariants 6']],
  ]
  for (const [comment, inVain] of cases) assert.deepEqual(citesInVain('engine/some.ts', comment), inVain, comment)
})
