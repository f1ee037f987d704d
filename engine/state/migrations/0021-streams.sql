-- A stream is what sinks of one shape share: one topic, written once, read by a generation of each of them.

create sequence stream_number; -- in the names of topics; a number is never used again

alter table generation
  add column topic text, -- null: it is not routed yet, or it is of a version in which each generation had a topic of its own, named by it
  add column ends_history int, -- from there on nothing is its own: null while it is open
  add column ends_lsn pg_lsn,
  add column ends_idx int,
  add column takes jsonb not null default '[]'; -- [{"history", "lsn", "idx", "actions"}]: what it takes of its stream from there on; none: everything

update generation g set ends_history = n.history, ends_lsn = n.lsn, ends_idx = n.idx
from generation n
where n.sink_id = g.sink_id and g.lsn is not null and n.generation =
  (select min(m.generation) from generation m where m.sink_id = g.sink_id and m.generation > g.generation and m.lsn is not null);

create table reader_line (
  sink_id uuid not null,
  generation int not null,
  partition int not null,
  begins bigint not null, -- the first record it needed
  line bigint not null, -- the first record it needs now, for delivery or for a replay: nothing from there on is trimmed
  primary key (sink_id, generation, partition),
  foreign key (sink_id, generation) references generation on delete cascade
);

alter table routing_version
  alter column sinks drop not null, -- of versions in which each sink had topics of its own
  add column streams jsonb, -- [{"topic", "partitions", "source", "grouping", "groupColumns", "timestampFormat"}]
  add column readers jsonb; -- [{"sinkId", "generation", "topic", "actions"}]

alter table node add column streams boolean not null default false; -- whether it knows what a stream is

create table trim_lease (
  database_id uuid primary key references source_database on delete cascade,
  holder text not null,
  ends_at timestamptz not null
);
