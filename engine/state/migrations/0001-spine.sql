-- What Tailrace keeps about itself, in the schema "tailrace" of the state database. Times are UTC; LSNs are pg_lsn.
create table account (
  id uuid primary key default gen_random_uuid(),
  name text not null unique,
  inserted_at timestamptz not null default now()
);

create table api_token (
  id uuid primary key default gen_random_uuid(),
  account_id uuid not null references account on delete cascade,
  name text not null,
  hash bytea not null unique, -- sha256 of the token
  inserted_at timestamptz not null default now(),
  unique (account_id, name)
);

create table source_database (
  id uuid primary key default gen_random_uuid(),
  account_id uuid not null references account on delete cascade,
  name text not null,
  connection jsonb not null, -- hostname, port, database, username, ssl, ca_cert
  password bytea not null, -- encrypted
  pool_size int not null default 10,
  annotations jsonb not null default '{}',
  slot_id uuid not null default gen_random_uuid(),
  slot_name text not null,
  publication_name text not null,
  slot_status text not null default 'active' check (slot_status in ('active', 'disabled')),
  inserted_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  unique (account_id, name)
);

create table sink (
  id uuid primary key default gen_random_uuid(),
  account_id uuid not null references account on delete cascade,
  database_id uuid not null references source_database on delete restrict,
  name text not null,
  status text not null check (status in ('active', 'paused', 'disabled')),
  settings jsonb not null, -- the resource as checked by its schema, without name, database, status, destination
  destination jsonb not null,
  inserted_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  unique (account_id, name)
);

-- Who owns what: a term fences the writes of every former owner.
create table term (
  kind text not null check (kind in ('source', 'partition')),
  key text not null, -- source: database id; partition: "sink id.generation/partition"
  term bigint not null,
  holder text not null,
  taken_at timestamptz not null default now(),
  primary key (kind, key)
);

-- One row for each source: what was confirmed to Postgres, saved before it was sent.
create table source (
  database_id uuid primary key references source_database on delete cascade,
  slot_name text not null,
  log_identity text not null,
  confirmed_lsn pg_lsn not null,
  accepted_gap pg_lsn, -- a user accepts that the slot goes on here although changes are missing; cleared when done
  updated_at timestamptz not null default now()
);

-- Incarnations of a source: system identifier and timeline, and the LSN where each begins.
create table source_history (
  database_id uuid not null references source_database on delete cascade,
  history int not null,
  system_identifier text not null,
  timeline int not null,
  begins_at pg_lsn not null,
  phantom_messages bigint not null default 0, -- received above the switch, never happened for the new primary
  inserted_at timestamptz not null default now(),
  primary key (database_id, history)
);

-- Primary keys as the catalogue had them when a Relation arrived; a re-run uses what is saved.
create table relation_key (
  database_id uuid not null references source_database on delete cascade,
  history int not null,
  lsn pg_lsn not null,
  idx int not null,
  relation bigint not null, -- oid
  columns jsonb not null, -- {"key": [column names], "types": {...}}
  primary key (database_id, relation, history, lsn, idx)
);

create table routing_version (
  database_id uuid not null references source_database on delete cascade,
  version int not null,
  sinks jsonb not null,
  history int, -- where it took effect: null until its mark came back
  lsn pg_lsn,
  idx int,
  inserted_at timestamptz not null default now(),
  primary key (database_id, version)
);

-- Messages that wait outside the log: blocked ones only.
create table parked (
  sink_id uuid not null references sink on delete cascade,
  history int not null,
  lsn pg_lsn not null,
  idx int not null,
  part smallint not null,
  generation int not null,
  partition int not null,
  record_offset bigint not null,
  record_index int not null,
  group_hash bigint not null,
  record_key text not null, -- primary key as a JSON array
  group_key text not null, -- empty: as record_key
  body bytea not null,
  action smallint not null,
  flags smallint not null,
  relation bigint not null,
  commit_time timestamptz not null,
  state text not null check (state in ('open', 'done', 'discarded')),
  attempts int not null default 0,
  error text,
  next_try_at timestamptz,
  inserted_at timestamptz not null default now(),
  primary key (sink_id, history, lsn, idx, part)
);
create index parked_group on parked (sink_id, generation, partition, group_hash, record_offset, record_index) where state = 'open';
create index parked_ref on parked (sink_id, generation, partition, record_offset, record_index);
