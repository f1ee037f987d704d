-- An API token says what it may do, for which sinks, until when, and who made it. Those of before may do everything, and stay until they are
-- revoked or a file names them.
alter table api_token
  add column scopes text[] not null default '{admin}' check (scopes <@ '{receive,read,manage,admin}' and scopes <> '{}'),
  add column sinks text[] not null default '{}', -- names of sinks that `receive` is for; "*": all of the account
  add column expires_at timestamptz,
  add column made_by text check (made_by in ('file', 'apply', 'api')); -- the file of the start, one that a client applied, or the API

-- Apart from the token, so that its use is no change of it.
create table api_token_use (
  token_id uuid primary key references api_token on delete cascade,
  used_at timestamptz not null
);

-- Tokens are read apart from the resources: one that is revoked must not wait for what an edit of resources waits for.
create function notice_tokens() returns trigger language plpgsql as $$
begin
  perform pg_notify('tailrace', 'tokens');
  return null;
end $$;
drop trigger notice on api_token;
create trigger notice after insert or update or delete on api_token for each statement execute function notice_tokens();
