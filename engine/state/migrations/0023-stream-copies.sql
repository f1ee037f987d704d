-- What a generation that has left its stream still has open is copied into a topic that it reads alone, so that it holds nobody's trimming.
create table stream_copy ( -- those that are being made
  sink_id uuid not null,
  generation int not null,
  topic text not null, -- what another one is named here instead of is void
  primary key (sink_id, generation),
  foreign key (sink_id, generation) references generation on delete cascade
);
alter table reader_line add column copied_to bigint; -- the offset behind the copy that is read; null: what is read is the stream
-- The first record of a topic in Kafka that begins with a copy stands for this offset.
create table log_base (
  log text not null,
  topic text not null,
  partition int not null,
  base bigint not null,
  primary key (log, topic, partition)
);
