-- Sinks that send: where to, what they may not show, and what became of each attempt.

alter table sink add column secrets bytea; -- the secret fields of the destination, encrypted

-- Named targets of webhooks.
create table http_endpoint (
  id uuid primary key default gen_random_uuid(),
  account_id uuid not null references account on delete cascade,
  name text not null,
  kind text not null check (kind in ('external', 'local')),
  url text not null, -- local: the path alone
  headers jsonb not null default '{}',
  encrypted_headers bytea not null, -- encrypted
  inserted_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  unique (account_id, name)
);
create trigger notice after insert or update or delete on http_endpoint for each statement execute function notice_resources();

-- The newest attempts first: time, code, status, headers and body of the answer, cut at a limit.
alter table parked add column attempt_log jsonb not null default '[]';
