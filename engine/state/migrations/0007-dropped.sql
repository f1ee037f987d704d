-- What a sink has lost by its own choice (load_shedding_policy discard_on_full): the stretch that goes on, or the last one.
create table dropped (
  sink_id uuid primary key references sink on delete cascade,
  since timestamptz not null, -- saved before the first message of the stretch is dropped
  until timestamptz, -- null: it goes on
  messages bigint not null -- of the stretch; written every second, so that a process that dies may leave out its last ones
);
