-- People who sign in at the console, their sessions, and who was invited.
create table app_user (
  id uuid primary key default gen_random_uuid(),
  account_id uuid not null references account on delete cascade,
  email text not null unique check (email = lower(email)),
  password text not null, -- argon2id, as $argon2id$v=19$m=…,t=…,p=…$salt$hash
  role text not null check (role in ('viewer', 'editor', 'admin')),
  inserted_at timestamptz not null default now()
);
create table user_session (
  hash bytea primary key, -- sha256 of what the cookie holds
  user_id uuid not null references app_user on delete cascade,
  address text not null,
  client text,
  inserted_at timestamptz not null default now(),
  expires_at timestamptz not null
);
create index user_session_user on user_session (user_id);
create table invitation (
  id uuid primary key default gen_random_uuid(),
  account_id uuid not null references account on delete cascade,
  email text not null check (email = lower(email)),
  role text not null check (role in ('viewer', 'editor', 'admin')),
  hash bytea not null unique, -- sha256 of the text in the link
  inserted_at timestamptz not null default now(),
  expires_at timestamptz not null,
  unique (account_id, email)
);
