-- Who changed what, when and from where: written in the transaction of the change, so that there is none without the other.
create table audit_log (
  id bigint generated always as identity primary key,
  account_id uuid not null references account on delete cascade,
  at timestamptz not null default now(),
  actor jsonb not null, -- {"kind": "token", "id", "name", "address", "client"}
  action text not null, -- create, update, delete, …
  kind text not null, -- of what was changed: sink, api_token, …
  name text not null,
  changes jsonb not null -- {"field": {"old", "new"}}; secrets are hidden
);
create index audit_log_account on audit_log (account_id, id desc);
create index audit_log_at on audit_log (at);
