/**
 * The wire form of a change retention: which changes of which table are kept in which other one. It is stored as a sink whose
 * destination is that table; what it has in common with sinks is checked by their schema. Nothing here does I/O.
 */
import { Type, type Static } from 'typebox'
import { durationMs } from '../../engine/duration.ts'
import { fieldsOf } from '../../engine/json.ts'
import { qualified } from '../../engine/postgres/table-name.ts'
import { Name } from '../../engine/resource-name.ts'
import type { Reason } from '../../engine/schema-reasons.ts'
import { RETENTION_TYPE, storedName, userName } from '../../engine/state/change-retentions.ts'
import { NOUN_OF, type SinkInput } from '../../engine/state/resource-store.ts'
import { ACTIONS, SinkSettings, type Sink } from '../../engine/state/resources.ts'
import type { Health } from '../../engine/status.ts'
import { changeRetention, RetentionDestination } from '../../sinks/change-retention.ts'
import { wrongFilter } from '../../sinks/column-filters.ts'
import { checker, invalid, readOnly, type Form, type ResourceForm } from './form.ts'
import { HealthOut, newSettings } from './sink-form.ts'

const { destination_database, destination_table_schema, destination_table_name, filters, retention } = RetentionDestination.properties
const { status, actions } = SinkSettings.properties
const place = (description: string) => Type.String({ minLength: 1, maxLength: 63, description })

const FIELDS = {
  name: Name,
  source_database: place('name of the database that has the table'),
  source_table_schema: place('schema of the table whose changes are kept'),
  source_table_name: place('name of that table'),
  destination_database,
  destination_table_schema,
  destination_table_name,
} as const
const OPTIONAL = { status, actions, filters, retention } as const

/** The schema of a change retention in a request, and in an entry of `change_retentions`. */
export const RetentionIn = Type.Object(
  { ...FIELDS, ...Object.fromEntries(Object.entries(OPTIONAL).map(([name, field]) => [name, Type.Optional(field)])), ...readOnly() },
  { additionalProperties: false, title: 'ChangeRetentionInput' },
)
/** The schema of an update of a change retention: none of its fields is required. */
export const RetentionPatch = Type.Partial(RetentionIn, { title: 'ChangeRetentionChange' })
/** The schema of a change retention in an answer. */
export const RetentionOut = Type.Object(
  {
    id: Type.String({ format: 'uuid' }),
    ...FIELDS,
    ...OPTIONAL,
    retention: Type.Union([Type.Integer(), Type.String(), Type.Null()]),
    health: HealthOut,
  },
  { title: 'ChangeRetention' },
)

const check = checker(RetentionIn)
type RetentionIn = Static<typeof RetentionIn>

/** How exports of Sequin spell operators. */
const OPERATORS: Readonly<Record<string, string>> = {
  '==': '=',
  is_null: 'is null',
  not_null: 'is not null',
  is_not_null: 'is not null',
  not_in: 'not in',
}

/** Brings other spellings of operators to ours. */
function respelt(form: Form): Form {
  const { filters: given } = form
  if (!Array.isArray(given)) return form
  const inOurs = given.map((filter: unknown) => {
    const { operator } = fieldsOf(filter)
    const ours = typeof operator === 'string' && Object.hasOwn(OPERATORS, operator) ? OPERATORS[operator] : undefined
    return ours === undefined ? filter : { ...fieldsOf(filter), operator: ours }
  })
  return { ...form, filters: inOurs }
}

/** Reads a whole change retention. @throws EngineError VALIDATION_FAILED */
export function newRetention(given: Form): SinkInput {
  const form = respelt(given)
  check(form)
  const {
    name,
    source_database: database,
    source_table_schema: schema,
    source_table_name: table,
    filters: columnFilters = [],
    actions: taken = [...ACTIONS],
    status: wanted = 'active',
    retention: kept = null,
    ...to
  } = form as RetentionIn & Partial<Pick<RetentionDestination, 'filters' | 'retention'> & Pick<Sink, 'actions' | 'status'>> // as checked
  const reasons: Reason[] = columnFilters.flatMap((filter, i) => {
    const wrong = wrongFilter(filter)
    return wrong === undefined ? [] : [[`filters.${i}`, wrong]]
  })
  if (kept !== null && !(durationMs(kept) >= 1000)) reasons.push(['retention', 'must be at least 1s'])
  const isItself = to.destination_table_schema === schema && to.destination_table_name === table && to.destination_database === database
  if (isItself) reasons.push(['destination_table_name', 'is the table whose changes are kept'])
  if (schema.includes('.')) reasons.push(['source_table_schema', 'can’t have a dot'])
  if (reasons.length > 0) throw invalid(reasons)
  const settings = newSettings({ name, database, status: wanted, source: { include_tables: [`${schema}.${table}`] }, actions: taken })
  return {
    ...settings,
    name: storedName(name),
    batch_size: changeRetention.batchSize ?? 1,
    partitions: 1, // one order for all of it
    destination: {
      type: RETENTION_TYPE,
      destination_database: to.destination_database,
      destination_table_schema: to.destination_table_schema,
      destination_table_name: to.destination_table_name,
      filters: columnFilters,
      ...(kept !== null && { retention: kept }),
    },
  }
}

/** Reads what an update changes of a change retention. @throws EngineError VALIDATION_FAILED */
export function retentionChanges(stored: Sink, form: Form): SinkInput {
  const { id: _id, ...now } = fieldsOfRetention(stored)
  return newRetention({ ...now, ...form })
}

/** Shows a change retention. */
export const retentionOut = (stored: Sink, health: Health): Record<string, unknown> => ({
  ...fieldsOfRetention(stored),
  health: {
    ...health,
    name: 'Change retention health',
    checks: health.checks.map((one) => ({ ...one, name: CHECK_NAMES[one.name] ?? one.name })),
  },
})

/** The names that a change retention has for checks of its sink. */
const CHECK_NAMES: Readonly<Record<string, string>> = { 'Message delivery': 'Destination insert' }

function fieldsOfRetention({ id, name, database, source, status: now, actions: taken, destination }: Sink) {
  const { type: _type, filters: given = [], retention: kept = null, ...to } = destination
  const [table = ''] = source.include_tables ?? []
  const full = qualified(table)
  return {
    id,
    name: userName(name),
    status: now,
    source_database: database,
    source_table_schema: full.slice(0, full.indexOf('.')),
    source_table_name: full.slice(full.indexOf('.') + 1),
    ...to,
    actions: taken,
    filters: given,
    retention: kept,
  }
}

/** Describes how change retentions stand in a file. */
export const CHANGE_RETENTION: ResourceForm<'change_retention', Readonly<{ input: SinkInput }>> = {
  section: 'change_retentions',
  noun: NOUN_OF.change_retention,
  schema: RetentionIn,
  read: (entry) => ({ input: newRetention(entry) }),
  entry: (stored) => {
    const { id: _id, status: now, actions: taken, filters: given, retention: kept, ...rest } = fieldsOfRetention(stored)
    return {
      ...rest,
      ...(now !== 'active' && { status: now }),
      ...(taken.length < ACTIONS.length && { actions: taken }),
      ...(Array.isArray(given) && given.length > 0 && { filters: given }),
      ...(kept !== null && { retention: kept }),
    }
  },
}
