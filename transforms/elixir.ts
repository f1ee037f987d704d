/** Functions in Elixir, as the original has them: told from ours, and kept in a form that says so until they are ported. */
import type { FunctionInput } from '../engine/state/functions.ts'
import type { Written } from './compile.ts'

export const ELIXIR = 'looks like Elixir; functions are written in JavaScript or TypeScript: docs/functions.md shows how one is ported'
/** first line of what runs in the place of such a function */
const MARK = '// not ported from Elixir'

export const looksLikeElixir = (code: string): boolean => /^[^\S\r\n\u2028\u2029]*def\s+(?:transform|filter|route)\b/m.test(code)

/** A function that can be stored, and fails every message. */
export function unported(written: Written): FunctionInput {
  const compiled = `${MARK}\nexport default () => { throw new Error(${JSON.stringify(ELIXIR)}) }`
  return { ...written, sinkType: written.sinkType ?? null, compiled, usesMetadata: false }
}

export const isUnported = ({ compiled }: Pick<FunctionInput, 'compiled'>): boolean => compiled.startsWith(MARK)
