/** Functions in Elixir, as the original has them: told from ours, and kept in a form that says so until they are ported. */
import { FUNCTION_FIELDS, sandboxKindOf, type FunctionKind } from '../engine/state/function-kinds.ts'
import type { FunctionInput } from '../engine/state/functions.ts'
import type { SinkSettings } from '../engine/state/resources.ts'
import type { Written } from './compile.ts'

const LIKE_ELIXIR = 'like Elixir; functions are written in JavaScript or TypeScript: docs/functions.md shows how one is ported'
/** What is said of a function in Elixir. */
export const ELIXIR = `looks ${LIKE_ELIXIR}`
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
const isUnported = ({ compiled }: Pick<FunctionInput, 'compiled'>): boolean => compiled.startsWith(MARK)

/** Says which functions of a sink are in Elixir, after "its" or "the"; undefined: none. @param functions those of its account */
export function unportedWords(
  sink: Pick<SinkSettings, FunctionKind>,
  functions: readonly Pick<FunctionInput, 'name' | 'compiled'>[],
): string | undefined {
  const held = FUNCTION_FIELDS.flatMap((field) => functions.filter((fn) => fn.name === sink[field] && isUnported(fn)))
  if (held.length === 0) return undefined
  const names = held.map(({ name }) => `"${name}"`).join(', ')
  return held.length === 1 ? `function ${names} ${ELIXIR}` : `functions ${names} look ${LIKE_ELIXIR}`
}
