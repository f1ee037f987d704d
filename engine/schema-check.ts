/**
 * Checks of values against a schema of our own. One is compiled when it is asked first, without a check of the schema
 * itself, which takes five times as long, and without making the code shorter, a quarter more: most are asked once, at a start.
 */
import { Ajv, type ErrorObject, type Options, type ValidateFunction } from 'ajv'
import type { Static, TSchema } from 'typebox'

/** Says whether a value has the shape of a schema. */
export type SchemaCheck<T = unknown> = ((value: unknown) => value is T) &
  Readonly<{ /** of the last value; they hold it, and are for `reasonsOf` alone */ errors: ErrorObject[] | null | undefined }>

/** Compiles a schema into a check. @param options beside `allErrors` */
export function schemaCheck<S extends TSchema>(schema: S, options: Options = {}): SchemaCheck<Static<S>> {
  let compiled: ValidateFunction | undefined
  const check = (value: unknown): boolean =>
    (compiled ??= new Ajv({
      allErrors: true,
      validateSchema: false,
      meta: false,
      verbose: true,
      code: { optimize: false },
      ...options,
    }).compile(schema))(value)
  return Object.defineProperty(check, 'errors', { get: () => compiled?.errors }) as SchemaCheck<Static<S>> // what fits the schema is of its type
}
