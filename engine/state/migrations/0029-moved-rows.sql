-- Rows that got a key of a place that their backfill had read, by a change that its sink does not get whole: a run that goes on behind a
-- page reads first those that moved behind its mark. They are stored before the change is confirmed.

create table backfill_moved_row (
  backfill_id uuid not null references backfill on delete cascade,
  lsn pg_lsn not null, -- of the transaction
  key text not null -- as JSON array; empty: more than are kept have moved up to there
);
create index on backfill_moved_row (backfill_id, lsn);

create function forget_moved_rows() returns trigger language plpgsql as $$
begin
  delete from tailrace.backfill_moved_row where backfill_id = new.id;
  return null;
end $$;
create trigger forget_moved_rows after update of state, pages on backfill for each row
  when (new.state in ('completed', 'cancelled') or new.pages = '[]') execute function forget_moved_rows();
