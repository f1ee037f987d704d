/** Trial runs of functions, apart from those at work: on messages that are given, on the last ones of a table, or on an example. */
import { EngineError, fieldRefused } from '../../engine/errors.ts'
import { parseExact } from '../../engine/json.ts'
import { databaseMetadata } from '../../engine/message-metadata.ts'
import type { Connection } from '../../engine/postgres/client-config.ts'
import { qualified } from '../../engine/postgres/table-name.ts'
import type { FunctionInput, StoredFunction } from '../../engine/state/functions.ts'
import type { ResourceLookup } from '../../engine/state/resource-cache.ts'
import type { Account, Database, Sink } from '../../engine/state/resources.ts'
import type { Written } from '../../transforms/compile.ts'
import { tryEnrichment } from '../../transforms/enrichment-trial.ts'
import type { FunctionPool } from '../../transforms/sandbox/pool.ts'
import { syntheticMessage } from '../../transforms/synthetic-message.ts'
import { EXAMPLE, trialMessage, tryFunction, type TrialMessage, type TrialResult } from '../../transforms/trial.ts'
import { enriched } from './function-rehearsal.ts'
import { routeTrial } from './function-form.ts'

/**
 * Describes the trial of a function. @property given what it is tried with; sink and database by name or id @property user the one
 * sink that has the function, if it is stored @property enrichmentOf finds the query that a sink has
 */
export type Trial = Readonly<{
  account: Account
  written: Written & Partial<Pick<StoredFunction, 'sinkType'>>
  given: Readonly<{
    sink?: string | undefined
    database?: string | undefined
    table?: string | undefined
    messages?: readonly unknown[] | undefined
  }>
  user?: Sink
  enrichmentOf: (sink: Sink) => FunctionInput | undefined
}>
/** @property recent gives the last messages of a table that sinks have read */
type TrialPlace = Readonly<{
  resources: ResourceLookup
  pool: FunctionPool
  recent: (asked: Readonly<{ databaseId: string; table: string }>) => Promise<readonly Readonly<{ text: string }>[]>
}>

/**
 * Runs a function that need not be stored.
 * @returns what came of each message; whether they were made up, because there was none of the table
 * @throws EngineError VALIDATION_FAILED, SANDBOX_UNAVAILABLE, SOURCE_UNREACHABLE, …
 */
export async function runTrial(
  { account, written, given, user, enrichmentOf }: Trial,
  { resources, pool, recent }: TrialPlace,
): Promise<Readonly<{ results: readonly TrialResult[]; isSynthetic: boolean }>> {
  const { sinkType = null } = written
  const { destination } = given.sink === undefined ? {} : (resources.find('sink', account.id, given.sink) ?? {})
  if (given.sink !== undefined && destination?.type !== sinkType)
    throw fieldRefused('sink', destination ? `names a sink of type ${destination.type}` : 'names a sink that does not exist')
  const database = given.database === undefined ? undefined : resources.find('database', account.id, given.database)
  if (given.database !== undefined && !database) throw fieldRefused('database', 'names a database that does not exist')
  if (given.table !== undefined && !database) throw fieldRefused('database', 'is missing: name the database that has the table')
  const ofTable = given.table === undefined || !database ? undefined : await messagesOf(database, given.table, recent)
  const messages = ofTable?.messages ?? given.messages?.map(trialMessage)
  const query = ofTable && user && user.databaseId === database?.id ? enrichmentOf(user) : undefined
  const whole = messages && database ? await enriched(messages, query, database.connection) : messages
  const own = pool.of(account.id)
  const results =
    written.type === 'enrichment' && database
      ? await tryEnrichment(written, whole ?? [EXAMPLE], { connection: database.connection, pool: own })
      : await tryFunction(written, whole ?? [EXAMPLE], own, routeTrial(sinkType, destination))
  return { results, isSynthetic: ofTable?.isSynthetic ?? false }
}

async function messagesOf(
  database: Database,
  table: string,
  recent: TrialPlace['recent'],
): Promise<Readonly<{ messages: readonly TrialMessage[]; isSynthetic: boolean }>> {
  const { id, connection } = database
  const seen = await recent({ databaseId: id, table: qualified(table) })
  const made = seen.length === 0 ? [await madeUp(connection, table)] : seen.map(({ text }) => trialMessage(parseExact(text)))
  const messages = made.map(({ metadata, ...message }) => ({ ...message, metadata: { ...metadata, ...databaseMetadata(database) } }))
  return { messages, isSynthetic: seen.length === 0 }
}

/** @throws EngineError VALIDATION_FAILED: there is no such table; SOURCE_UNREACHABLE, … */
async function madeUp(connection: Connection, table: string): Promise<TrialMessage> {
  try {
    return await syntheticMessage(connection, table)
  } catch (error) {
    if (!(error instanceof EngineError) || error.code !== 'ARGUMENT_INVALID') throw error
    throw new EngineError('VALIDATION_FAILED', `table: ${error.message}`, { table: 'does not exist in the database' }, { cause: error })
  }
}
