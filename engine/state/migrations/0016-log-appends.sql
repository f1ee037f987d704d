-- How many appends of the source the log had when it was last confirmed: a log that has fewer is an older copy of it.
alter table source add column log_appends bigint not null default 0;
