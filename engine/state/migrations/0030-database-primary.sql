-- The primary of a database that is a standby, and settings that are shown as they were given.
alter table source_database
  add primary_connection jsonb, -- hostname, port, database, username, ssl, ca_cert
  add primary_password bytea, -- encrypted
  add hints jsonb not null default '{}';
