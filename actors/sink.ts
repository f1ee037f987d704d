/** Starts a sink by its kind: one whose clients ask for messages, or one that sends them. */
import { startPullSink } from './pull-sink.ts'
import type { RunningSink, SinkOptions } from './running-sink.ts'

export type { Receipt, Receive, RunningSink, SinkOptions } from './running-sink.ts'

/** Starts serving a sink. */
export function startSink(options: SinkOptions): RunningSink {
  return startPullSink(options)
}
