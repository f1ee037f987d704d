-- How often messages of a partition were parked or discarded. Its owner says it with each commit: of a state database that was put back, or
-- that lost its last writes in a failover, the log then knows that rows are missing.
alter table term add column parked bigint not null default 0;
