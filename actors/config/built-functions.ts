/** Functions of a configuration document, built: what is wrong with one is told at its place in the document, and in its file. */
import { EngineError } from '../../engine/errors.ts'
import type { FunctionInput } from '../../engine/state/functions.ts'
import { compileFunction, mistakeIn, type Written } from '../../transforms/compile.ts'
import { isElixir } from '../../transforms/elixir.ts'
import type { AccountPool } from '../../transforms/sandbox/pool.ts'
import type { FunctionEntry } from '../resources/function-form.ts'
import type { ConfigReader, FilePlace, Problem } from './config-reader.ts'

/**
 * Describes a function of a document, and where its code, or the name of its file, stands there.
 * @property line of its entry @property exact `at` is where the code begins, and each of its lines stands there as it is
 */
export type ConfiguredFunction = FunctionEntry & Readonly<{ line: number; at: FilePlace; exact: boolean }>

/** Says where the text of a function stands; older files have it below another field. */
export function placeOfFunction(reader: ConfigReader, entry: readonly [string, number], { type, file }: FunctionEntry) {
  const field = file !== undefined ? 'file' : type === 'path' ? 'path' : 'code'
  const paths = [[field], ['function', field], ['transform', field]].map((below) => [...entry, ...below])
  const start = file === undefined ? paths.map((path) => reader.textStart(...path)).find((place) => place !== undefined) : undefined
  const path = paths.find((one) => reader.document.getIn(one) !== undefined) ?? entry
  return { at: start ?? reader.place(reader.at(...path)), exact: start !== undefined }
}

/** Gives a function as a user writes it, without its place. */
export const writtenOf = ({ name, type, description, sinkType, code }: ConfiguredFunction): Written => ({
  name,
  type,
  description,
  sinkType,
  code,
})

/** @returns the function, or why it can't be built. @throws EngineError SANDBOX_UNAVAILABLE, STOPPING */
export async function builtFunction(
  fn: ConfiguredFunction,
  file: string,
  pool: Pick<AccountPool, 'check'>,
): Promise<FunctionInput | Problem> {
  const { at, exact, file: ownFile } = fn
  try {
    return await compileFunction(writtenOf(fn), pool)
  } catch (error) {
    if (!(error instanceof EngineError) || error.code !== 'VALIDATION_FAILED') throw error
    const because = error.code
    const { message, line, column = 1, file: mapped } = mistakeIn(error) ?? { message: error.message }
    const named = `function "${fn.name}": `
    if (line === undefined) return { file, ...at, because, reason: `${named}${ownFile === undefined ? '' : `${ownFile}: `}${message}` }
    if (ownFile !== undefined) return { file, ...at, because, reason: `${named}${mapped ?? ownFile}:${line}:${column}: ${message}` }
    if (!exact) return { file, ...at, because, reason: `${named}${error.message}` }
    return { file, line: at.line + line - 1, column: at.column + column - 1, because, reason: `${named}${message}` }
  }
}

/** Builds the functions of a document that is refused anyway, so that what is wrong with them is told too. */
export async function functionProblems(
  functions: readonly ConfiguredFunction[],
  file: string,
  pool: Pick<AccountPool, 'check'>,
): Promise<readonly Problem[]> {
  const problems: Problem[] = []
  for (const fn of functions) {
    if (isElixir(fn)) continue // it is taken, and pauses its sinks
    const built = await builtFunction(fn, file, pool)
    if ('reason' in built) problems.push(built)
  }
  return problems
}
