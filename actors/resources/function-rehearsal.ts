/**
 * Tries a function that is being saved: on the last message that a sink which has the function has read of each
 * table, else on an example. A failure there keeps nothing from being saved; it is told beside.
 */
import { EngineError } from '../../engine/errors.ts'
import type { Destination } from '../../engine/state/destinations.ts'
import { kindOfType } from '../../engine/state/function-kinds.ts'
import type { FunctionInput } from '../../engine/state/functions.ts'
import type { Database, Sink } from '../../engine/state/resources.ts'
import type { Connection } from '../../engine/postgres/client-config.ts'
import { sinkMetadata } from '../../engine/message-metadata.ts'
import { isKeyed, PUSH_TYPES } from '../../sinks/destination-types.ts'
import { tryQuery } from '../../transforms/enrichment-trial.ts'
import { parseExact } from '../../engine/json.ts'
import type { AccountPool } from '../../transforms/sandbox/pool.ts'
import { placeText } from '../../transforms/sandbox/source-position.ts'
import { EXAMPLE, trialMessage, tryCompiled, type TrialMessage, type TrialResult } from '../../transforms/trial.ts'
import { routeTrial } from './function-form.ts'

/** @property connection of the database that they are of; absent: of none @property destinations of the sinks that have the function */
export type Rehearsal = Readonly<{
  messages: readonly TrialMessage[]
  connection?: Connection | undefined
  destinations?: readonly Destination[]
  on: string
}>
/** Runs a function on a message that shows what messages look like. */
export const ON_EXAMPLE: Rehearsal = { messages: [EXAMPLE], on: 'an example' }

/** Runs a function that is being saved on messages. @returns why it fails, in words: one for each reason; none while nothing can be said */
export async function rehearse(
  fn: Pick<FunctionInput, 'name' | 'type' | 'compiled' | 'sinkType'>,
  { messages, connection, destinations = [], on }: Rehearsal,
  pool: Pick<AccountPool, 'test' | 'forget'>,
): Promise<readonly string[]> {
  const isQuery = fn.type === 'enrichment'
  if (isQuery && !connection) return []
  if (fn.type === 'path' && !destinations.some(isKeyed)) return [] // it can't fail, and anything will do
  const trial = isQuery && connection ? tryQuery(fn, messages, connection) : tryCompiled(fn, messages, pool, routeTrial(fn.sinkType)) // prettier-ignore
  const results = await trial.catch((error: unknown): TrialResult[] => {
    if (error instanceof EngineError) return [] // the sandbox, or the database, can't be had at the moment
    throw error
  })
  const isTransform = kindOfType(fn.type) === 'transform'
  const reasons = results.flatMap(({ input, output, error }) => {
    const refused = isTransform && input.action !== 'delete' ? refusedBy(destinations, output, on !== ON_EXAMPLE.on) : undefined
    const reason = error ? `${error.text}${placeText(error)}` : refused
    return reason === undefined ? [] : [`on ${tableOf(input, on)}: ${reason}`]
  })
  return [...new Set(reasons)]
}

/** @param isReal the message has the columns of its table. @returns why a destination that keeps documents would take no such thing */
function refusedBy(destinations: readonly Destination[], output: unknown, isReal: boolean): string | undefined {
  for (const destination of destinations.filter(isKeyed)) {
    if (typeof output !== 'object' || output === null || Array.isArray(output))
      return `a sink of type ${destination.type} takes objects only, and this returned ${Array.isArray(output) ? 'a list' : JSON.stringify(output)}`
    const refused = isReal ? PUSH_TYPES.get(destination.type)?.refusedDocument?.(output, destination) : undefined
    if (refused !== undefined) return refused
  }
  return undefined
}

/**
 * The sinks and their last messages, as a trial of a function asks for them. @property enrichmentOf the query that a sink has @property recent the last messages that sinks have read,
 * as JSON
 */
type Surroundings = Readonly<{
  databaseOf: (sink: Sink) => Database | undefined
  enrichmentOf: (sink: Sink) => FunctionInput | undefined
  recent: (asked: Readonly<{ databaseId: string; sinkIds: readonly string[] }>) => Promise<readonly Readonly<{ text: string }>[]>
}>

/** Chooses the messages that a function is tried on. @param users the sinks that have the function */
export async function rehearsalOf(users: readonly Sink[], { databaseOf, enrichmentOf, recent }: Surroundings): Promise<Rehearsal> {
  const destinations = users.map(({ destination }) => destination)
  for (const user of users) {
    const database = databaseOf(user)
    if (!database) continue
    const found = await recent({ databaseId: database.id, sinkIds: [user.id] })
    if (found.length === 0) continue
    const messages = found.map(({ text }) => {
      const { metadata, ...message } = trialMessage(parseExact(text))
      return { ...message, metadata: { ...metadata, ...sinkMetadata(user, database) } }
    })
    const { connection } = database
    return { messages: await enriched(messages, enrichmentOf(user), connection), connection, destinations, on: 'the last message' }
  }
  return { ...ON_EXAMPLE, destinations }
}

/**
 * Puts into messages the rows that an enrichment query finds for them now, as a sink that has it would give them to its other
 * functions.
 */
export async function enriched(
  messages: readonly TrialMessage[],
  query: FunctionInput | undefined,
  connection: Connection,
): Promise<readonly TrialMessage[]> {
  if (!query) return messages
  const results = await tryQuery(query, messages, connection).catch(() => [])
  return messages.map((message, i) => ({
    ...message,
    metadata: { ...message.metadata, enrichment: results[i]?.output ?? null },
  }))
}

function tableOf({ metadata }: TrialMessage, on: string): string {
  const { table_schema: schema, table_name: table } = metadata
  return on === ON_EXAMPLE.on ? on : `${on} of ${String(schema)}.${String(table)}`
}
