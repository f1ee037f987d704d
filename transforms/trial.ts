/** Runs a function on messages that a user has written, apart from those at work, and tells all that came of it. */
import { EngineError } from '../engine/errors.ts'
import { onlyDecides, sandboxKindOf } from '../engine/state/function-kinds.ts'
import type { FunctionInput } from '../engine/state/functions.ts'
import { EXAMPLE_CHANGE, EXAMPLE_SINK } from '../engine/message-metadata.ts'
import { isObject, parseExact } from '../engine/json.ts'
import { compileFunction, type Written } from './compile.ts'
import type { FunctionFailure } from './sandbox/batch-outcome.ts'
import type { RouteFields } from './routes.ts'
import type { AccountPool } from './sandbox/pool.ts'
import { STATE } from './sandbox/wire.ts'

/** A message as functions are tried on it, parsed. */
export type TrialMessage = Readonly<{ record: unknown; changes: unknown; action: string; metadata: Readonly<Record<string, unknown>> }>
/** What came of a trial on one message. */
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

const ACTIONS = ['insert', 'update', 'delete', 'read']
/** What functions are tried on where nobody has given a message. */
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
  metadata: EXAMPLE_CHANGE,
}
const SINK_KEYS = Object.keys(EXAMPLE_SINK)

/** Makes the insert of a row; its commit is the example's. @param pks Postgres' texts */
export const trialInsert = (
  table: Readonly<{ schema: string; name: string }>,
  pks: readonly (string | null)[],
  record: unknown,
): TrialMessage => ({
  record,
  changes: null,
  action: 'insert',
  metadata: { ...EXAMPLE_CHANGE, table_schema: table.schema, table_name: table.name, record_pks: pks },
})

/** Reads a message that a user has written; what it leaves out is the example's. @throws EngineError VALIDATION_FAILED: an action that no message has */
export function trialMessage(given: unknown): TrialMessage {
  const { record = {}, changes = null, action = 'insert', metadata = EXAMPLE_CHANGE } = isObject(given) ? given : {}
  const known = ACTIONS.find((one) => one === action)
  if (known !== undefined) return { record, changes, action: known, metadata: isObject(metadata) ? metadata : {} }
  const reason = `have an action that is none of ${ACTIONS.join(', ')}: ${JSON.stringify(action).slice(0, 100)}`
  throw new EngineError('VALIDATION_FAILED', `messages ${reason}`, { messages: reason })
}

let trials = 0

/**
 * Builds a function and tries it.
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

/** Runs a function that was built before. @throws EngineError SANDBOX_UNAVAILABLE, STOPPING */
export async function tryCompiled(
  { name, type, compiled: code }: Pick<FunctionInput, 'name' | 'type' | 'compiled'>,
  messages: readonly TrialMessage[],
  pool: Pick<AccountPool, 'test' | 'forget'>,
  routed?: RouteTrial,
): Promise<TrialResult[]> {
  const kind = sandboxKindOf(type)
  if (!kind) throw new EngineError('VALIDATION_FAILED', 'database is missing', { database: 'is missing: where the query runs' })
  const key = `trial ${++trials}`
  const results: TrialResult[] = []
  try {
    for (const { metadata, ...rest } of messages) {
      const all = Object.entries({ ...EXAMPLE_SINK, enrichment: null, ...metadata })
      const own = Object.fromEntries(all.filter(([key]) => !SINK_KEYS.includes(key)))
      const ofSink = Object.fromEntries(all.filter(([key]) => SINK_KEYS.includes(key)))
      const input = { ...rest, metadata: { ...own, ...ofSink } }
      const lines = Buffer.from(`${JSON.stringify({ ...rest, metadata: own })}\u001e`)
      const tail = JSON.stringify(ofSink)
      const outcome = await pool.test([{ key, name, kind, code }], { count: 1, lines, lineEnds: Uint32Array.of(lines.length), tail })
      const made = () => (onlyDecides(kind) ? outcome.states[0] === STATE.kept : parseExact(outcome.resultText(0, 0)))
      const thrown = outcome.failures.get(0)
      const output = thrown ? undefined : made()
      const { database_name: database, table_schema: schema, table_name: table } = input.metadata
      const about = { action: input.action, database: String(database), schema: String(schema), table: String(table) }
      const { routing, reason } = (isObject(output) && routed?.(output, about)) || {}
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
