-- The processes of a cluster, and how each hears of what the others change.

-- A row for each process, renewed every second. Unlogged: what a crash of the server empties is written again a second
-- later, and a heartbeat costs no write to disk.
create unlogged table node (
  id uuid primary key, -- made anew at each start
  name text not null, -- host/pid
  address text not null, -- where its peers reach it
  version text not null,
  started_at timestamptz not null default clock_timestamp(),
  seen_at timestamptz not null default clock_timestamp() -- by this server's clock, so that no other has to agree with it
);

-- Owners of one sink's partitions are looked up by the prefix of the key.
create index term_key_prefix on term (key text_pattern_ops);

-- Notices say only what changed, not how: whoever hears one reads again. Payloads: 'resources', 'nodes', 'owners <sink id>'.
create function notice_resources() returns trigger language plpgsql as $$
begin
  perform pg_notify('tailrace', 'resources');
  return null;
end $$;
create function notice_nodes() returns trigger language plpgsql as $$
begin
  perform pg_notify('tailrace', 'nodes');
  return null;
end $$;
create function notice_owner() returns trigger language plpgsql as $$
begin
  perform pg_notify('tailrace', 'owners ' || split_part(new.key, '.', 1));
  return null;
end $$;

create trigger notice after insert or update or delete on account for each statement execute function notice_resources();
create trigger notice after insert or update or delete on api_token for each statement execute function notice_resources();
create trigger notice after insert or update or delete on source_database for each statement execute function notice_resources();
create trigger notice after insert or update or delete on sink for each statement execute function notice_resources();
create trigger notice after insert or delete on node for each statement execute function notice_nodes();
create trigger notice after insert or update on term for each row when (new.kind = 'partition') execute function notice_owner();
