/** Makes what is stored of the function that a user saves: it is checked and built once in a sandbox, so that the engine never runs it. */
import { EngineError } from '../engine/errors.ts'
import type { FunctionInput } from '../engine/state/functions.ts'
import { ELIXIR, looksLikeElixir } from './elixir.ts'
import type { AccountPool } from './sandbox/pool.ts'
import { ownPlace, placeText, type SourcePlace } from './sandbox/source-position.ts'

/** A function as it is written may have so many bytes (docs/functions.md). */
const MAX_CODE_BYTES = 10_000
/** The most bytes of a bundle, which the command makes. */
export const MAX_BUNDLE_BYTES = 512_000
/** The first line of a bundle. */
export const BUNDLE_MARK = '// bundled by "tailrace function build"'
const MAX_PATH = 2_000
const ROOTS = ['record', 'changes', 'action', 'metadata']

type Mistake = Readonly<{ message: string }> & SourcePlace
/** A function as a user wrote it. */
export type Written = Pick<FunctionInput, 'name' | 'type' | 'description' | 'code'> & Partial<Pick<FunctionInput, 'sinkType'>>

/** @throws EngineError VALIDATION_FAILED: what is wrong with the code, and where; SANDBOX_UNAVAILABLE, STOPPING */
export async function compileFunction(written: Written, pool: Pick<AccountPool, 'check'>): Promise<FunctionInput> {
  const { name, type, code, sinkType = null } = written
  if (type === 'routing' && sinkType === null) throw refused('is missing: a routing function is for one type of sink', 'sink_type')
  if (type !== 'routing' && sinkType !== null) throw refused('is only of functions of type routing', 'sink_type')
  if (type === 'path') return { ...written, sinkType, compiled: pathCode(code), usesMetadata: code.startsWith('metadata') }
  const maxBytes = code.startsWith(BUNDLE_MARK) ? MAX_BUNDLE_BYTES : MAX_CODE_BYTES
  if (Buffer.byteLength(code) > maxBytes) throw refused(`has ${Buffer.byteLength(code)} bytes, more than ${maxBytes}`)
  if (type === 'enrichment') {
    if (!/\$1(?![0-9])/.test(code)) throw refused('must contain $1, the values of the first column of the primary key')
    return { ...written, sinkType, compiled: code, usesMetadata: false }
  }
  if (looksLikeElixir(code)) throw refused(ELIXIR)
  const checked = await pool.check({ name, kind: type, code })
  if (checked.failure) {
    const { message } = checked.failure
    const advice = /\b(?:module|exports) is not defined$/.test(message) ? ': a function is an ES module, write `export default`' : ''
    const mistake = { message: message + advice, ...ownPlace(code, checked.failure) }
    throw refused(`${mistake.message}${placeText(mistake)}`, 'code', mistake)
  }
  return { ...written, sinkType, compiled: checked.code, usesMetadata: usesMetadata(checked.code) }
}

/** Makes the code of a path such as `record.a.b`: it goes through own keys of objects, at any depth, and what is missing is null. */
function pathCode(path: string): string {
  const [root = '', ...keys] = path.split('.')
  if (path.length > MAX_PATH) throw refused(`has ${path.length} characters, more than ${MAX_PATH}`, 'path')
  if (/\[[0-9]+\](?:\.|$)/.test(path)) throw refused('can not go into lists: it has names of keys, with a dot before each', 'path')
  if (!ROOTS.includes(root)) throw refused(`must begin with one of ${ROOTS.join(', ')}`, 'path')
  if (keys.includes('')) throw refused('has an empty part between two dots', 'path')
  return `const keys = ${JSON.stringify(keys)}
export default function path(action, record, changes, metadata) {
  let value = ${root}
  for (let i = 0; i < keys.length; i++) {
    if (typeof value !== 'object' || value === null || Array.isArray(value) || !Object.hasOwn(value, keys[i])) return null
    value = value[keys[i]]
  }
  return value
}`
}

/**
 * Tells whether a function may look at its fourth parameter. Bytes that nobody looks at don't travel, so this is asked, and
 * answered with yes whenever it isn't plain: only a parameter that is named nowhere else in the module can't be used.
 */
export function usesMetadata(code: string): boolean {
  if (/\barguments\b|\beval\b|\\u|\.\.\.\s*[\w$]+\s*\)/.test(code)) return true
  const parameters = parametersOf(code)
    ?.split(',')
    .map((parameter) => parameter.trim())
  if (!parameters) return true
  if (!parameters.every((parameter) => /^[\w$]*$/.test(parameter))) return true
  const fourth = parameters[3]
  if (fourth === undefined || fourth === '') return false
  const words = code.match(/[\w$]+/g) ?? []
  return words.filter((word) => word === fourth).length > 1
}

/**
 * The text between the parentheses of the exported function, or undefined where it isn't plain. Each repetition has a bound:
 * this runs on whatever an author sends, in the engine.
 */
function parametersOf(code: string): string | undefined {
  const [, own] = /export\s{1,9}default\s{1,9}(?:function\b\s{0,9}[\w$]{0,99}\s{0,9})?\(([^()]{0,999})\)/.exec(code) ?? []
  if (own !== undefined) return own
  const [, exported] = /export\s{1,9}default\s{1,9}([\w$]{1,99})\s{0,9};?$/.exec(code.trimEnd()) ?? []
  if (exported === undefined) return undefined
  for (const [, name, parameters] of code.matchAll(/function\s{1,9}([\w$]{1,99})\s{0,9}\(([^()]{0,999})\)/g))
    if (name === exported) return parameters
  return undefined
}

const refused = (reason: string, field = 'code', cause?: Mistake) =>
  new EngineError('VALIDATION_FAILED', `${field} ${reason}`, { [field]: reason }, { cause })

/** @returns what is wrong with the code and where, when the code is why a function was refused */
export const mistakeIn = (error: unknown): Mistake | undefined =>
  error instanceof EngineError && error.code === 'VALIDATION_FAILED' ? (error.cause as Mistake | undefined) : undefined
