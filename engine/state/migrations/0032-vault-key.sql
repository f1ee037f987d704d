-- By which key secrets are encrypted since the last rotation: the print of the key, never the key. Null: none was rotated yet.
create table vault_key (
  one boolean primary key default true check (one),
  print text
);
insert into vault_key default values;
