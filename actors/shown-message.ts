/**
 * A message as people look at it: what it says, and what the functions of its sink, as they are now, make of it. JSON text, for
 * numbers may have more digits than a JavaScript number keeps. Nothing of it is shown for a sensitive sink.
 */
import { actionName, bodyOf, type MessageRecord, type RecordedMessage } from '../engine/dispatch/parked/message-records.ts'
import { EngineError } from '../engine/errors.ts'
import type { Database, Sink } from '../engine/state/resources.ts'
import { ENRICHMENT, metadataEnd } from '../engine/message-metadata.ts'
import { PUSH_TYPES } from '../sinks/destination-types.ts'
import { failureText, STATE, type FunctionFailure, type FunctionStage, type StageOutcome } from '../transforms/stage.ts'

/**
 * @property message before any function, with the row that enriches it; null: it is not kept, or not to be shown
 * @property functions `{dropped, output?, routing?, error?, logs}`; null: there are none, or no message to run them on
 */
export type ShownMessage = Readonly<{ record: MessageRecord; message: string | null; functions: string | null }>

/** Asks for one message. @property withFunctions the functions of the sink, as they are now, are run on it */
export type MessageLook = Readonly<{ id: string; withFunctions: boolean }>

/** Runs work on a stage of the sink's functions. */
type Tried = (work: (stage: FunctionStage) => Promise<StageOutcome | undefined>) => Promise<StageOutcome | undefined>

/** Makes of a recorded message what people see of it, running the functions of its sink when a stage for that is given. */
export async function shownMessage(found: RecordedMessage, sink: Sink, database: Database, tried?: Tried): Promise<ShownMessage> {
  const { record, content } = found
  if (!content || sink.sensitive) return { record, message: null, functions: null }
  const { view, place } = content
  const body = String(bodyOf(found))
  const messageWith = (row?: Uint8Array) =>
    `{${body}${ENRICHMENT}${row ? Buffer.from(row).toString() : 'null'}${metadataEnd(sink, database)}`
  try {
    const outcome = await tried?.(async (stage) => (stage.isIdle ? undefined : stage.run([{ view, place }])))
    if (!outcome) return { record, message: messageWith(), functions: null }
    const message = messageWith(outcome.enrichmentOf(0))
    const [schema = '', table = ''] = record.table?.split(/\.(.*)/s) ?? []
    const about = { action: actionName(view.action(place)), database: database.name, schema, table }
    return { record, message, functions: made(outcome, sink, about) }
  } catch (error) {
    if (!(error instanceof EngineError)) throw error // the database or the sandbox has failed, not the message
    const { code, message } = error
    return { record, message: messageWith(), functions: JSON.stringify({ dropped: false, error: { code, message }, logs: [] }) }
  }
}

function made(
  outcome: StageOutcome,
  { destination }: Sink,
  about: Readonly<{ action: string; database: string; schema: string; table: string }>,
): string {
  const state = outcome.stateOf(0)
  const isKept = state === STATE.kept
  const output = isKept ? outcome.payloadOf(0) : undefined
  const route = isKept ? outcome.routeOf(0) : undefined
  const { routing } = PUSH_TYPES.get(destination.type) ?? {}
  const fields = [
    `"dropped":${state === STATE.dropped}`,
    ...(output ? [`"output":${Buffer.from(output).toString()}`] : []),
    ...(route && routing ? [`"routing":${JSON.stringify(routing.effective(route, destination, about))}`] : []),
    ...(state === STATE.failed ? [`"error":${JSON.stringify(failed(outcome.failureOf(0)))}`] : []),
    `"logs":${JSON.stringify(outcome.logsOf(0))}`,
  ]
  return `{${fields.join()}}`
}

function failed(failure: FunctionFailure) {
  const { code, name, line, column, file } = failure
  const place = { ...(line !== undefined && { line, column }), ...(file !== undefined && { file }) }
  return { code, message: failureText(failure), function: name, ...place }
}
