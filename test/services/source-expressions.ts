/**
 * Every regular expression of the sources: literals, and texts that become expressions (`pattern:` of a schema, `…_PATTERN`).
 * A small reader of the language finds them, for a slash begins an expression only where a value may stand.
 */
import { readdirSync, readFileSync } from 'node:fs'

/** @property place file and line */
export type Expression = Readonly<{ place: string; source: string; flags: string }>

const FOLDERS = ['actors', 'api', 'cli', 'engine', 'sinks', 'transforms']
/** behind these words a value stands */
const WORDS = new Set(['return', 'case', 'typeof', 'in', 'of', 'void', 'await', 'throw', 'else'])
const PATTERN_TEXT = /\bpattern: ('(?:[^'\\\n]|\\.)*')|_PATTERN = ('(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*")/g

export function sourceExpressions(root: string): Expression[] {
  return FOLDERS.flatMap((folder) =>
    readdirSync(`${root}/${folder}`, { recursive: true, encoding: 'utf8' })
      .filter((name) => /\.m?[jt]s$/.test(name))
      .flatMap((name) => expressionsIn(readFileSync(`${root}/${folder}/${name}`, 'utf8'), `${folder}/${name}`)),
  )
}

/** @param code TypeScript or JavaScript @throws Error: an expression that is made of parts, which nobody could look at */
export function expressionsIn(code: string, file: string): Expression[] {
  const found: Expression[] = []
  const placeOf = (at: number) => `${file}:${code.slice(0, at).split('\n').length}`
  for (const [at, literal] of regexLiterals(code)) {
    const end = literal.lastIndexOf('/')
    found.push({ place: placeOf(at), source: literal.slice(1, end), flags: literal.slice(end + 1) })
  }
  for (const match of code.matchAll(PATTERN_TEXT)) {
    const quoted = (match[1] ?? match[2]) as string
    const text = JSON.parse(`"${quoted.slice(1, -1).replaceAll("\\'", "'").replaceAll('"', '\\"')}"`) as string
    found.push({ place: placeOf(match.index), source: text, flags: 'u' })
  }
  for (const { index } of code.matchAll(/new RegExp\((?!DURATION_PATTERN\))/g))
    throw new Error(`${placeOf(index)} makes an expression of parts: write it as a literal, so that its cost can be looked at`)
  return found
}

/** Where each literal begins, and its text with the flags. */
function* regexLiterals(code: string): Generator<readonly [at: number, literal: string]> {
  const braces: ('{' | '`')[] = [] // what a closing brace ends: a block, or the value inside of a template
  let at = code.startsWith('#!') ? code.indexOf('\n') : 0
  let isValueNext = true
  const skipTemplate = () => {
    for (; at < code.length; at++) {
      if (code[at] === '\\') at++
      else if (code[at] === '`') return void at++
      else if (code.startsWith('${', at)) {
        braces.push('`')
        at += 2
        return
      }
    }
  }
  while (at < code.length) {
    const char = code[at] as string
    if (code.startsWith('//', at)) at = endOr(code.indexOf('\n', at), code)
    else if (code.startsWith('/*', at)) at = endOr(code.indexOf('*/', at), code) + 2
    else if (char === "'" || char === '"') {
      for (at++; at < code.length && code[at] !== char; at++) if (code[at] === '\\') at++
      at++
      isValueNext = false
    } else if (char === '`' || (char === '}' && braces.at(-1) === '`')) {
      if (char === '}') braces.pop()
      at++
      skipTemplate()
      isValueNext = code[at - 1] !== '`'
    } else if (char === '/' && isValueNext) {
      const start = at
      let isClass = false
      for (at++; at < code.length && (isClass || code[at] !== '/'); at++) {
        if (code[at] === '\\') at++
        else if (code[at] === '[') isClass = true
        else if (code[at] === ']') isClass = false
      }
      for (at++; /[a-z]/.test(code[at] ?? '');) at++
      yield [start, code.slice(start, at)]
      isValueNext = false
    } else if (/[\w$]/.test(char)) {
      const start = at
      while (/[\w$]/.test(code[at] ?? '')) at++
      isValueNext = WORDS.has(code.slice(start, at))
    } else {
      if (char === '{') braces.push('{')
      else if (char === '}') braces.pop()
      if (!/\s/.test(char)) isValueNext = char !== ')' && char !== ']'
      at++
    }
  }
}

const endOr = (at: number, code: string): number => (at < 0 ? code.length : at)
