-- Queries that enrich messages.
alter table function drop constraint function_type_check;
alter table function add constraint function_type_check check (type in ('path', 'transform', 'filter', 'routing', 'enrichment'));
