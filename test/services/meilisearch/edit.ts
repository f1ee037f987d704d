/**
 * As much of the two languages of an edit as the tests use.
 *
 * Filter: `attribute = value`, `attribute IN [value, …]`, and several joined by AND; a list of filters must all hold.
 *
 * Function: statements with `;` between them. `doc.x = …`, `doc.x += …` and `-=` (x: names joined by dots), `doc = …`,
 * where `…` is made of numbers, texts, true, false, `()`, `doc.x`, `context.x`, `#{}`, + - * and parentheses. `doc = ()` deletes,
 * `doc.x = ()` stores null. Everything else of Rhai (if, loops, calls, lists) is refused as if it were wrong.
 */
import { Failure } from './failure.ts'
import type { Value } from './json.ts'

export type Row = { [name: string]: Value }
type Scalar = string | number | boolean

const TOKEN = /\s+|(\d+(?:\.\d+)?)|"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([A-Za-z_]\w*)|(\(\)|#\{\}|\+=|-=|[-+*=.;()])/y
type Token = Readonly<{ at: number; text: string; kind: 'number' | 'text' | 'name' | 'sign' }>

/** A script that is not one. */
export class ScriptError extends Error {
  override readonly name = 'ScriptError'
}

type Scope = { doc: Value | undefined; readonly context: Row | undefined }
type Expression = (scope: Scope) => Value | undefined
type Statement = (scope: Scope) => void

/** @throws ScriptError */
export function compileFunction(source: string): Statement {
  const tokens = tokensOf(source)
  let at = 0
  const peek = () => tokens[at]
  const next = (): Token => {
    const token = tokens[at++]
    if (!token) throw new ScriptError(`Script is incomplete (${place(source.length)})`)
    return token
  }
  const expect = (text: string) => {
    const token = next()
    if (token.text !== text) throw new ScriptError(`Expecting '${text}' (${place(token.at)})`)
  }
  const path = (): string[] => {
    const names: string[] = []
    while (peek()?.text === '.') {
      at++
      names.push(next().text)
    }
    return names
  }
  const factor = (): Expression => {
    const token = next()
    if (token.kind === 'number') return () => Number(token.text)
    if (token.kind === 'text') return () => token.text
    if (token.text === '()') return () => undefined
    if (token.text === '#{}') return () => ({})
    if (token.text === '(') {
      const inner = sum()
      expect(')')
      return inner
    }
    if (token.text === 'true' || token.text === 'false') return () => token.text === 'true'
    if (token.kind !== 'name') throw new ScriptError(`Unexpected '${token.text}' (${place(token.at)})`)
    const names = path()
    return (scope) =>
      names.reduce<Value | undefined>((value, name) => (value as Row | undefined)?.[name] ?? undefined, variable(scope, token))
  }
  const product = (): Expression => {
    let left = factor()
    while (peek()?.text === '*') {
      at++
      const [a, b] = [left, factor()]
      left = (scope) => Number(a(scope)) * Number(b(scope))
    }
    return left
  }
  const sum = (): Expression => {
    let left = product()
    while (peek()?.text === '+' || peek()?.text === '-') {
      const { text } = next()
      const [a, b] = [left, product()]
      left = (scope) => add(a(scope), b(scope), text)
    }
    return left
  }
  const statement = (): Statement => {
    const target = next()
    if (target.text !== 'doc') throw new ScriptError(`Expecting a change of doc (${place(target.at)})`)
    const names = path()
    const { text, at: signAt } = next()
    if (text !== '=' && text !== '+=' && text !== '-=') throw new ScriptError(`Unexpected '${text}' (${place(signAt)})`)
    const value = sum()
    return (scope) => {
      if (names.length === 0) return void (scope.doc = value(scope))
      const name = names.at(-1) as string
      const owner = names.slice(0, -1).reduce<Value | undefined>((row, step) => (row as Row)[step], scope.doc) as Row
      owner[name] = (text === '=' ? value(scope) : add(owner[name], value(scope), text)) ?? null
    }
  }
  const statements: Statement[] = []
  while (peek()) {
    statements.push(statement())
    if (peek()) expect(';')
  }
  return (scope) => statements.forEach((run) => run(scope))
}

