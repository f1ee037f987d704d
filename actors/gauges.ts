/** How sinks and sources stand at the moment of a scrape, in the terms of the metrics. Nothing here is counted. */
import { EngineError } from '../engine/errors.ts'
import type { SinkGauges, SourceGauges } from '../engine/metrics.ts'
import type { Sink } from '../engine/state/resources.ts'
import type { SourceActor } from './source/source-actor.ts'
import type { RunningSink } from './sink/running-sink.ts'
import type { StreamStatus } from './backlog/stream-figures.ts'
import type { HealthStatus } from '../engine/status.ts'

const MB = 1024 * 1024

/** @param besides what the sink itself doesn't know: its health with what its backlog says, and the messages dropped in front of it */
export function sinkGauges(running: RunningSink, sink: Sink, besides: Readonly<{ health: HealthStatus; dropped: number }>): SinkGauges {
  const { details, partitions = [] } = running.status()
  const number = (value: unknown): number => (typeof value === 'number' ? value : 0)
  const sum = (name: string) => partitions.reduce((total, figures) => total + number(figures[name]), 0)
  const inDelivery = sum('inFlight')
  return {
    health: GAUGE_STATUS[besides.health],
    dropped: besides.dropped,
    inDelivery,
    buffered: sum('unfinished'),
    inRedelivery: Math.max(0, number(details?.['ackPending']) - inDelivery),
    oldestMessageAgeMs: Math.max(0, ...partitions.map(({ oldestMs }) => number(oldestMs))),
    deliverySaturationPercent: number(details?.['readyPercent']),
    windowBytes: sum('windowBytes'),
    windowLimitBytes: sink.max_memory_mb * MB,
    partitions: partitions.map((figures) => ({
      partition: number(figures['partition']),
      lagRecords: number(figures['lag']),
      parkedMessages: number(figures['parked']),
      windowBytes: number(figures['windowBytes']),
      logBytes: number(figures['logBytes']),
      delivered: number(figures['delivered']),
      keptBytes: number(figures['keptBytes']),
      keptMessages: number(figures['keptMessages']),
    })),
  }
}

/** @param streams of its database */
export function sourceGauges(source: SourceActor, streams: readonly StreamStatus[]): SourceGauges {
  if (source.standby) return { isOwner: false } // the owner's figures say how it is
  const { figures, state, slot } = source
  const isOwner = state === 'streaming'
  return {
    isOwner,
    streams: streams.map(({ topic, bytes, readers }) => ({
      topic,
      keptBytes: bytes,
      readers: readers.map(({ sinkId: id, sink: name, ...reader }) => ({
        id,
        name,
        backlogBytes: reader.backlogBytes,
        othersBytes: reader.othersBytes,
        heldBytes: reader.heldBytes,
      })),
    })),
    slotHealth: state === 'failed' ? 'error' : state === 'waiting' ? 'warn' : 'ok',
    ...(slot.lag || slot.error ? { databaseHealth: answers(slot) ? 'ok' : 'error' } : {}),
    ...(slot.lag ? { slotSizeBytes: slot.lag.retainedBytes } : {}),
    ...(figures ? { bytesInFlight: figures.bytesInFlight, confirmedLagBytes: Number(figures.receivedLsn - figures.confirmedLsn) } : {}),
    ...(figures && isOwner
      ? { ingestionSaturationPercent: figures.appendingPercent, processingSaturationPercent: figures.decodingPercent }
      : {}),
  }
}

/** A database without the slot answers as well. */
const answers = ({ lag, error }: SourceActor['slot']): boolean =>
  lag !== undefined || (error instanceof EngineError && error.code === 'SLOT_MISSING')

const GAUGE_STATUS: Readonly<Record<HealthStatus, SinkGauges['health']>> = {
  healthy: 'ok',
  initializing: 'ok',
  warning: 'warn',
  error: 'error',
  paused: 'paused',
}
