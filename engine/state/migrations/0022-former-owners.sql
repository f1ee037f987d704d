-- A process of a version before streams that was taken for dead, and goes on: it would serve a generation by the name that its topic
-- would have had then, and route as if there were no streams. It owns nothing of what it doesn't know.
create function refuse_former_owner() returns trigger language plpgsql as $$
declare
  name text := split_part(new.key, '/', 1); -- of a partition: <sink id>.<generation>/<partition>
  knows boolean := true;
begin
  if new.kind = 'source' then
    knows := not exists (select from tailrace.routing_version v where v.database_id::text = new.key and v.sinks is null and v.lsn is not null);
  elsif new.kind = 'partition' then
    knows := not exists (
      select from tailrace.generation g
      where g.sink_id::text = split_part(name, '.', 1) and g.generation::text = split_part(name, '.', 2) and g.topic <> name);
  end if;
  if not knows then
    raise exception 'node % is of a version that knows no streams, and can''t own % %: stop it, and start the new version', new.holder, new.kind, new.key;
  end if;
  return new;
end $$;
create function is_former_node(holder text) returns boolean language sql stable as
  $$ select exists (select from tailrace.node n where n.id::text = holder and not n.streams) $$;
create trigger former_owner before insert or update on term for each row when (is_former_node(new.holder)) execute function refuse_former_owner();
