/** Starts a sink by its kind: one whose clients ask for messages, or one that sends them. */
import { PUSH_TYPES } from '../../sinks/destination-types.ts'
import { startPullSink } from '../pull/pull-sink.ts'
import { startPushSink } from '../push/push-sink.ts'
import type { RunningSink, SinkOptions } from './running-sink.ts'

/** Starts serving a sink. */
export function startSink(options: SinkOptions): RunningSink {
  const { push, sink } = options
  const type = PUSH_TYPES.get(sink.destination.type)
  if (!type) return startPullSink(options)
  if (!push) throw new TypeError(`a sink of type ${type.type} needs its surroundings`)
  return startPushSink(options, type, push)
}
