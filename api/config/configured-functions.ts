/** Functions of a configuration document, read and built: what is wrong with one is told at its place in the document, and in its file. */
import { Type, type Static } from 'typebox'
import { schemaCheck } from '../../engine/schema-check.ts'
import { EngineError } from '../../engine/errors.ts'
import { FUNCTION_TYPES, type FunctionInput } from '../../engine/state/functions.ts'
import { Name } from '../../engine/resource-name.ts'
import { compileFunction, mistakeIn, type Written } from '../../transforms/compile.ts'
import { looksLikeElixir } from '../../transforms/elixir.ts'
import type { AccountPool } from '../../transforms/sandbox/pool.ts'
import { checked, fits } from './config-forms.ts'
import type { ConfigReader, FilePlace, Problem } from './config-reader.ts'
import { readOnly, withoutNulls } from '../http/form.ts'
import { flatFunction, sinkTypeOf } from '../functions/function-form.ts'

const text = (description: string) => Type.String({ minLength: 1, description })
export const FunctionForm = Type.Object(
  {
    name: Type.String({ ...Name, not: { enum: ['none', 'null', 'nil'] } }),
    type: Type.Union(FUNCTION_TYPES.map((type) => Type.Literal(type))),
    description: Type.Optional(Type.String()),
    code: Type.Optional(text('the function, JavaScript or TypeScript')),
    file: Type.Optional(text('file that holds it, beside this one')),
    path: Type.Optional(text('of type path: such as record.id')),
    sink_type: Type.Optional(text('of type routing: type of the sinks that it routes to')),
    ...readOnly('used_by', 'warnings'),
  },
  { additionalProperties: false },
)

const checkFunction = schemaCheck(FunctionForm)

/**
 * @property line of its entry
 * @property at where the code, or the name of its file, stands in the document
 * @property exact `at` is where the code begins, and each of its lines stands there as it is
 * @property file that the code stands in, as the document names it
 */
export type ConfiguredFunction = Written & Readonly<{ line: number; at: FilePlace; exact: boolean; file?: string | undefined }>

/** @returns undefined: something is wrong with it, which is told */
export function configuredFunction(
  reader: ConfigReader,
  given: unknown,
  [section, i]: readonly [section: string, i: number],
  read: ((path: string) => string) | undefined,
): ConfiguredFunction | undefined {
  const form = withoutNulls(FunctionForm, flatFunction(given))
  if (!fits(reader, checkFunction, form, [section, i])) return undefined
  const { name, type, description = null, code, file, path, sink_type } = form as Static<typeof FunctionForm>
  const wrong = (field: string, reason: string) => reader.wrong(reader.at(section, i, field), `${field} ${reason}`)
  const line = reader.line(reader.at(section, i))
  const sinkType = checked(reader, [section, i], () => sinkTypeOf(sink_type))
  if (sinkType === undefined) return undefined
  if (type === 'routing' && sinkType === null) return wrong('sink_type', 'is missing: the type of the sinks that it routes to')
  if (type !== 'routing' && sink_type !== undefined) return wrong('sink_type', 'is of functions of type routing')
  if (type === 'path') {
    if (path === undefined) return wrong('path', 'is missing: path: record.id')
    return { name, type, description, code: path, line, ...placeOfText(reader, [section, i], 'path') }
  }
  if (path !== undefined) return wrong('path', 'is of functions of type path')
  if ((code === undefined) === (file === undefined)) return wrong('code', 'or file must be given, and one of them only')
  if (code !== undefined) return { name, type, description, sinkType, code, line, ...placeOfText(reader, [section, i], 'code') }
  if (!read) return wrong('file', 'can only be read beside a file: give code')
  try {
    return {
      name,
      type,
      description,
      sinkType,
      code: read(file as string),
      line,
      file,
      at: reader.place(reader.at(section, i, 'file')),
      exact: false,
    }
  } catch (error) {
    return wrong('file', `can not be read: ${error instanceof Error ? error.message : String(error)}`)
  }
}

/** Older files have it below another field. */
function placeOfText(reader: ConfigReader, entry: readonly [string, number], field: string): Pick<ConfiguredFunction, 'at' | 'exact'> {
  const paths = [[field], ['function', field], ['transform', field]].map((below) => [...entry, ...below])
  const start = paths.map((path) => reader.textStart(...path)).find((place) => place !== undefined)
  const path = paths.find((one) => reader.document.getIn(one) !== undefined) ?? entry
  return { at: start ?? reader.place(reader.at(...path)), exact: start !== undefined }
}

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
    if (line === undefined) return { file, ...at, because, reason: `${ownFile === undefined ? '' : `${ownFile}: `}${message}` }
    if (ownFile !== undefined) return { file, ...at, because, reason: `${mapped ?? ownFile}:${line}:${column}: ${message}` }
    if (!exact) return { file, ...at, because, reason: error.message }
    return { file, line: at.line + line - 1, column: at.column + column - 1, because, reason: `function "${fn.name}": ${message}` }
  }
}

/** What is wrong with functions of a document that is refused anyway, so that all of it is told at once. */
export async function functionProblems(
  functions: readonly ConfiguredFunction[],
  file: string,
  pool: Pick<AccountPool, 'check'>,
): Promise<readonly Problem[]> {
  const problems: Problem[] = []
  for (const fn of functions) {
    if (fn.type !== 'path' && fn.type !== 'enrichment' && looksLikeElixir(fn.code)) continue // it is taken, and pauses its sinks
    const built = await builtFunction(fn, file, pool)
    if ('reason' in built) problems.push(built)
  }
  return problems
}
