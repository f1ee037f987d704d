/**
 * Checks of values against a schema. One is compiled when it is asked first: a third of the CPU time of a start went into
 * checks, most of which a process never comes to.
 */
import { Ajv, type ErrorObject, type Options, type Schema, type ValidateFunction } from 'ajv'

export type SchemaCheck = ((value: unknown) => boolean) & Readonly<{ /** of the last value */ errors: ErrorObject[] | null | undefined }>

/** @param options beside `allErrors` */
export function schemaCheck(schema: Schema, options: Options = {}): SchemaCheck {
  let compiled: ValidateFunction | undefined
  const check = (value: unknown): boolean => (compiled ??= new Ajv({ allErrors: true, ...options }).compile(schema))(value)
  return Object.defineProperty(check, 'errors', { get: () => compiled?.errors }) as SchemaCheck
}
