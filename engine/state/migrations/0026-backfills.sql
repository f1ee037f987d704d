-- Backfills: jobs that read the existing rows of a table into a sink, beside the stream.

create table backfill (
  id uuid primary key default gen_random_uuid(),
  sink_id uuid not null references sink on delete cascade,
  table_name text not null, -- "schema.table"
  state text not null check (state in ('active', 'paused', 'completed', 'failed', 'cancelled')),
  sort_column text, -- of a partial one: rows from start_position on, in the order of this column
  start_position text,
  condition text, -- SQL that a row must fulfil
  max_timeout_ms int not null,
  pages jsonb not null default '[]', -- the newest pages that are durable in the log, oldest first: the key that each ended with, and the place of its mark
  rows_initial_count bigint, -- an estimate
  rows_processed_count bigint not null default 0,
  rows_ingested_count bigint not null default 0,
  error jsonb, -- why it failed: code and message
  inserted_at timestamptz not null default clock_timestamp(),
  updated_at timestamptz not null default clock_timestamp(),
  completed_at timestamptz,
  canceled_at timestamptz,
  failed_at timestamptz
);
create unique index on backfill (sink_id, table_name) where state in ('active', 'paused');
create index on backfill (sink_id, inserted_at);

-- those of `backfill` that are active or paused, as far as they don't change while they run: what they ask for belongs to the sink's settings
alter table sink add column backfills jsonb not null default '[]';
