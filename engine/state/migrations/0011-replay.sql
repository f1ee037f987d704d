-- Facts of a partition's log, noted as it is acknowledged: every message above the position stands at or behind the record
-- offset. The lowest one of a partition is where its replay window begins: nothing is deleted from there on.
create table replay_point (
  sink_id uuid not null,
  generation int not null,
  partition int not null,
  record_offset bigint not null,
  needed_from bigint not null, -- reading can begin at the record if all from here on are there: it may stand in parts
  history int not null,
  lsn pg_lsn not null,
  idx int not null,
  part smallint not null,
  latest_commit timestamptz not null, -- nothing before it was committed later
  messages bigint not null, -- before it, counted from any beginning: differences tell
  bytes bigint not null, -- the same of the log's records
  reached_at timestamptz not null default now(), -- everything before it was finished
  primary key (sink_id, generation, partition, record_offset),
  foreign key (sink_id, generation) references generation on delete cascade
);

-- Where a partition goes on after a replay: in the place of any commit of the log that has a lower term.
create table rewound_partition (
  sink_id uuid not null,
  generation int not null,
  partition int not null,
  term bigint not null,
  content jsonb, -- the commit; null: none, it begins where its generation opens
  primary key (sink_id, generation, partition),
  foreign key (sink_id, generation) references generation on delete cascade
);

alter table generation
  add column rewinds int not null default 0, -- how often a replay went back to it or behind it: a hand-over that began before is void
  add column dropped_at timestamptz; -- its topic is being deleted, or was: no replay goes back to it any more
