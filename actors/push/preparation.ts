/**
 * Makes a batch ready to be sent: values that the log lacks are fetched, where the destination keeps documents, and
 * the sink's functions say what goes out and where.
 */
import type { Message } from '../../engine/dispatch/batch.ts'
import type { HealthCheck } from '../../engine/status.ts'
import type { RowLookup } from '../../engine/wal/row-lookup.ts'
import type { Sink } from '../../engine/state/resources.ts'
import { attemptOf, failureText, STATE, type FunctionStage } from '../../transforms/stage.ts'
import { groupOf, partOf, type SendBatch } from './send-batch.ts'
import { areWhole, wholeMessages } from './whole-messages.ts'

/** Holds what messages go through on their way to their destination. */
export type Passage = Readonly<{
  sink: Sink
  stage: FunctionStage
  /** finds values that the log lacks */
  lookup: Pick<RowLookup, 'find'>
  /** the destination keeps a document per key */
  keyed: boolean
  grouping: boolean
}>

/** A message that fails before it is sent, so that it alone is to blame. */
type FailedEarly = Readonly<{ message: Message; error: string; record: Readonly<Record<string, unknown>> }>

/** Tells what has become of each message of a batch that was to be made ready. */
export type Prepared = {
  /** to be sent, each to a place of its own */
  readonly batches: SendBatch[]
  /** nothing is to be delivered of them */
  readonly dropped: Message[]
  /** to be sent after others of their group, or when there is room for them */
  readonly behind: Message[]
  readonly failed: FailedEarly[]
  /** of the last that failed */
  trouble: HealthCheck['error']
}

const TOO_LARGE = {
  code: 'ROW_TOO_LARGE',
  message: 'the large (TOAST) values that the UPDATE left unchanged are larger than MAX_MESSAGE_MB',
} as const

/** Tells whether a batch has to be made ready before it can be sent. */
export const needsPreparation = (batch: SendBatch, keyed: boolean, stage: FunctionStage): boolean =>
  !batch.isStaged && (!stage.isIdle || (keyed && !areWhole(batch.messages)))

/** Makes a batch ready to be sent. @throws EngineError functions can't be run, or values fetched, at the moment */
export async function prepare(batch: SendBatch, passage: Passage, signal: AbortSignal): Promise<Prepared> {
  const { sink, stage, keyed, lookup } = passage
  const prepared: Prepared = { batches: [], dropped: [], behind: [], failed: [], trouble: undefined }
  if (!keyed || areWhole(batch.messages)) await throughFunctions(batch, new Set(), passage, prepared)
  else {
    const { whole, gone, outdated, behind, tooLarge } = await wholeMessages(batch.messages, {
      lookup,
      format: sink.timestamp_format,
      signal,
    })
    prepared.dropped.push(...outdated)
    prepared.behind.push(...behind)
    if (tooLarge) {
      prepared.trouble = TOO_LARGE
      const record = { at: new Date().toISOString(), counts: true, ...TOO_LARGE }
      prepared.failed.push({ message: tooLarge, error: TOO_LARGE.message, record })
    }
    if (whole.length > 0 && stage.isIdle) prepared.batches.push(partOf(batch, whole))
    else if (whole.length > 0) await throughFunctions(partOf(batch, whole), gone, passage, prepared)
  }
  return prepared
}

/** Puts messages through the sink's functions: of one group they go one way at a time. @param gone those whose rows are gone */
async function throughFunctions(
  batch: SendBatch,
  gone: ReadonlySet<Message>,
  { sink, stage, grouping }: Passage,
  prepared: Prepared,
): Promise<void> {
  const { messages } = batch
  const outcome = await stage.run(messages)
  const blocked = new Set<unknown>()
  const routeOfGroup = new Map<unknown, SendBatch['route']>()
  const byRoute = new Map<SendBatch['route'], Message[]>()
  for (const [i, message] of messages.entries()) {
    const group = groupOf(message, grouping)
    const state = outcome.stateOf(i)
    // no function has to do with half a row, and the delete must not wait for it
    const isExcused = state === STATE.failed && sink.actions.includes('delete') && gone.has(message)
    if (blocked.has(group) || state === STATE.left) prepared.behind.push(message)
    else if (state === STATE.dropped || isExcused) prepared.dropped.push(message)
    else if (state === STATE.failed) {
      blocked.add(group)
      const failure = outcome.failureOf(i)
      const text = failureText(failure)
      prepared.trouble = { code: failure.code, message: text }
      prepared.failed.push({ message, error: text, record: attemptOf(failure, outcome.logsOf(i)) })
    } else {
      const route = outcome.routeOf(i)
      if (routeOfGroup.has(group) && routeOfGroup.get(group) !== route) {
        blocked.add(group)
        prepared.behind.push(message)
        continue
      }
      routeOfGroup.set(group, route)
      const made = { ...message, payload: outcome.payloadAt(i), enrichment: outcome.enrichmentOf(i) }
      const others = byRoute.get(route)
      if (others) others.push(made)
      else byRoute.set(route, [made])
    }
  }
  for (const [route, made] of byRoute) prepared.batches.push({ ...partOf(batch, made), isStaged: true, route })
}
