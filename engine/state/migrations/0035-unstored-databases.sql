-- What is made on servers of databases that are not stored yet: who is killed in between leaves it there, and another one drops it.
create table unstored_part (
  id uuid primary key default gen_random_uuid(),
  kind text not null check (kind in ('slot', 'publication')),
  name text not null,
  connection bytea not null, -- of its server, encrypted
  inserted_at timestamptz not null default now()
);
