/**
 * Makes what an isolate takes of what a user wrote: types are blanked out, so that every line and column stays where it is.
 */
import { FUNCTION_KINDS, type SandboxKind } from '../../engine/state/function-kinds.ts'
import { stripTypeScriptTypes } from 'node:module'
import { NotBuilt } from './isolate.ts'

const DEFAULT_EXPORT = /\bexport\s+default\b|\bas\s+default\b/

/** Makes JavaScript of a function. @param text TypeScript or JavaScript; JavaScript comes back as it is @throws NotBuilt: with the place */
export function javascriptOf(text: string, kind: SandboxKind): string {
  let code: string
  try {
    code = stripTypeScriptTypes(text)
  } catch (error) {
    throw new NotBuilt({ message: wordsOf(error), ...placeOf(error, text) })
  }
  if (DEFAULT_EXPORT.test(code)) return code
  const names: readonly string[] = FUNCTION_KINDS[kind].functionNames
  const name = Array.from(code.matchAll(/^function\s+(\w+)\s*\(/gm), ([, each = '']) => each).find((each) => names.includes(each))
  return name === undefined ? code : `${code}\nexport default ${name}`
}

function wordsOf(error: unknown): string {
  const message = error instanceof Error ? error.message : String(error)
  return message.replace(/ in strip-only mode$/, ': types are blanked out and nothing else is translated, write it as JavaScript')
}

/** The error names the line, prints it, and underlines what it means; where the end of the text comes too early, nothing is underlined. */
function placeOf(error: unknown, text: string): { line?: number; column?: number } {
  const [, line, carets] = /^[^\n]*:(\d+)\n(?:[^\n]*\n)*?( *)\^+\n/.exec(error instanceof Error ? (error.stack ?? '') : '') ?? []
  if (line !== undefined && carets !== undefined) return { line: Number(line), column: carets.length + 1 }
  const lines = text.trimEnd().split('\n')
  return { line: lines.length, column: (lines.at(-1) ?? '').length + 1 }
}
