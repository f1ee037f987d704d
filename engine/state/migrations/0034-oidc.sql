-- People who sign in by an OIDC issuer, and know no password of ours.
alter table app_user alter column password drop not null;
alter table app_user add column name text; -- as their issuer has it
create table user_identity (
  issuer text not null,
  subject text not null,
  user_id uuid not null references app_user on delete cascade,
  role_by_group boolean not null, -- the groups at the issuer say the role, and not an admin of the account
  inserted_at timestamptz not null default now(),
  primary key (issuer, subject),
  unique (user_id, issuer)
);
-- Sign-ins by an issuer that were completed: none is a second time.
create table completed_sign_in (
  hash bytea primary key, -- sha256 of its state
  expires_at timestamptz not null
);
create index completed_sign_in_end on completed_sign_in (expires_at);
