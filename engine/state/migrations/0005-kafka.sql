-- Second memory of a log in Kafka, beside its own offsets. log: the cluster and the prefix of its topics.
create table log_checkpoint (
  log text not null,
  topic text not null,
  partition int not null,
  term bigint not null, -- of the owner that wrote it
  number bigint not null, -- of the commit, counted by that owner
  content jsonb not null, -- the commit whole, also the ranges that don't fit beside Kafka's offset
  saved_at timestamptz not null default now(),
  primary key (log, topic, partition)
);

-- How far a source's stream is durable in all partitions.
create table log_progress (
  log text not null,
  source text not null,
  history int not null,
  lsn pg_lsn not null,
  idx int not null,
  part smallint not null,
  saved_at timestamptz not null default now(),
  primary key (log, source)
);
