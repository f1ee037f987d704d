/** A pull sink and its database as they are stored, with what is usual: tests say only what they want otherwise. Imports nothing that runs. */
import type { Database, Sink } from '../../engine/state/resources.ts'

export const SINK: Sink = {
  id: '5f1d5bb8-4a8e-4f0e-9d0c-0d6f5c1f0a01',
  accountId: '0c8a3e1e-51f6-4a39-8d4a-0a5dd1a1f0aa',
  hasBackfills: false,
  databaseId: '7a6b5c4d-1234-4321-9999-0f0e0d0c0b0a',
  name: 'orders',
  database: 'shop',
  status: 'active',
  source: {},
  tables: [],
  actions: ['insert', 'update', 'delete'],
  message_grouping: true,
  batch_size: 1,
  max_retry_count: null,
  load_shedding_policy: 'pause_on_full',
  timestamp_format: 'iso8601',
  key_changes: 'update',
  annotations: { team: 'search' },
  ack_wait_ms: 30_000,
  max_ack_pending: 10_000,
  max_waiting: 20,
  batch_timeout_ms: 5,
  max_memory_mb: 128,
  max_backlog_mb: 10_240,
  concurrency: null,
  traceparent_column: null,
  sensitive: false,
  partitions: 1,
  replay_window: 0,
  destination: { type: 'sequin_stream' },
}

export const DATABASE: Database = {
  id: SINK.databaseId,
  accountId: SINK.accountId,
  name: 'shop',
  connection: { hostname: 'pg.internal', port: 5432, database: 'shop_production', username: 'u', password: 'secret', ssl: false },
  poolSize: 1,
  annotations: {},
  slot: { id: SINK.databaseId, name: 'slot', publication: 'pub', status: 'active' },
}
