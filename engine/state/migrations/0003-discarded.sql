-- The newest discarded messages of a sink are kept: to find where the older ones begin, without looking at what is parked.
create index parked_discarded on parked (sink_id, inserted_at, history, lsn, idx, part) where state = 'discarded';
