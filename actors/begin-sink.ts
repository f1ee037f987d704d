/** A sink begins to work in this process: what it is given, and what is said of it in the log. */
import { StoredGenerations } from '../engine/dispatch/generations.ts'
import type { ReadMemory } from '../engine/dispatch/read-memory.ts'
import { isFenced, isGone } from '../engine/errors.ts'
import type { Log } from '../engine/log/log.ts'
import type { Logger } from '../engine/logger.ts'
import type { SinkMeter } from '../engine/meters.ts'
import type { Egress } from '../engine/net/egress.ts'
import type { NodeRegistry } from '../engine/state/node-registry.ts'
import type { ResourceCache } from '../engine/state/resource-cache.ts'
import type { Database, Sink } from '../engine/state/resources.ts'
import type { Store } from '../engine/state/store.ts'
import { SOURCE_DEFAULTS, type SourceSettings } from '../engine/wal/source-settings.ts'
import { PUSH_TYPES } from '../sinks/destination-types.ts'
import { PullSink } from './pull/pull-sink.ts'
import { PushSink } from './push/push-sink.ts'
import type { RecentMessages } from './recent-messages.ts'
import type { MessageTraces } from './tracing/message-traces.ts'
import type { SinkFunctions } from './sink/sink-functions.ts'
import { observeSink } from './partition/sink-observer.ts'
import type { SinkOptions } from './sink/running-sink.ts'
import { SinkHost } from './sink/sink-host.ts'

/** Holds what all sinks of the process share. */
export type SinkHome = Readonly<{
  log: Log
  logger: Logger
  /** the state database */
  store: Pick<Store, 'query'>
  /** names this process there */
  nodes: Pick<NodeRegistry, 'id'>
  cache: Pick<ResourceCache, 'endpointOf' | 'targetOf'>
  egress: Egress
  /** settings of sources that are not as usual */
  source?: Partial<SourceSettings>
  functions: SinkFunctions
  recent: RecentMessages
  memory: ReadMemory
  /** of its database; absent: nothing is traced */
  traces?: MessageTraces | undefined
  /** the sink as it is now. @throws EngineError NOT_FOUND */
  sinkNow: (id: string) => Sink
  /** a generation was handed over to the next one */
  generationEnded: () => void
}>

/** Starts a sink with all that it is given in this process. */
export function beginSink(sink: Sink, database: Database, meter: SinkMeter, home: SinkHome): SinkHost {
  const { log, logger, store, nodes, cache, egress, source, functions, recent, memory, traces, sinkNow, generationEnded } = home
  return startSink({
    sink,
    database,
    generations: new StoredGenerations({
      sinkId: sink.id,
      log,
      query: store.query,
      ackWaitMs: () => sinkNow(sink.id).ack_wait_ms,
      handedOver: (generation) => {
        logger.info({ sink: sink.name, generation }, 'a generation is delivered, the next one follows')
        generationEnded()
      },
    }),
    log,
    query: store.query,
    holder: nodes.id,
    memory,
    onFailure: (err, partition) => {
      if (isGone(err)) logger.debug({ sink: sink.name, partition }, 'a partition of a deleted sink ends')
      else if (isFenced(err)) logger.info({ sink: sink.name, partition, reason: err.message }, 'a partition has another owner')
      else logger.warn({ sink: sink.name, partition, err }, 'a partition failed and will be taken over again')
    },
    observer: observeSink(sink, meter, logger),
    counts: () => meter,
    functions: (now, its, former) => functions.stageOf(now, its, former),
    recent,
    traces,
    push: {
      egress,
      maxMessageBytes: source?.maxMessageBytes ?? SOURCE_DEFAULTS.maxMessageBytes,
      endpoint: (now) => cache.endpointOf(now),
      target: (now) => cache.targetOf(now),
      warn: (text) => logger.warn({ sink: sink.name }, text),
    },
  })
}

/** Starts a sink by its kind: one whose clients ask for messages, or one that sends them. */
export function startSink(options: SinkOptions): SinkHost {
  const { push, sink } = options
  const type = PUSH_TYPES.get(sink.destination.type)
  if (!type) return new SinkHost(options, (host) => new PullSink(host, options))
  if (!push) throw new TypeError(`a sink of type ${type.type} needs its surroundings`)
  return new SinkHost(options, (host) => new PushSink(host, type, push, options))
}
