/**
 * What an account has, as a configuration file says it: nothing that has its default, and no account, users or tokens. What
 * is exported and applied again changes nothing. Nothing here does I/O.
 */
import { isDeepStrictEqual } from 'node:util'
import type { TSchema } from 'typebox'
import { stringify } from 'yaml'
import type { HttpEndpoint } from '../../engine/state/destinations.ts'
import type { StoredFunction } from '../../engine/state/functions.ts'
import { SinkSettings, type Database, type Sink } from '../../engine/state/resources.ts'
import type { Resources } from '../../engine/state/resource-store.ts'
import { qualified } from '../../engine/postgres/table-name.ts'
import { withoutVariables } from './config-reader.ts'
import { DESTINATIONS } from '../../sinks/destination-types.ts'
import { destinationOut } from '../sinks/destination-form.ts'
import { obfuscated, shownUrl } from '../sinks/secret-form.ts'

type Form = Readonly<Record<string, unknown>>
export type ResourceType = 'database' | 'http_endpoint' | 'function' | 'sink'
/** @property whole its entry in a file @property shown the same, of its secrets only enough to know them */
export type ExportedResource = Readonly<{ type: ResourceType; id: string; name: string; whole: Form; shown: Form }>

/** In the order of the file. */
const SECTIONS = { database: 'databases', http_endpoint: 'http_endpoints', function: 'functions', sink: 'sinks' } as const

export function exportedResources(
  { databases, endpoints, functions, sinks }: Pick<Resources, 'databases' | 'endpoints' | 'functions' | 'sinks'>,
  ofAccount: string,
): readonly ExportedResource[] {
  const exported = <T extends Readonly<{ id: string; accountId: string; name: string }>>(
    type: ResourceType,
    those: readonly T[],
    formOf: (one: T, secret: (text: string) => string) => Form,
  ): ExportedResource[] =>
    those
      .filter(({ accountId }) => accountId === ofAccount)
      .map((one) => ({ type, id: one.id, name: one.name, whole: formOf(one, (text) => text), shown: formOf(one, obfuscated) }))
  return [
    ...exported('database', databases, databaseForm),
    ...exported('http_endpoint', endpoints, endpointForm),
    ...exported('function', functions, functionForm),
    ...exported('sink', sinks, sinkForm),
  ]
}

/** @returns YAML */
export function exportYaml(resources: readonly ExportedResource[], { showSensitive }: Readonly<{ showSensitive: boolean }>): string {
  const sections = Object.entries(SECTIONS).map(([type, section]) => [
    section,
    resources.filter((one) => one.type === type).map(({ whole, shown }) => escaped(showSensitive ? whole : shown)),
  ])
  return yamlOf(Object.fromEntries(sections.filter(([, list]) => list?.length !== 0)))
}

/** Texts of many lines as they are. */
export const yamlOf = (value: unknown): string => stringify(value, { lineWidth: 0, blockQuote: 'literal', aliasDuplicateObjects: false })

function databaseForm({ name, connection, poolSize, annotations, slot }: Database, secret: (text: string) => string): Form {
  const { hostname, port, database, username, password, ssl, caCert } = connection
  return {
    name,
    hostname,
    port,
    database,
    username,
    password: secret(password),
    ssl,
    ...(caCert !== undefined && { ca_cert: caCert }),
    ...(poolSize !== 10 && { pool_size: poolSize }),
    ...(Object.keys(annotations).length > 0 && { annotations }),
    slot: { name: slot.name },
    publication: { name: slot.publication },
  }
}

function endpointForm({ name, kind, url, headers, encryptedHeaders }: HttpEndpoint, secret: (text: string) => string): Form {
  const encrypted = Object.entries(encryptedHeaders).map(([key, value]) => [key, secret(value)])
  return {
    name,
    ...(kind === 'local' ? { local: true, ...(url !== '' && { path: url }) } : { url: shownUrl(url, secret) }),
    ...(Object.keys(headers).length > 0 && { headers }),
    ...(encrypted.length > 0 && { encrypted_headers: Object.fromEntries(encrypted) }),
  }
}

function functionForm({ name, type, description, sinkType, code }: StoredFunction): Form {
  return {
    name,
    type,
    ...(description !== null && { description }),
    ...(sinkType !== null && { sink_type: sinkType }),
    ...(type === 'path' ? { path: code } : { code }),
  }
}

function sinkForm(sink: Sink, secret: (text: string) => string): Form {
  const { id: _id, accountId: _account, databaseId: _database, name, database, status, source, tables, destination, ...rest } = sink
  const named = (names: readonly string[]) => names.map((table) => qualified(table))
  const { include_schemas: schemas, exclude_schemas: otherSchemas, include_tables: included, exclude_tables: excluded } = source
  const changed = Object.entries(rest).filter(
    ([field, value]) => value !== undefined && (field === 'partitions' || !isDefault(SinkSettings.properties, field, value)),
  )
  return {
    name,
    database,
    ...(status !== 'active' && { status }),
    source: {
      ...(schemas && { include_schemas: schemas }),
      ...(otherSchemas && { exclude_schemas: otherSchemas }),
      ...(included && { include_tables: named(included) }),
      ...(excluded && { exclude_tables: named(excluded) }),
    },
    ...(tables.length > 0 && {
      tables: tables.map((table) => ({
        name: qualified(table.name),
        ...(table.group_column_names && { group_column_names: table.group_column_names }),
      })),
    }),
    destination: destinationForm(destination, secret),
    ...Object.fromEntries(changed),
  }
}

function destinationForm(destination: Sink['destination'], secret: (text: string) => string): Form {
  const { properties = {} } = DESTINATIONS.get(destination.type) ?? {}
  const form = destinationOut(destination, secret)
  return Object.fromEntries(Object.entries(form).filter(([field, value]) => field === 'type' || !isDefault(properties, field, value)))
}

/** What is left out means null where there is no default. */
const isDefault = (properties: Readonly<Record<string, TSchema>>, field: string, value: unknown): boolean =>
  isDeepStrictEqual(value, (properties[field] as { default?: unknown } | undefined)?.default ?? null)

/** Where variables are replaced, every text stands for itself; the code of functions isn't looked at there. */
function escaped(value: unknown): unknown {
  if (typeof value === 'string') return withoutVariables(value)
  if (Array.isArray(value)) return value.map(escaped)
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, key === 'code' ? part : escaped(part)]))
}