function variable(scope: Scope, { text, at }: Token): Value | undefined {
  if (text === 'doc') return scope.doc
  if (text === 'context' && scope.context) return scope.context
  throw new Failure(
    'edit_documents_by_function_error',
    `Document edition runtime error encountered while running the function: Variable not found: ${text} (${place(at)})`,
  )
}

function add(a: Value | undefined, b: Value | undefined, sign: string): Value {
  if (sign.startsWith('-')) return Number(a) - Number(b)
  return typeof a === 'string' || typeof b === 'string' ? `${String(a)}${String(b)}` : Number(a) + Number(b)
}

/** counted from 1, as Rhai does */
const place = (at: number) => `line 1, position ${at + 1}`

function tokensOf(source: string): Token[] {
  const tokens: Token[] = []
  for (let at = 0; at < source.length; at = TOKEN.lastIndex) {
    TOKEN.lastIndex = at
    const match = TOKEN.exec(source)
    if (!match) throw new ScriptError(`Unexpected '${source[at]}' (${place(at)})`)
    const [, number, double, single, name, sign] = match
    if (number !== undefined) tokens.push({ at, text: number, kind: 'number' })
    else if (double !== undefined || single !== undefined) tokens.push({ at, text: (double ?? single) as string, kind: 'text' })
    else if (name !== undefined) tokens.push({ at, text: name, kind: 'name' })
    else if (sign !== undefined) tokens.push({ at, text: sign, kind: 'sign' })
  }
  return tokens
}

// ── filters ───────────────────────────────────────────────────────────────────────────────────────

type Condition = Readonly<{ attribute: string; values: readonly Scalar[]; place: string }>
const CONDITION = /^\s*([\w.-]+)\s*(=|IN)\s*(.*)$/s
const SCALAR = /^(?:'([^']*)'|"([^"]*)"|([\w.-]+))$/

/** @throws Failure invalid_document_filter */
export function compileFilter(index: string, filter: string): readonly Condition[] {
  if (filter.trim() === '') throw new Failure('invalid_document_filter', 'Sending an empty filter is forbidden.')
  let offset = 0
  return filter.split(/\s+AND\s+/).map((part) => {
    const start = filter.indexOf(part, offset)
    offset = start + part.length
    const [, attribute, sign, rest] = CONDITION.exec(part) ?? []
    const texts = sign === 'IN' ? /^\[(.*)\]$/s.exec(rest ?? '')?.[1]?.split(',') : [rest ?? '']
    const values = texts?.map((text) => scalarOf(text.trim()))
    if (attribute === undefined || !values || values.includes(undefined)) {
      const at = start + part.indexOf(sign ?? '') + 2
      throw new Failure(
        'invalid_document_filter',
        `Index \`${index}\`: Was expecting a value but instead got nothing.\n${at}:${at} ${filter}`,
      )
    }
    return { attribute, values: values as Scalar[], place: `${start + 1}:${start + attribute.length + 1} ${filter}` }
  })
}

function scalarOf(text: string): Scalar | undefined {
  const [, single, double, bare] = SCALAR.exec(text) ?? []
  return single ?? double ?? bare
}

/** @throws Failure an attribute that can't be filtered by */
export function matches(index: string, filterable: readonly string[], conditions: readonly Condition[], row: Row): boolean {
  for (const { attribute, place: where } of conditions) {
    if (filterable.includes(attribute)) continue
    const others =
      filterable.length === 0
        ? 'This index does not have configured filterable attributes.'
        : `Available filterable attribute patterns are: ${filterable.map((name) => `\`${name}\``).join(', ')}.`
    throw new Failure('invalid_document_filter', `Index \`${index}\`: Attribute \`${attribute}\` is not filterable. ${others}\n${where}`)
  }
  return conditions.every(({ attribute, values }) => {
    const held = attribute.split('.').reduce<Value | undefined>((value, name) => (value as Row | null | undefined)?.[name], row)
    const all = Array.isArray(held) ? held : [held]
    return values.some((value) => all.some((one) => one !== undefined && String(one) === String(value)))
  })
}
