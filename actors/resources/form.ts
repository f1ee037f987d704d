/**
 * What a type of resource is in requests, in the configuration file and in answers; what a form may leave out, and what it is refused
 * for. Nothing here does I/O.
 */
import { Type, type Static, type TObject, type TSchema } from 'typebox'
import { EngineError } from '../../engine/errors.ts'
import { fieldsOf, isObject } from '../../engine/json.ts'
import { schemaCheck } from '../../engine/schema-check.ts'
import { reasonsOf, type Reason } from '../../engine/schema-reasons.ts'
import type { ResourceType, StoredOf } from '../../engine/state/resource-store.ts'

/** Fields by name, as JSON or YAML brings them. */
export type Form = Readonly<Record<string, unknown>>

/**
 * Holds what an entry of a file may refer to. @property known what is stored under its name: secrets may be given as they are
 * shown, and stay @property mayMove a stored password may be sent to another server without being given again @property textOf gives
 * the text of a file beside the configuration; absent: none can be named
 */
type EntryContext<S> = Readonly<{ known: S | undefined; mayMove: boolean; textOf: ((path: string) => string) | undefined }>

/** Describes how a resource stands in a configuration file. */
export type FileSection<S, I> = Readonly<{
  section: string
  /** names one of its entries in messages */
  noun: string
  /** what an entry may have, before it is looked at */
  schema: TObject
  /** Fields that files of Sequin have and that have no effect there either: each with its path, and why. */
  ignored?: readonly Readonly<{ path: readonly [string, ...string[]]; why: string }>[]
  /** fields that are known, and not supported yet */
  notYet?: readonly string[]
  /** Brings former spellings of an entry to its form. */
  flat?: (entry: unknown) => unknown
  /** Gives what an entry says. @throws EngineError VALIDATION_FAILED: a reason for each field that is wrong */
  read: (entry: Form, context: EntryContext<S>) => I
}>

/** Holds defaults that differ between installations. @property partitions of a new sink */
export type ExportDefaults = Readonly<{ partitions: number }>

/** Describes a section of a file whose resources are exported as they are read. */
export type ResourceForm<T extends ResourceType, I> = FileSection<StoredOf<T>, I> &
  Readonly<{
    /** Gives the entry of a resource: nothing that has its default. @param secret shows one */
    entry: (stored: StoredOf<T>, secret: (text: string) => string, defaults: ExportDefaults) => Form
  }>

/**
 * What an answer or an export has beside what is set, here or where a file comes from: taken in and left out, so that it can be
 * sent back.
 */
const READ_ONLY = ['id', 'account_id', 'inserted_at', 'updated_at', 'health'] as const

/** Gives the schema of fields that a form may have and that have no effect. @param others that only this kind of resource has */
export const readOnly = (...others: readonly string[]) =>
  Object.fromEntries(
    [...READ_ONLY, ...others].map((name) => [name, Type.Optional(Type.Unknown({ description: 'of answers; without effect' }))]),
  )

/**
 * Leaves out the fields of a form that are null, for null is the same as absent, but for those whose schema gives null a meaning, such
 * as `max_retry_count`. What the schema doesn't know stays, to be refused.
 */
export function withoutNulls(schema: unknown, form: unknown): unknown {
  if (Array.isArray(form)) {
    const items = fieldsOf(schema)['items']
    return hasFields(items) ? form.map((item) => withoutNulls(items, item)) : form
  }
  if (!isObject(form) || !hasFields(schema)) return form
  const { properties } = schema
  return Object.fromEntries(
    Object.entries(form).flatMap(([name, value]) => {
      const field = Object.hasOwn(properties, name) ? properties[name] : undefined
      if (field === undefined) return [[name, value]]
      return value === null && !takesNull(field) ? [] : [[name, withoutNulls(field, value)]]
    }),
  )
}

const hasFields = (schema: unknown): schema is Readonly<{ properties: Readonly<Record<string, unknown>> }> =>
  isObject(schema) && isObject(schema['properties'])

function takesNull(schema: unknown): boolean {
  const { anyOf, type } = fieldsOf(schema)
  return Array.isArray(anyOf) ? anyOf.some(takesNull) : type === undefined || type === 'null'
}

const MAX_SUMMARY = 500

/** Makes the error VALIDATION_FAILED, which tells all reasons at once; its context has those of each field. */
export function invalid(reasons: readonly Reason[]): EngineError {
  const byField: Record<string, string> = Object.create(null)
  for (const [field, reason] of reasons) byField[field] = byField[field] === undefined ? reason : `${byField[field]} and ${reason}`
  const told = reasons.map((words) => words.join(' ')).join('; ')
  return new EngineError('VALIDATION_FAILED', `Validation failed: ${told.slice(0, MAX_SUMMARY)}.`, byField)
}

/** Makes a function that checks a form by a schema. It throws VALIDATION_FAILED with a reason for each wrong field. */
export function checker<S extends TSchema>(schema: S): (form: unknown) => Static<S> {
  const check = schemaCheck(schema)
  return (form) => {
    if (check(form)) return form
    throw invalid(reasonsOf(check.errors ?? []))
  }
}
