/**
 * Builds JSON schemas whose values have a type: the builders of TypeBox that are used here, with its types. Only those are taken
 * from the library, for to load its 370 files took a fifth of the CPU time of a start. Nothing here does I/O.
 */
import type { Type as TypeBox } from 'typebox'

export type { Static, TObject, TSchema, TString } from 'typebox'

type Builders = Pick<
  typeof TypeBox,
  'Array' | 'Boolean' | 'Integer' | 'Literal' | 'Null' | 'Object' | 'Optional' | 'Partial' | 'Record' | 'String' | 'Union' | 'Unknown'
>
type Schema = Readonly<Record<string, unknown>>
type Properties = Readonly<Record<string, Schema>>

/** A property without it is required. A schema that is made of another's parts has none, as in TypeBox. */
const OPTIONAL = Symbol('optional')

const optional = (schema: Schema): Schema => Object.defineProperty({ ...schema }, OPTIONAL, { value: true })

function object(properties: Properties, options?: Schema): Schema {
  const required = Object.keys(properties).filter((name) => !(OPTIONAL in (properties[name] as Schema)))
  return { type: 'object', ...(required.length > 0 && { required }), properties, ...options }
}

const builders = {
  Array: (items: Schema, options?: Schema) => ({ type: 'array', items, ...options }),
  Boolean: (options?: Schema) => ({ type: 'boolean', ...options }),
  Integer: (options?: Schema) => ({ type: 'integer', ...options }),
  Literal: (value: string | number | boolean, options?: Schema) => ({ type: typeof value, const: value, ...options }),
  Null: (options?: Schema) => ({ type: 'null', ...options }),
  Object: object,
  Optional: optional,
  Partial: ({ properties }: { properties: Properties }, options?: Schema) => ({
    ...object(Object.fromEntries(Object.entries(properties).map(([name, schema]) => [name, optional(schema)]))),
    ...options,
  }),
  Record: (_anyText: Schema, value: Schema, options?: Schema) => ({ type: 'object', patternProperties: { '^.*$': value }, ...options }),
  String: (options?: Schema) => ({ type: 'string', ...options }),
  Union: (anyOf: readonly Schema[], options?: Schema) => ({ anyOf, ...options }),
  Unknown: (options?: Schema) => ({ ...options }),
}

export const Type = builders as unknown as Builders // the library's types say more than functions of schemas can
