-- What parked messages count for in the backlog of their sink: bytes of the open rows of each partition that owns them,
-- written with the rows and counted anew at each take-over. A sum over the rows would read them all.
create table parked_backlog (
  sink_id uuid not null references sink on delete cascade,
  generation int not null, -- of the owner, as is the partition
  partition int not null,
  bytes bigint not null,
  primary key (sink_id, generation, partition)
);

insert into parked_backlog (sink_id, generation, partition, bytes)
select sink_id, owner_generation, owner_partition, sum(octet_length(record_key) + octet_length(group_key) + octet_length(body))
from parked where state = 'open' group by 1, 2, 3;
