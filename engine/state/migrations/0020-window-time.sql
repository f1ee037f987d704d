-- The time of a replay window is counted by the monotonic clocks of its owners, for a clock that is set would trim it early.
alter table replay_point add column reached_ms bigint; -- when everything before it was finished, counted from any beginning: differences tell
update replay_point set reached_ms = extract(epoch from reached_at) * 1000;
alter table replay_point alter column reached_ms set not null, drop column reached_at;
