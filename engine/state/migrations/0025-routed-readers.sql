-- Who reads which stream. Each edit made another list of all readers: of hundreds only the one that was edited is another now.

create table routed_reader (
  database_id uuid not null references source_database on delete cascade,
  sink_id uuid not null,
  generation int not null,
  topic text not null,
  actions jsonb not null,
  since int not null, -- the first routing version that has it so
  until int, -- the first one after it that has not; null: the newest has
  primary key (database_id, since, sink_id)
);
create index on routed_reader (database_id, until);

insert into routed_reader (database_id, sink_id, generation, topic, actions, since, until)
select v.database_id, (r ->> 'sinkId')::uuid, (r ->> 'generation')::int, r ->> 'topic', r -> 'actions', v.version, v.next
from (select *, lead(version) over (partition by database_id order by version) as next from routing_version) v, jsonb_array_elements(v.readers) r;

alter table routing_version drop column readers;
