-- Where partitions of a log in Kafka ended when the progress of their source was last saved: one that ends below has lost
-- records, or is an older copy.
create table log_end (
  log text not null,
  topic text not null,
  partition int not null,
  source text not null,
  next bigint not null,
  primary key (log, topic, partition)
);
create index log_end_source on log_end (log, source);
