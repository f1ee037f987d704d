-- Which backfills of a sink have not ended is read from their own rows: with a copy in the sink's row each end of one of a thousand wrote,
-- and every process read, all of them.

alter table sink drop column backfills;
create trigger notice after insert or delete or update of state on backfill for each statement execute function notice_resources();
