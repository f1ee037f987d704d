-- What a source has been reading: another database or publication may go by the same name (null: not known).
alter table source add column database_oid bigint;
alter table source add column publication_oid bigint;
