/** The part of a sink by which messages leave it: its clients ask for them (actors/pull), or it sends them (actors/push). */
import type { Database, Sink } from '../../engine/state/resources.ts'
import type { ActorStatus, Figures, HealthCheck, Trouble } from '../../engine/status.ts'
import type { PartitionTransport } from '../partition/partition-sink.ts'
import type { PulledSink } from './running-sink.ts'

/** Tells how the deliveries of a transport go. */
export type TransportHealth = Readonly<{
  /** why the filter decides nothing */
  filtering?: Trouble | undefined
  delivery: Omit<HealthCheck, 'name'>
  /** of messages that have failed and wait for their next try */
  failing?: Trouble | undefined
  /** of messages whose end was forgotten */
  accounting?: Trouble | undefined
}>

/** The part of a sink by which its messages leave it. */
export interface Transport extends PartitionTransport {
  /** what its clients call; undefined: it sends */
  readonly pulled: PulledSink | undefined
  /** why nothing can be delivered */
  readonly lastError?: ActorStatus['lastError']
  /** Something may be deliverable that wasn't: a message, a partition, a status. */
  deliverable(): void
  /** An edit: holds for what is delivered from now on. */
  update(sink: Sink, database: Database): void
  health(): TransportHealth
  figures(): Figures
  /** The sink is about to stop: those who wait for messages get none. */
  stopping?(): void
  /** Every partition has stopped. */
  close?(): Promise<void>
}
