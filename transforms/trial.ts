/** Runs a function on messages that somebody has written, apart from what is at work, and tells all that came of it. */
import { EngineError } from '../engine/errors.ts'
import type { FunctionInput } from '../engine/state/functions.ts'
import { parseExact } from './exact-json.ts'
import { compileFunction, type Written } from './compile.ts'
import type { FunctionFailure } from './sandbox/batch-outcome.ts'
import type { RouteFields } from './routes.ts'
import type { AccountPool } from './sandbox/pool.ts'
import { STATE } from './sandbox/wire.ts'

export type TrialMessage = Readonly<{ record: unknown; changes: unknown; action: string; metadata: unknown }>
export type TrialResult = Readonly<{
  /** as the function was given it */
  input: TrialMessage
  /** JSON; of a filter true or false */
  output?: unknown
  /** of an enrichment: what its query was given */
  parameters?: readonly (readonly string[])[]
  /** of a routing function: its result with all that it leaves out */
  routing?: RouteFields
  error?: FunctionFailure
  timeUs: number
  logs: readonly string[]
}>

/** What a routing function's result comes to; the reason: it can't be used. */
export type RouteTrial = (
  said: RouteFields,
  message: Readonly<{ action: string; database: string; schema: string; table: string }>,
) => Readonly<{ routing: RouteFields; reason?: undefined }> | Readonly<{ routing?: undefined; reason: string }>

const NAMED = { id: '00000000-0000-4000-8000-000000000000', name: 'example', annotations: {} }
const TAIL = { database_name: 'example', consumer: NAMED, database: { ...NAMED, database: 'example', hostname: 'localhost' } }
const ACTIONS: readonly unknown[] = ['insert', 'update', 'delete', 'read']
// prettier-ignore
export const EXAMPLE: TrialMessage = {
  record: {
    id: 1,
    tenant_id: 3, name: 'Example', title: 'Example', email: 'ada@example.com', phone: '+1 555 0100', status: 'active',
    price: '19.90', quantity: 2, tags: ['new'], details: {}, deleted_at: null,
    inserted_at: '2025-02-03T04:05:06.000000Z', updated_at: '2025-02-03T04:05:06.000000Z',
  },
  changes: { name: 'Before' },
  action: 'update',
  metadata: {
    table_schema: 'public',
    table_name: 'example',
    commit_timestamp: '2025-02-03T04:05:06.789012Z',
    commit_lsn: 26_741_272,
    commit_idx: 0,
    idempotency_key: 'MjY3NDEyNzI6MA==',
    record_pks: ['1'],
    transaction_annotations: null,
  },
}

/** The insert of a row: what nobody knows of it yet, its commit, is the example's. @param pks Postgres' texts */
export const trialInsert = (
  table: Readonly<{ schema: string; name: string }>,
  pks: readonly (string | null)[],
  record: unknown,
): TrialMessage => ({
  record,
  changes: null,
  action: 'insert',
  metadata: { ...(EXAMPLE.metadata as object), table_schema: table.schema, table_name: table.name, record_pks: pks },
})

/** A message as somebody has written it, with what is left out. @throws EngineError VALIDATION_FAILED: an action that no message has */
export function trialMessage(given: unknown): TrialMessage {
  const { record = {}, changes = null, action = 'insert', metadata = EXAMPLE.metadata } = given as Partial<TrialMessage>
  if (ACTIONS.includes(action)) return { record, changes, action, metadata }
  const reason = `have an action that is none of ${ACTIONS.join(', ')}: ${JSON.stringify(action).slice(0, 100)}`
  throw new EngineError('VALIDATION_FAILED', `messages ${reason}`, { messages: reason })
}

let trials = 0

/**
 * @param routed for a routing function
 * @throws EngineError VALIDATION_FAILED: it can't be built; SANDBOX_UNAVAILABLE, STOPPING
 */
export async function tryFunction(
  written: Written,
  messages: readonly TrialMessage[],
  pool: AccountPool,
  routed?: RouteTrial,
): Promise<TrialResult[]> {
  return tryCompiled(await compileFunction(written, pool), messages, pool, routed)
}

/** The same of one that is built. */
export async function tryCompiled(
  { name, type, compiled: code }: Pick<FunctionInput, 'name' | 'type' | 'compiled'>,
  messages: readonly TrialMessage[],
  pool: Pick<AccountPool, 'test' | 'forget'>,
  routed?: RouteTrial,
): Promise<TrialResult[]> {
  if (type === 'enrichment')
    throw new EngineError('VALIDATION_FAILED', 'database is missing', { database: 'is missing: where the query runs' })
  const kind = type === 'path' ? 'transform' : type
  const key = `trial ${++trials}`
  const results: TrialResult[] = []
  try {
    for (const { metadata, ...rest } of messages) {
      const { database_name, consumer, database, ...own } = { ...TAIL, enrichment: null, ...(metadata as object | null) }
      const input = { ...rest, metadata: { ...own, database_name, consumer, database } }
      const lines = Buffer.from(`${JSON.stringify({ ...rest, metadata: own })}\u001e`)
      const tail = JSON.stringify({ database_name, consumer, database })
      const outcome = await pool.test([{ key, name, kind, code }], { count: 1, lines, lineEnds: Uint32Array.of(lines.length), tail })
      const made = () => (kind === 'filter' ? outcome.states[0] === STATE.kept : parseExact(outcome.resultText(0, 0)))
      const thrown = outcome.failures.get(0)
      const output = thrown ? undefined : made()
      const { table_schema: schema, table_name: table } = own as Readonly<Record<string, unknown>>
      const about = { action: input.action, database: String(database_name), schema: String(schema), table: String(table) }
      const { routing, reason } = thrown ? {} : (routed?.(parseExact(outcome.resultText(0, 0)) as RouteFields, about) ?? {})
      const error = thrown ?? (reason === undefined ? undefined : { code: 'FUNCTION_FAILED' as const, name, kind, text: reason })
      results.push({
        input,
        ...(thrown ? {} : { output }),
        ...(routing && { routing }),
        ...(error && { error }),
        timeUs: outcome.tookUs[0] ?? 0,
        logs: outcome.logs.get(0) ?? [],
      })
    }
  } finally {
    pool.forget(key)
  }
  return results
}
