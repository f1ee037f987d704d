/**
 * Whoever sends something may send what is slowest to look through, and the engine has one thread. So every regular expression of
 * the sources takes time that grows with the text, and not with its square, whether or not its text comes from outside today.
 */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { attacksOn } from './services/expression-attacks.ts'
import { expressionsIn, sourceExpressions, type Expression } from './services/source-expressions.ts'

/** Slower than that at one of these lengths is looked at closely: a square of 8,000 takes many times as long. */
const SUSPECT_MICROS = 1_000
const LENGTHS = [20, 250, 8_000]
/** This many times the text: 8 times as long when time grows with it, 64 times with its square. Between them a busy machine has room. */
const MORE = 8
const TOO_MUCH = 24

test('no regular expression of the sources takes more than linear time', () => {
  const found = sourceExpressions(fileURLToPath(new URL('..', import.meta.url)))
  assert.ok(found.length > 100, `${found.length} were found`)
  assert.deepEqual(found.flatMap(slowTexts), [])
})

test('what looks for slow expressions finds the usual ones, wherever they stand', () => {
  const code = String.raw`
    const a = text.replace(/\/+$/, '') // a comment with "quotes
    const b = x / 2 / y, c = ${'`'}of ${'${'}text.split(/\s*,\s*;/)} parts${'`'}
    return /^\s*def\s+(?:one|two)\b/m.test("/* no comment */") && /default\s*;?\s*$/.test(b)
    Type.String({ pattern: '^[a-z\\s]+={0,2}\\s*$' })
    const d = /[a-z_-]*token/g, e = /(?:a|a)*c/, f = /\$\{(\w+):-[^}]*\}/`
  const found = expressionsIn(code, 'some.ts')
  assert.deepEqual(found.map(({ place }) => Number(place.split(':')[1])), [2, 3, 4, 4, 6, 6, 6, 5]) // prettier-ignore
  for (const expression of found) assert.notDeepEqual(slowTexts(expression), [], expression.source)
  assert.throws(() => expressionsIn('const a = new RegExp(`${name}x`)', 'some.ts'), /of parts/)
})

/** @returns those that make it slow, in words */
function slowTexts({ place, source, flags }: Expression): string[] {
  const expression = new RegExp(source, `${flags.replaceAll(/[gy]/g, '')}g`)
  for (const { lead, pump, end } of attacksOn(source, flags)) {
    const textOf = (length: number) => lead + pump.repeat(Math.ceil(length / pump.length)) + end
    for (const length of LENGTHS)
      if (microsOf(expression, textOf(length)) > SUSPECT_MICROS && growsTooFast(expression, textOf, length))
        return [`${place} /${source}/ is slow on ${JSON.stringify(lead)}, many ${JSON.stringify(pump)} and ${JSON.stringify(end)}`]
  }
  return []
}

/** Whatever disturbs only adds to the time: of several the least counts, and it has to be too much each time. */
function growsTooFast(expression: RegExp, textOf: (length: number) => string, length: number): boolean {
  return [1, 2].every(() => {
    const micros = least(expression, textOf(length))
    if (micros < SUSPECT_MICROS) return false
    return length === LENGTHS[0] || micros > TOO_MUCH * least(expression, textOf(length / MORE)) // so few that it can only be far worse
  })
}

const least = (expression: RegExp, text: string): number => Math.min(...[1, 2, 3].map(() => microsOf(expression, text)))

/** Of this thread's processor time: what else the machine does isn't in it. */
function microsOf(expression: RegExp, text: string): number {
  const before = process.threadCpuUsage()
  text.replace(expression, '')
  const { user, system } = process.threadCpuUsage(before)
  return user + system
}
