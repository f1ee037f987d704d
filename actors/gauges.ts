/** How sinks and sources stand at the moment of a scrape, in the terms of the metrics. Nothing here is counted. */
import type { SinkGauges, SourceGauges } from '../engine/metrics.ts'
import type { Sink } from '../engine/state/resources.ts'
import type { SourceActor } from './source-actor.ts'
import type { RunningSink } from './sink.ts'
import type { EntityStatus } from './status.ts'

const MB = 1024 * 1024

/** @param health of the sink, with what its backlog says */
export function sinkGauges(running: RunningSink, sink: Sink, health: EntityStatus): SinkGauges {
  const { details, partitions = [] } = running.status()
  const number = (value: unknown): number => (typeof value === 'number' ? value : 0)
  const sum = (name: string) => partitions.reduce((total, figures) => total + number(figures[name]), 0)
  return {
    health: GAUGE_STATUS[health],
    inDelivery: number(details?.['ackPending']),
    inRedelivery: sum('parked'),
    windowBytes: sum('windowBytes'),
    windowLimitBytes: sink.max_memory_mb * MB,
    partitions: partitions.map((figures) => ({
      partition: number(figures['partition']),
      lagRecords: number(figures['lag']),
      parkedMessages: number(figures['parked']),
      windowBytes: number(figures['windowBytes']),
      logBytes: number(figures['logBytes']),
    })),
  }
}

export function sourceGauges(source: SourceActor): SourceGauges {
  if (source.standby) return { isOwner: false } // the owner's figures say how it is
  const { figures, state } = source
  return {
    isOwner: state === 'streaming',
    slotHealth: state === 'failed' ? 'error' : state === 'waiting' ? 'warn' : 'ok',
    ...(figures ? { bytesInFlight: figures.bytesInFlight, confirmedLagBytes: Number(figures.receivedLsn - figures.confirmedLsn) } : {}),
  }
}

const GAUGE_STATUS: Readonly<Record<EntityStatus, SinkGauges['health']>> = {
  healthy: 'ok',
  initializing: 'ok',
  warning: 'warn',
  error: 'error',
  paused: 'paused',
}
