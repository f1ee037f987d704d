/** The table of errors against the sources that throw them, and the words of both. */
import assert from 'node:assert/strict'
import { globSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { traverseFast, type Node } from '@babel/types'
import { ERRORS } from '../../engine/errors.ts'
import { sourceOf } from '../house.ts'

const ROOT = join(import.meta.dirname, '..', '..')
const TABLE = 'engine/errors.ts'
const PRODUCT = ['engine', 'actors', 'api', 'sinks', 'transforms', 'cli']
const sources = PRODUCT.flatMap((folder) => globSync(`${folder}/**/*.ts`, { cwd: ROOT })).map((path) =>
  sourceOf(path, readFileSync(join(ROOT, path), 'utf8')),
)

/** SOURCE_LOCKED is of former versions, and no code is used for another. */
const NEVER_GIVEN = ['SOURCE_LOCKED']

/** Calls back with each text of a source and where it stands; a template as one text, with `…` for its values. */
function eachText(program: Node, seen: (text: string, place: Node) => void): void {
  traverseFast(program, (node) => {
    if (node.type === 'StringLiteral') seen(node.value, node)
    if (node.type === 'TemplateLiteral') seen(node.quasis.map(({ value }) => value.cooked ?? value.raw).join('…'), node)
  })
}

/** The texts of a source that only ask which code an error has. */
function comparedIn(program: Node): ReadonlySet<Node> {
  const compared = new Set<Node>()
  traverseFast(program, (node) => {
    if (node.type === 'BinaryExpression') for (const side of [node.left, node.right]) compared.add(side)
    if (node.type === 'SwitchCase' && node.test) compared.add(node.test)
    if (node.type === 'TSLiteralType') compared.add(node.literal)
  })
  return compared
}

test('every code of the table is given to an error somewhere', () => {
  const given = new Set<string>()
  for (const { path, program } of sources) {
    if (path === TABLE) continue
    const compared = comparedIn(program)
    eachText(program, (text, place) => void (compared.has(place) || given.add(text)))
  }
  assert.deepEqual(
    Object.keys(ERRORS).filter((code) => !given.has(code)),
    NEVER_GIVEN,
  )
})

test('every code says in whole sentences what happened and what to do, each of which stands alone', () => {
  for (const [code, { meaning, remedy }] of Object.entries(ERRORS))
    for (const text of [meaning, remedy]) {
      assert.match(text, /^(?:[A-Z]|[a-z]+_)[^]*[.:]$/, `${code}: ${text}`)
      assert.doesNotMatch(
        text,
        /(?:^|\. )(?:(?:It|They)|(?:This|That|These|Those) (?:is|are|was|were|has|have|can|needs?|takes?)) /,
        `${code}: which noun? ${text}`,
      )
    }
})

test('no text names a class or a source file', () => {
  const classes = new Set<string>()
  for (const { program } of sources)
    traverseFast(program, (node) => {
      if (node.type !== 'ClassDeclaration' || !node.id) return
      const { name } = node.id
      if (/[a-z][A-Z]/.test(name) && !(name in globalThis)) classes.add(name) // functions of users have some that are known by name
    })
  assert.ok(classes.has('EngineError'))
  const found: string[] = []
  for (const { path, program } of sources)
    eachText(program, (text, place) => {
      if (!text.includes(' ')) return // a path of an import, a name
      const words = text.match(/[\w$]+/g) ?? []
      const file = /(?:^|\s)(?:engine|actors|api|sinks|transforms|cli)\/[\w./-]+/.exec(text)?.[0]
      for (const name of [...words.filter((word) => classes.has(word)), ...(file === undefined ? [] : [file])])
        found.push(`${path}:${place.loc?.start.line} ${name}: ${text.slice(0, 100)}`)
    })
  assert.deepEqual(found, [])
})
