-- The topics that this state database has had made in a log: only these are deleted when nobody is left to read them.
-- Written before a topic is made, and dropped after it is deleted.
create table log_topic (
  log text not null, -- its identity
  topic text not null,
  made_at timestamptz not null default now(),
  primary key (log, topic)
);
insert into log_topic (log, topic)
select s.log_identity, (e ->> 'sinkId') || '.' || (e ->> 'generation')
from source s join routing_version v on v.database_id = s.database_id, jsonb_array_elements(v.sinks) e
union
select s.log_identity, g.sink_id || '.' || g.generation
from source s join sink k on k.database_id = s.database_id join generation g on g.sink_id = k.id;
