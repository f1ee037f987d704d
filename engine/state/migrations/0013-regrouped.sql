-- A table whose changes are grouped by other columns than before begins a generation of the same shape. What was parked
-- before is put into groups by these columns: {"relation": 16384, "key": ["tenant", "id"]}
alter table generation add column regrouped jsonb;
