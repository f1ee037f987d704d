/** The forms of all types of resources, in the order of a file. */
import type { EndpointInput, ResourceType, SinkInput } from '../../engine/state/resource-store.ts'
import { DATABASE, type DatabaseEntry } from './database-form.ts'
import { ENDPOINT } from './endpoint-form.ts'
import { FUNCTION, type FunctionEntry } from './function-form.ts'
import type { ResourceForm } from './form.ts'
import { CHANGE_RETENTION } from './retention-form.ts'
import { SINK } from './sink-form.ts'

/** The fields of an entry of a configuration file, by type. */
type Entries = {
  database: DatabaseEntry
  change_retention: Readonly<{ input: SinkInput }>
  http_endpoint: Readonly<{ input: EndpointInput }>
  function: FunctionEntry
  sink: Readonly<{ input: SinkInput }>
}

/** Describes how each type of resource stands in a file. */
export const RESOURCE_FORMS: { readonly [T in ResourceType]: ResourceForm<T, Entries[T]> } = {
  database: DATABASE,
  change_retention: CHANGE_RETENTION,
  http_endpoint: ENDPOINT,
  function: FUNCTION,
  sink: SINK,
}
