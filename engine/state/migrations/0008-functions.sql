-- Functions of users: what they wrote, and the JavaScript that runs.
create table function (
  id uuid primary key default gen_random_uuid(),
  account_id uuid not null references account on delete cascade,
  name text not null,
  type text not null check (type in ('path', 'transform', 'filter')),
  description text,
  code text not null, -- as written: TypeScript, JavaScript, or of type path the path
  compiled text not null,
  uses_metadata boolean not null,
  inserted_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  unique (account_id, name)
);
create trigger notice after insert or update or delete on function for each statement execute function notice_resources();
