-- Routing functions, each for one kind of destination.
alter table function drop constraint function_type_check;
alter table function add constraint function_type_check check (type in ('path', 'transform', 'filter', 'routing'));
alter table function add column sink_type text;
alter table function add constraint function_sink_type_check check ((type = 'routing') = (sink_type is not null));
