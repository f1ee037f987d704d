-- What decides which partition a message goes to is a sink's shape. Another shape is another generation, with a topic of
-- its own: the source switches at the position where the newer one opens, and the older one is emptied first.
create table generation (
  sink_id uuid not null references sink on delete cascade,
  generation int not null,
  shape jsonb not null, -- {"partitions": 2, "grouping": true, "groupColumns": {"public.item": ["order_id"]}}
  history int, -- where it opens, and with it the one before closes: null until its routing mark came back
  lsn pg_lsn,
  idx int,
  drained_at timestamptz, -- delivered but for parked messages, and those are the next one's
  inserted_at timestamptz not null default now(),
  primary key (sink_id, generation)
);

-- Partitions whose last pack was met with nothing before it unfinished, parked messages aside.
create table drained_partition (
  sink_id uuid not null,
  generation int not null,
  partition int not null,
  drained_at timestamptz not null default now(),
  primary key (sink_id, generation, partition),
  foreign key (sink_id, generation) references generation on delete cascade
);

insert into generation (sink_id, generation, shape, history, lsn, idx)
select s.id, 1,
  jsonb_build_object(
    'partitions', coalesce((s.settings ->> 'partitions')::int, 1),
    'grouping', coalesce((s.settings ->> 'message_grouping')::boolean, true),
    'groupColumns', coalesce(
      (select jsonb_object_agg(case when t ->> 'name' like '%.%' then t ->> 'name' else 'public.' || (t ->> 'name') end, t -> 'group_column_names')
       from jsonb_array_elements(coalesce(s.settings -> 'tables', '[]')) as t
       where jsonb_typeof(t -> 'group_column_names') = 'array'),
      '{}')),
  v.history, v.lsn, v.idx
from sink s left join lateral (
  select r.history, r.lsn, r.idx from routing_version r
  where r.database_id = s.database_id and r.lsn is not null and r.sinks @> jsonb_build_array(jsonb_build_object('sinkId', s.id))
  order by r.version limit 1
) v on true;

-- A parked message keeps the name its place in the log gave it (generation to record_index), which is that of its ack_id.
-- Who delivers it now is the owner; group_hash is of the owner's shape.
alter table parked add column owner_generation int, add column owner_partition int;
update parked set owner_generation = generation, owner_partition = partition;
alter table parked alter column owner_generation set not null, alter column owner_partition set not null;
drop index parked_group;
create index parked_group on parked (sink_id, owner_generation, owner_partition, group_hash, history, lsn, idx, part) where state = 'open';
