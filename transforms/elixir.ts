/** Functions in Elixir, as the original has them: told from ours, and kept in a form that says so until they are ported. */
import { sandboxKindOf } from '../engine/state/function-kinds.ts'
import type { FunctionInput } from '../engine/state/functions.ts'
import type { Written } from './compile.ts'

/** What is said of a function in Elixir. */
export const ELIXIR = 'looks like Elixir; functions are written in JavaScript or TypeScript: docs/functions.md shows how one is ported'
/** the first line of the code that runs in the place of such a function */
const MARK = '// not ported from Elixir'

/** Guesses the language of a function. */
export const looksLikeElixir = (code: string): boolean => /^[^\S\r\n\u2028\u2029]*def\s+(?:transform|filter|route)\b/m.test(code)

/** A function that can be stored, and fails every message. */
export function unported(written: Written): FunctionInput {
  const compiled = `${MARK}\nexport default () => { throw new Error(${JSON.stringify(ELIXIR)}) }`
  return { ...written, sinkType: written.sinkType ?? null, compiled, usesMetadata: false }
}

/** Whether a function is code in Elixir, which is taken and pauses who has it. */
export const isElixir = ({ type, code }: Pick<Written, 'type' | 'code'>): boolean =>
  type !== 'path' && sandboxKindOf(type) !== undefined && looksLikeElixir(code)

/** Whether a function was stored although it is in Elixir. */
export const isUnported = ({ compiled }: Pick<FunctionInput, 'compiled'>): boolean => compiled.startsWith(MARK)
