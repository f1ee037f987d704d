-- Which transaction a source's progress lies in: another one at the same LSN is of another past of the server (null: not known).
alter table log_progress add column xid bigint;
alter table log_progress add column commit_us bigint; -- commit time, microseconds since 1970
